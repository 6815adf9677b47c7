package engine

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

func TestAHomeThatIsNotThereListsNothing(t *testing.T) {
	home := filepath.Join(t.TempDir(), "none")
	e := New(Config{Home: home})
	if list, err := e.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("List = %v, %v", list, err)
	}
	if _, err := e.Open(t.Context(), "x"); !errors.Is(err, kiterr.ErrNotFound) {
		t.Errorf("Open = %v", err)
	}
	if ims, err := e.Images(t.Context()); err != nil || len(ims) != 0 {
		t.Errorf("Images = %v, %v", ims, err)
	}
	if _, err := os.Stat(home); err == nil {
		t.Error("looking made a home")
	}
}

// A name that cannot be is the same mistake to everything that takes one: whether
// the status of a command is that of a refusal must not hang on which it was.
func TestANameThatCannotBeIsNoRefusal(t *testing.T) {
	e := New(Config{Home: filepath.Join(t.TempDir(), "none")})
	for _, name := range []string{strings.Repeat("a", sandbox.MaxName+1), "a/b", "-a"} {
		want := sandbox.CheckName(name)
		_, open := e.Open(t.Context(), name)
		_, volumes := e.Volumes(t.Context(), name)
		_, rules := e.Rules(t.Context(), name)
		for what, err := range map[string]error{"Open": open, "Volumes": volumes, "Rules": rules,
			"RemoveVolume": e.RemoveVolume(t.Context(), name, ""),
			"SetSecret":    e.SetSecret(t.Context(), sandbox.SecretRef{Service: "s", Sandbox: name}, sandbox.SecretInput{Value: strings.NewReader("x")}),
			"RemoveSecret": e.RemoveSecret(t.Context(), sandbox.SecretRef{Service: "s", Sandbox: name})} {
			if want == nil || err == nil || err.Error() != want.Error() || kiterr.ExitCode(err) != kiterr.StatusFailed {
				t.Errorf("%s of %.5q: %v, want %v", what, name, err, want)
			}
		}
	}
}
