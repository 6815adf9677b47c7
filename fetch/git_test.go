package fetch_test

import (
	"errors"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/needs"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// TestAKitInARepository is built of the commit that its ref stands for.
func TestAKitInARepository(t *testing.T) {
	needs.Program(t, "git", "apt-get install git")
	out, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	repo := filepath.Join(t.TempDir(), "k")
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", repo, "-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "GIT_CONFIG_NOSYSTEM=1", "HOME=" + t.TempDir()}
		text, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, text)
		}
		return strings.TrimSpace(string(text))
	}
	commit := func(recipe string) string {
		t.Helper()
		if err := errors.Join(os.MkdirAll(repo+"/kits/hello", 0o755), os.WriteFile(repo+"/kits/hello/hello.yaml", []byte(descriptor), 0o644),
			os.WriteFile(repo+"/kits/hello/hello.dockerfile", []byte(recipe), 0o644)); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(repo + "/.git"); err != nil {
			git("init", "-q", "-b", "main")
		}
		git("add", "-A")
		git("commit", "-q", "-m", "x")
		return git("rev-parse", "HEAD")
	}
	first := commit(recipe)
	git("tag", "v1.2")
	var requests atomic.Int32
	host := plainServer(t, func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		h := cgi.Handler{Path: filepath.Join(strings.TrimSpace(string(out)), "git-http-backend"), Stderr: os.Stderr,
			Env: []string{"GIT_PROJECT_ROOT=" + filepath.Dir(repo), "GIT_HTTP_EXPORT_ALL=1", "GIT_PROTOCOL=" + r.Header.Get("Git-Protocol")}}
		h.ServeHTTP(w, r)
	})
	f := setup(t)
	var notes []string
	f.Notice = func(s string) { notes = append(notes, s) }
	ref := "git+http://" + host + "/k#ref=main&dir=kits/hello"
	kit, err := f.Fetch(t.Context(), ref, nil)
	if err != nil || kit.Source != fetch.Git || !kit.Built || kit.Ref != ref {
		t.Fatalf("%+v, %v", kit, err)
	}
	if len(notes) == 0 || !strings.Contains(notes[0], first) {
		t.Errorf("nobody was told: %q", notes)
	}
	// One commit is built once, however it is named.
	n := requests.Load()
	for _, r := range []string{ref, "git+http://" + host + "/k#ref=" + first + "&dir=kits/hello"} {
		if again, err := f.Fetch(t.Context(), r, nil); err != nil || again.Built || again.Digest != kit.Digest || requests.Load() != n {
			t.Errorf("%s: %+v, %v, %d requests", r, again, err, requests.Load()-n)
		}
	}
	commit(recipe + "RUN more\n")
	if again, err := f.Fetch(t.Context(), ref, nil); err != nil || again.Digest != kit.Digest {
		t.Errorf("a branch that moved is followed without being asked: %+v, %v", again, err)
	}
	f.Policy = fetch.Always
	moved, err := f.Fetch(t.Context(), ref, nil)
	if err != nil || moved.Digest == kit.Digest || !moved.Built {
		t.Errorf("%+v, %v", moved, err)
	}
	if tagged, err := f.Fetch(t.Context(), "git+http://"+host+"/k#v1.2:kits/hello/hello.yaml", nil); err != nil || tagged.Digest != kit.Digest {
		t.Errorf("%+v, %v", tagged, err)
	}
	for r, want := range map[string]string{
		"git+http://" + host + "/k#dir=kits": "no Kit descriptor", "git+ssh://" + host + "/k": "scheme", "git+http://example.com/k": "without TLS",
	} {
		if _, err := f.Fetch(t.Context(), r, nil); err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, kiterr.ErrRefused) && !errors.Is(err, kiterr.ErrNotFound) {
			t.Errorf("%s: %v", r, err)
		}
	}
}
