package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// shelf is an image store that writes down what it was asked.
type shelf struct {
	sandbox.ImageStore
	did []string
	err error
}

func (s *shelf) note(format string, args ...any) error {
	s.did = append(s.did, fmt.Sprintf(format, args...))
	return s.err
}

func (s *shelf) Push(_ context.Context, ref, target string, progress func(sandbox.Event)) (string, error) {
	progress(sandbox.Event{Step: "build", Detail: "pushing"})
	return "sha256:abc", s.note("push %s %s", ref, target)
}

func (s *shelf) Pull(_ context.Context, ref string, _ sandbox.PullOptions) (sandbox.Image, error) {
	return sandbox.Image{Ref: ref, Digest: "sha256:abc"}, s.note("pull %s", ref)
}

func (s *shelf) TagImage(_ context.Context, ref, name string) error {
	return s.note("tag %s %s", ref, name)
}

func (s *shelf) InspectImage(_ context.Context, ref string) (*sandbox.ImageDetails, error) {
	return &sandbox.ImageDetails{Platform: "linux/amd64"}, s.note("inspect %s", ref)
}

func (s *shelf) RemoveImage(_ context.Context, ref string) error { return s.note("rm %s", ref) }

func (s *shelf) PruneImages(_ context.Context, grace time.Duration) (sandbox.Pruned, error) {
	return sandbox.Pruned{Blobs: 2, Bytes: 1 << 20}, s.note("prune %s", grace)
}

func (s *shelf) SaveImages(_ context.Context, refs []string, w io.Writer) error {
	io.WriteString(w, "archive")
	return s.note("save %s", strings.Join(refs, ","))
}

func (s *shelf) LoadImages(_ context.Context, r io.Reader) ([]string, error) {
	b, err := io.ReadAll(r)
	return []string{"a:1"}, errors.Join(err, s.note("load %s", b))
}

func TestImageCommands(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "x.tar")
	for _, c := range []struct {
		args   string
		did    string
		stdout string
		status int
	}{
		{"push a:1", "push a:1 a:1", "sha256:abc\n", 0},
		{"push -q a:1 as r.example/b:2", "push a:1 r.example/b:2", "sha256:abc\n", 0},
		{"push a:1 to r.example/b:2", "", "", 1},
		{"pull r.example/b:2", "pull r.example/b:2", "sha256:abc\n", 0},
		{"pull", "", "", 1},
		{"tag a:1 b:1", "tag a:1 b:1", "", 0},
		{"image inspect a:1", "inspect a:1", "\"platform\": \"linux/amd64\"", 0},
		{"image rm a:1 b:1", "rm a:1;rm b:1", "", 0},
		{"image prune", "prune 1h0m0s", "2 blobs and 0 unpacked layers", 0},
		{"image prune --keep-duration 0s --json", "prune 0s", "\"blobs\": 2", 0},
		{"image save a:1 b:1", "save a:1,b:1", "archive", 0},
		{"image save -o " + file + " a:1", "save a:1", "", 0},
		{"image load", "load input", "a:1\n", 0},
		{"image load -i " + file, "load archive", "a:1\n", 0},
		{"image load -i " + dir + "/none", "", "", 1},
	} {
		s := &shelf{}
		var out, errs bytes.Buffer
		status := Main(t.Context(), &Env{Args: strings.Fields(c.args), Stdin: strings.NewReader("input"), Stdout: &out, Stderr: &errs, Images: s})
		if status != c.status || strings.Join(s.did, ";") != c.did || !strings.Contains(out.String(), c.stdout) || (status != 0) != (errs.Len() > 0 && !strings.Contains(errs.String(), "pushing")) {
			t.Errorf("%s: status %d, did %q, stdout %q, stderr %q", c.args, status, s.did, &out, &errs)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left: %v, %v", left, err)
	}
	// An archive that fails half way leaves the old one.
	s := &shelf{err: kiterr.ErrNotFound}
	var errs bytes.Buffer
	if status := Main(t.Context(), &Env{Args: []string{"image", "save", "-o", file, "z:1"}, Stdout: io.Discard, Stderr: &errs, Images: s}); status != 1 {
		t.Errorf("a failed save: status %d", status)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "archive" {
		t.Errorf("%q, %v", b, err)
	}
	if names, _ := os.ReadDir(dir); !slices.ContainsFunc(names, func(e os.DirEntry) bool { return e.Name() == "x.tar" }) || len(names) != 1 {
		t.Errorf("left: %v", names)
	}
}

func TestAStoreThatMovesNothingSaysSo(t *testing.T) {
	var errs bytes.Buffer
	only := struct{ sandbox.ImageStore }{}
	if status := Main(t.Context(), &Env{Args: []string{"pull", "r.example/a:1"}, Stdout: io.Discard, Stderr: &errs, Images: only}); status == 0 || !strings.Contains(errs.String(), "cannot move") {
		t.Errorf("status %d: %s", status, &errs)
	}
}
