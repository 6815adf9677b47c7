package builder

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/moby/buildkit/client"

	"github.com/kitbox-dev/kitbox/internal/frontend"
)

func TestTheBuiltinFrontendMakesTheSameImage(t *testing.T) {
	if _, err := exec.LookPath("runc"); os.Getuid() != 0 || err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("this test needs root and runc")
		}
		t.Skip("this test needs root and runc")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r := Request{Home: filepath.Join(t.TempDir(), "home"), Context: filepath.Join(t.TempDir(), "d")}
	if err := os.Mkdir(r.Context, 0o755); err != nil {
		t.Fatal(err)
	}
	text := []byte("schemaVersion: \"3\"\nkind: mixin\nprovides: [\"d@1.0\"]\n")
	if err := os.WriteFile(filepath.Join(r.Context, "d.yaml"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	want, err := Build(ctx, r, Progress{})
	if err != nil {
		t.Fatal(err)
	}
	dir, err := Dir(r.Home)
	if err != nil {
		t.Fatal(err)
	}
	defer Stop(ctx, dir)

	if err := r.complete(); err != nil {
		t.Fatal(err)
	}
	c, err := r.connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	land, err := newLanding(r.Layout, true)
	if err != nil {
		t.Fatal(err)
	}
	defer land.Close()
	opt, err := r.solveOpt(land)
	if err != nil {
		t.Fatal(err)
	}
	opt.Frontend = frontend.BuiltinSource
	status := make(chan *client.SolveStatus)
	go func() {
		for range status {
		}
	}()
	resp, err := c.Solve(ctx, nil, opt, status)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := exported(resp.ExporterResponse); err != nil || got.Digest != want.Digest {
		t.Errorf("built in: %s, %v; in this process: %s", got.Digest, err, want.Digest)
	}
}
