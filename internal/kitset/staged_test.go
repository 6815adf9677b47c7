package kitset

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/juggler"
)

// A sandbox that has the set's directory as its workspace can put a pipe in the place of
// a file at any moment.
func TestAStagedFileThatBecomesAPipeIsNotWaitedFor(t *testing.T) {
	dir := t.TempDir()
	file, pipe := filepath.Join(dir, "guide.md"), filepath.Join(dir, "pipe")
	if err := errors.Join(os.WriteFile(file, []byte("text"), 0o600), unix.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	juggler.Exchange(t, file, pipe, func() bool {
		data, err := readStaged(root, "guide.md")
		if refused := errors.Is(err, fs.ErrInvalid); refused || err == nil && string(data) == "text" {
			return refused
		}
		t.Errorf("%q, %v", data, err)
		return false
	})
}

func TestAStagedFileHasABound(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for size, want := range map[int64]error{0: nil, maxStaged: nil, maxStaged + 1: fs.ErrInvalid, 1 << 40: fs.ErrInvalid} {
		name := filepath.Join(dir, "f")
		if err := errors.Join(os.WriteFile(name, nil, 0o600), os.Truncate(name, size)); err != nil {
			t.Fatal(err)
		}
		if data, err := readStaged(root, "f"); !errors.Is(err, want) || err == nil && int64(len(data)) != size {
			t.Errorf("%d bytes: %d read, %v", size, len(data), err)
		}
	}
}
