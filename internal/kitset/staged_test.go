package kitset

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
	over, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-over:
				ended <- nil
				return
			default:
			}
			if err := unix.Renameat2(unix.AT_FDCWD, file, unix.AT_FDCWD, pipe, unix.RENAME_EXCHANGE); err != nil {
				ended <- err
				return
			}
		}
	}()
	read := make(chan [2]int, 1) // texts, refusals
	go func() {
		var n [2]int
		for i := 0; i < 200_000 && (i < 2000 || n[0] == 0 || n[1] == 0); i++ {
			switch data, err := readStaged(root, "guide.md"); {
			case err == nil && string(data) == "text":
				n[0]++
			case errors.Is(err, fs.ErrInvalid):
				n[1]++
			default:
				t.Errorf("%q, %v", data, err)
			}
		}
		read <- n
	}()
	select {
	case n := <-read:
		if n[0] == 0 || n[1] == 0 {
			t.Errorf("%d texts and %d pipes: it was never exchanged", n[0], n[1])
		}
	case <-time.After(30 * time.Second):
		t.Error("a pipe is waited for")
	}
	close(over)
	if err := <-ended; err != nil {
		t.Error(err)
	}
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
