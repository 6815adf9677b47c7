package fetch_test

import (
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/kiterr"
)

func TestFindLogin(t *testing.T) {
	dir := t.TempDir()
	helper := t.TempDir()
	t.Setenv("PATH", helper+":"+os.Getenv("PATH"))
	write := func(path, text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(helper, "docker-credential-good"), "#!/bin/sh\nread host\necho \"{\\\"ServerURL\\\":\\\"$host\\\",\\\"Username\\\":\\\"helped\\\",\\\"Secret\\\":\\\"by $host\\\"}\"\n", 0o755)
	write(filepath.Join(helper, "docker-credential-bad"), "#!/bin/sh\necho SECRET-TEXT\nexit 1\n", 0o755)
	auth := base64.StdEncoding.EncodeToString([]byte("me:pass"))
	write(filepath.Join(dir, "config.json"), `{"auths":{"https://index.docker.io/v1/":{"auth":"`+auth+`"},"ghcr.io":{"auth":"`+auth+`"},"id.test":{"identitytoken":"tok"}},
		"credHelpers":{"helped.test:5000":"good","bad.test":"bad"}}`, 0o600)
	for host, want := range map[string]fetch.Login{
		"docker.io": {Username: "me", Password: "pass"}, "ghcr.io": {Username: "me", Password: "pass"},
		"id.test": {IdentityToken: "tok"}, "helped.test:5000": {Username: "helped", Password: "by helped.test:5000"},
	} {
		if got, err := fetch.FindLogin(t.Context(), dir, host); got != want || err != nil {
			t.Errorf("%s: %+v, %v", host, got, err)
		}
	}
	if _, err := fetch.FindLogin(t.Context(), dir, "none.test"); !errors.Is(err, kiterr.ErrNotFound) || !strings.Contains(err.Error(), "docker login none.test") {
		t.Errorf("none: %v", err)
	}
	if _, err := fetch.FindLogin(t.Context(), t.TempDir(), "none.test"); !errors.Is(err, kiterr.ErrNotFound) {
		t.Errorf("no configuration: %v", err)
	}
	if _, err := fetch.FindLogin(t.Context(), dir, "bad.test"); err == nil || strings.Contains(err.Error(), "SECRET") || errors.Is(err, kiterr.ErrNotFound) {
		t.Errorf("a helper that fails: %v", err)
	}
	write(filepath.Join(dir, "config.json"), `{"auths": SECRET`, 0o600)
	if _, err := fetch.FindLogin(t.Context(), dir, "ghcr.io"); err == nil || strings.Contains(err.Error(), "SECRET") {
		t.Errorf("a broken file: %v", err)
	}
}
