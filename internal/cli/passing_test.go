package cli

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/sandbox"
)

// What only a clone has is seen before it goes, or it does not go.
func TestACloneGoesWithItsCommandOnlyWhenItCouldBeLookedInto(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		f      fake
		status int
		last   string
		says   string
	}{
		"nothing":   {fake{}, 0, "remove t", ""},
		"a file":    {fake{unsaved: sandbox.Unsaved{Files: []string{"only-here"}}}, 0, "remove t", "file only-here"},
		"not known": {fake{unsavedErr: errors.New("object 1234 is broken")}, 1, "stop t 0s true", "object 1234 is broken; 'kitbox workspace unsaved t'"},
	} {
		status, _, errs := c.f.command("run", "-q", "--rm", "--clone", "./w", dir)
		if status != c.status || c.f.did[len(c.f.did)-1] != c.last || !strings.Contains(errs, c.says) || c.f.options.Ephemeral || !c.f.options.Passing {
			t.Errorf("%s: status %d, did %v, %+v: %s", name, status, c.f.did, c.f.options, errs)
		}
	}
	f := fake{unsavedErr: errors.New("nobody asks")}
	if status, _, errs := f.command("run", "-q", "--rm", "./w", dir); status != 0 || !f.options.Ephemeral || f.options.Passing || !slices.Contains(f.did, "remove t") {
		t.Errorf("without a clone: status %d, did %v: %s", status, f.did, errs)
	}
}
