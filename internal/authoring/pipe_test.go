package authoring

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestWhatIsNoFileIsNotWaitedFor(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/zero", filepath.Join(dir, "endless.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "mine.yaml"), []byte("schemaVersion: \"3\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if name, err := Find(dir); name != "mine.yaml" || err != nil {
		t.Errorf("%q, %v", name, err)
	}
}
