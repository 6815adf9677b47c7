package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// A sandbox makes a directory in a directory in a directory. Whoever deletes it
// must not run out of descriptors, stack or path.
func TestRemoveTreeOfAnyDepth(t *testing.T) {
	root := filepath.Join(t.TempDir(), "tree")
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	at, err := unix.Open(root, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5000 {
		if err := unix.Mkdirat(at, "d", 0o700); err != nil {
			t.Fatal(err)
		}
		if i%100 == 0 { // names like those that the removal itself makes
			if err := unix.Mkdirat(at, ".up-"+strconv.Itoa(i), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		next, err := unix.Openat(at, "d", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(at)
		at = next
	}
	unix.Close(at)

	// Far fewer descriptors than levels.
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	low := old
	low.Cur = min(old.Cur, 256)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &old)

	if err := RemoveTree(root); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(root); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("still there: %v", err)
	}
}

func TestRemoveTree(t *testing.T) {
	dir := t.TempDir()
	kept := filepath.Join(dir, "kept")
	if err := os.MkdirAll(filepath.Join(kept, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	tree := filepath.Join(dir, "tree")
	for _, d := range []string{"a/b/c", "a/b/e", "x", "locked/inner"} {
		if err := os.MkdirAll(filepath.Join(tree, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"f", "a/f", "a/b/c/f", "locked/inner/f"} {
		if err := os.WriteFile(filepath.Join(tree, f), []byte("x"), 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range []string{"l", "a/l", "a/b/l"} {
		if err := os.Symlink(kept, filepath.Join(tree, l)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(tree, "a/p"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"locked/inner", "locked", "a/b"} {
		if err := os.Chmod(filepath.Join(tree, d), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := RemoveTree(tree); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(tree); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("still there: %v", err)
	}
	if _, err := os.Stat(filepath.Join(kept, "sub")); err != nil {
		t.Errorf("a link was followed: %v", err)
	}
	if err := RemoveTree(tree); err != nil {
		t.Errorf("again: %v", err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(kept, link); err != nil {
		t.Fatal(err)
	}
	if err := RemoveTree(link); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(kept, "sub")); err != nil {
		t.Errorf("the link's target went: %v", err)
	}
}
