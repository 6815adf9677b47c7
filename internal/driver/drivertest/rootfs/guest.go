package rootfs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Guest builds kit-guest in a directory of t and returns its path. The go
// command's cache makes all but the first time cheap.
func Guest(t T) string {
	t.Helper()
	p, err := BuildGuest(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// BuildGuest builds kit-guest in dir and returns its path. It is built as it is
// shipped: static, since threads of C code cannot give up capabilities together.
// KITBOX_TEST_GUEST names one that was built elsewhere, for systems without Go.
func BuildGuest(dir string) (string, error) {
	if p := os.Getenv("KITBOX_TEST_GUEST"); p != "" {
		return p, nil
	}
	p := filepath.Join(dir, "kit-guest")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", p, "github.com/kitbox-dev/kitbox/cmd/kit-guest")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building kit-guest: %w\n%s", err, out)
	}
	return p, nil
}
