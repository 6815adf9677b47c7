package e2e

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/registry/registrytest"
)

// validating runs a registry on loopback that validates what it gets.
func validating(t *testing.T) string { return validatingBehind(t, "", "") }

// validatingBehind lets only that user in, or anybody if there is none.
func validatingBehind(t *testing.T, user, password string) string {
	t.Helper()
	app := registrytest.Validating(t.Context(), t.TempDir())
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, p, _ := r.BasicAuth(); user != "" && (u != user || p != password) {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		app.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	return strings.TrimPrefix(s.URL, "http://")
}

// TestASetOfBuiltKits builds two Kits, publishes them, publishes a set of them
// and runs it from a store that has none of it.
func TestASetOfBuiltKits(t *testing.T) {
	host := validating(t)
	ok(t, "build", "-q", "-t", host+"/kits/probe:1", "--push", probe)
	ok(t, "build", "-q", "-t", host+"/kits/addon:1", "--push", addon)
	dir := filepath.Join(t.TempDir(), "both")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	text := "schemaVersion: \"3\"\nkind: set\nversion: \"1\"\nprovides: [both]\nkits:\n  - {ref: " + host + "/kits/addon:1}\n  - {ref: " + host + "/kits/probe:1}\n"
	if err := os.WriteFile(filepath.Join(dir, "both.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	digest := strings.TrimSpace(ok(t, "build", "-q", "-t", host+"/kits/both:1", "--push", dir))
	t.Logf("assembled and published in %v", time.Since(began))

	judge := finish(t, command(t.Context(), "kit-tck", "validate", host+"/kits/both:1"))
	if judge.Code != 0 {
		t.Errorf("kit-tck: status %d\n%s%s", judge.Code, judge.Stdout, judge.Stderr)
	}
	if got := ok(t, "image", "inspect", host+"/kits/both:1"); !strings.Contains(got, digest) {
		t.Errorf("%s is not in %s", digest, got)
	}
	out := ok(t, "run", "-q", "--rm", "--exec", host+"/kits/both@"+digest, "--", "/bin/ls", "/usr/share/sandbox/kit")
	if out != "addon\nboth\nprobe\n" {
		t.Errorf("staged: %q", out)
	}
	// What the builder says of its layer tells a set that two Kits are called
	// alike, without reading one.
	clash := filepath.Join(t.TempDir(), "probe")
	if err := os.Mkdir(clash, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(clash, "probe.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if o := kitbox(t, "build", "-q", clash); o.Code != 2 || !strings.Contains(o.Stderr, "both keep their sources in /usr/share/sandbox/kit/probe") {
		t.Errorf("status %d: %s", o.Code, o.Stderr)
	}
}
