package authoring_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/authoring"
)

// TestFindSaysWhatItCannotRead looks as a user who may not read.
func TestFindSaysWhatItCannotRead(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"file/kit.yaml": 0, "file/notes.txt": 0o644, "dir/kit.yaml": 0o644} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(descriptor), mode); err != nil {
			t.Fatal(err)
		}
	}
	closed := filepath.Join(dir, "dir")
	if err := os.Chmod(closed, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Chmod(closed, 0o755) })

	for want, arg := range map[string]string{
		"file/kit.yaml cannot be read: permission denied": "file",
		"dir cannot be read: permission denied":           "dir",
	} {
		got := make(chan error)
		go func() {
			if os.Geteuid() == 0 {
				runtime.LockOSThread() // the thread ends with this goroutine
				if _, err := unix.SetfsuidRetUid(4711); err != nil {
					got <- err
					return
				}
			}
			_, err := authoring.Find(filepath.Join(dir, arg))
			got <- err
		}()
		if err := <-got; !errors.Is(err, fs.ErrPermission) || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v", arg, err)
		}
	}
}
