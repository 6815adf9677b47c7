package fetch_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/kiterr"
)

// A sandbox that has a Kit's directory as its workspace can put pipes there. Nobody who
// builds the Kit afterwards waits for a writer.
func TestPipesInADirectoryAreNotWaitedFor(t *testing.T) {
	for _, name := range []string{".dockerignore", "hello.dockerfile.dockerignore", "hello.yaml"} {
		t.Run(name, func(t *testing.T) {
			f := setup(t)
			pipe := filepath.Join(f.dir, name)
			if err := os.Remove(pipe); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
			if err := unix.Mkfifo(pipe, 0o600); err != nil {
				t.Fatal(err)
			}
			ref := f.dir
			if name == "hello.yaml" {
				ref = pipe
			}
			ended := make(chan error, 1)
			go func() { _, err := f.Fetch(t.Context(), ref, nil); ended <- err }()
			select {
			case err := <-ended:
				if !errors.Is(err, kiterr.ErrRefused) || strings.Count(err.Error(), "/"+name) != 1 {
					t.Errorf("%v, want a refusal that names %s once", err, name)
				}
			case <-time.After(10 * time.Second):
				t.Error("it is waited for")
			}
		})
	}
}
