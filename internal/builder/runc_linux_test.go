package builder

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/kiterr"
)

func TestMissingRuncSaysHowToGetIt(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := findRunc([]string{t.TempDir()})
	if !errors.Is(err, kiterr.ErrUnavailable) || !strings.Contains(err.Error(), "apt install runc") {
		t.Errorf("findRunc = %v", err)
	}
	dir := t.TempDir()
	want := filepath.Join(dir, "runc")
	if err := os.WriteFile(want, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := findRunc([]string{dir}); got != want || err != nil {
		t.Errorf("findRunc = %q, %v; want what is in sbin", got, err)
	}
}

func TestTheBuilderInheritsNoSecrets(t *testing.T) {
	got := serveEnv([]string{"PATH=/bin", "https_proxy=p", "GITHUB_TOKEN=t", "BUILDKIT_HOST=x", "OTEL_EXPORTER_OTLP_ENDPOINT=y"})
	if len(got) != 2 || got[0] != "PATH=/bin" || got[1] != "https_proxy=p" {
		t.Errorf("serveEnv = %q", got)
	}
}
