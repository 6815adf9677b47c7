package lockfile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

func lock(refs ...string) *sandbox.Lock {
	l := &sandbox.Lock{Version: sandbox.LockVersion, Surface: []byte(`{}`)}
	for _, r := range refs {
		l.Kits = append(l.Kits, sandbox.LockedKit{Ref: r, Digest: "sha256:" + strings.Repeat("0", 64), Kind: "mixin"})
	}
	return l
}

func refs(l *sandbox.Lock) string {
	var s []string
	for _, k := range l.Kits {
		s = append(s, k.Ref)
	}
	return strings.Join(s, " ")
}

func TestDirectoriesStandInTheFileAsSeenFromIt(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.MkdirAll("locks/deep", 0o755); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"kitbox.lock":      "./k ../out . r.example/x:1",
		"locks/deep/other": "../../k ../../../out ../.. r.example/x:1",
	} {
		l := lock("./k", "../out", ".", "r.example/x:1")
		if err := Write(name, l); err != nil {
			t.Fatal(err)
		}
		if refs(l) != "./k ../out . r.example/x:1" {
			t.Errorf("%s: the lock was changed: %s", name, refs(l))
		}
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := sandbox.DecodeLock(f)
		f.Close()
		if err != nil || refs(raw) != want {
			t.Errorf("%s holds %v, %v", name, raw, err)
		}
		back, err := Read(name)
		if err != nil || refs(back) != refs(l) {
			t.Errorf("%s was read as %v, %v", name, back, err)
		}
		// As seen from another directory, it is the same directories.
		t.Run("elsewhere", func(t *testing.T) {
			t.Chdir("locks")
			back, err := Read(filepath.Join("..", name))
			if err != nil || refs(back) != "../k ../../out .. r.example/x:1" {
				t.Errorf("%s was read as %v, %v", name, back, err)
			}
		})
	}
	if st, err := os.Stat("kitbox.lock"); err != nil || st.Mode() != 0o644 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
}

// Whoever watches the file has nothing to do.
func TestALockThatSaysTheSameIsNotWritten(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := Write(Name, lock("./k")); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(Name)
	if err != nil {
		t.Fatal(err)
	}
	for refs, same := range map[string]bool{"./k": true, "./other": false} {
		if err := Write(Name, lock(refs)); err != nil {
			t.Fatal(err)
		}
		after, err := os.Stat(Name)
		if err != nil || os.SameFile(before, after) != same {
			t.Errorf("%s: the same file: %v, %v", refs, !same, err)
		}
		if err := Write(Name, lock("./k")); err != nil {
			t.Fatal(err)
		}
		if before, err = os.Stat(Name); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTheLockThatIsAskedFor(t *testing.T) {
	t.Chdir(t.TempDir())
	read := func(args ...string) (*sandbox.Lock, error) {
		cmd, k := &cobra.Command{Use: "run"}, new(Choice)
		k.Flags(cmd)
		if err := cmd.ParseFlags(args); err != nil {
			t.Fatal(err)
		}
		return k.Read(cmd)
	}
	if l, err := read(); l != nil || err != nil {
		t.Errorf("none is asked for: %v, %v", l, err)
	}
	if _, err := read("--locked"); !errors.Is(err, kiterr.ErrNotFound) || !strings.Contains(err.Error(), "'kitbox lock KIT'") {
		t.Errorf("none is there: %v", err)
	}
	for name, ref := range map[string]string{Name: "a:1", "other": "b:1"} {
		if err := Write(name, lock(ref)); err != nil {
			t.Fatal(err)
		}
	}
	for want, args := range map[string][]string{"a:1": {"--locked"}, "b:1": {"--lock", "other"}} {
		if l, err := read(args...); err != nil || refs(l) != want {
			t.Errorf("%q: %v, %v", args, l, err)
		}
	}
	if _, err := read("--locked", "--lock", "other"); err == nil || !strings.Contains(err.Error(), "--help") {
		t.Errorf("both: %v", err)
	}
	if err := os.WriteFile("broken", []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := read("--lock", "broken"); err == nil || !strings.HasPrefix(err.Error(), "broken: ") {
		t.Errorf("broken: %v", err)
	}
}

func TestADirectoryIsFoundHoweverItIsSpelled(t *testing.T) {
	l := lock("./k", "r.example/x:1")
	for ref, want := range map[string]string{"./k": "./k", "./k/": "./k", "./a/../k": "./k", "r.example/x:1": "r.example/x:1"} {
		if got, ok := Spelled(l, ref); !ok || got != want {
			t.Errorf("%s: %s, %v", ref, got, ok)
		}
	}
	for _, ref := range []string{"k", "./other", "r.example/x", ""} {
		if got, ok := Spelled(l, ref); ok || got != ref {
			t.Errorf("%s: %s, %v", ref, got, ok)
		}
	}
}

// A sandbox that has the directory as its workspace can make the lock there a pipe.
func TestALockThatIsAPipeIsReadOnlyIfItIsNamed(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, name := range []string{Name, "named"} {
		if err := unix.Mkfifo(name, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ended := make(chan error, 1)
	go func() { _, err := Read(Name); ended <- err }()
	select {
	case err := <-ended:
		if !errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), Name) {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it is waited for")
	}
	go func() { _ = os.WriteFile("named", []byte(`{"version": 0}`), 0) }() // ends with the reader
	if _, err := Read("named"); err == nil || !strings.Contains(err.Error(), "its version is 0") {
		t.Error(err)
	}
}
