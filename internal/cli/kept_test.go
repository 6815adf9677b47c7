package cli

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/kitbox-dev/kitbox/sandbox"
)

// keepsVolumes has volumes by the name of their sandbox.
type keepsVolumes struct {
	fake
	paths map[string][]string
	err   error
}

func (k *keepsVolumes) Volumes(_ context.Context, name string) (vs []sandbox.Volume, err error) {
	for _, p := range k.paths[name] {
		vs = append(vs, sandbox.Volume{Sandbox: name, Path: p})
	}
	return vs, k.err
}

func (*keepsVolumes) RemoveVolume(context.Context, string, string) error { return nil }

// What a removal leaves takes the disk, and nobody who is not told looks for it.
func TestARemovalNamesTheVolumesThatItKeeps(t *testing.T) {
	k := &keepsVolumes{paths: map[string][]string{"one": {"/data"}, "two": {"/a", "/b\n"}}}
	rm := func(args ...string) (status int, out, errs string) {
		var o, e bytes.Buffer
		status = Main(t.Context(), &Env{Args: append([]string{"rm"}, args...), Stdout: &o, Stderr: &e, Runtime: k})
		return status, o.String(), e.String()
	}
	want := "kitbox: the volume /data of one is kept: 'kitbox volume rm one' deletes it\n" +
		"kitbox: the volumes /a, /b of two are kept: 'kitbox volume rm two' deletes them\n"
	if status, out, errs := rm("none", "one", "two"); status != 0 || out != "none\none\ntwo\n" || errs != want {
		t.Errorf("status %d, %q, %q", status, out, errs)
	}
	if status, out, errs := rm("-q", "one"); status != 0 || out+errs != "" {
		t.Errorf("quietly: status %d, %q, %q", status, out, errs)
	}
	k.err = errors.New("unreadable")
	if status, out, errs := rm("one"); status != 0 || out != "one\n" || errs != "" {
		t.Errorf("when they cannot be listed: status %d, %q, %q", status, out, errs)
	}
}
