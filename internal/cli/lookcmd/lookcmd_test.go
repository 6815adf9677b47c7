package lookcmd

import (
	"bytes"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/sandbox"
)

func TestStatusShowsWhatWasSkippedAndWhatDoesNotHold(t *testing.T) {
	var b bytes.Buffer
	writeInfo(&b, sandbox.Info{Name: "t", Skipped: []sandbox.Skipped{{Kit: "./w", Type: "x/usb@1", Reason: "this host does not implement it"}},
		Unenforced: []string{"pids: no cgroup controller is delegated"},
		Problems:   []string{"limit does not hold: pids: no cgroup controller is delegated", "a hook failed"}})
	for _, want := range []string{"skipped    x/usb@1 of ./w: this host does not implement it\n", "no limit   pids: no cgroup", "problem    a hook failed\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("status lacks %q:\n%s", want, b.String())
		}
	}
	if strings.Count(b.String(), "pids") != 1 {
		t.Errorf("said twice:\n%s", b.String())
	}
}
