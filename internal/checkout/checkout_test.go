package checkout_test

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/checkout"
	"github.com/kitbox-dev/kitbox/internal/needs"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// A server has repositories on loopback, by git's own program.
type server struct {
	t        *testing.T
	root     string
	url      string // git+http://…
	requests atomic.Int32
	stall    atomic.Bool
	private  atomic.Bool // lets me:token in alone
}

func serve(t *testing.T) *server {
	t.Helper()
	needs.Program(t, "git", "apt-get install git")
	out, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	backend := needs.File(t, filepath.Join(strings.TrimSpace(string(out)), "git-http-backend"), "apt-get install git")
	s := &server{t: t, root: t.TempDir()}
	done := make(chan struct{})
	h := &cgi.Handler{Path: backend, Env: []string{"GIT_PROJECT_ROOT=" + s.root, "GIT_HTTP_EXPORT_ALL=1"}, InheritEnv: []string{"PATH"}, Stderr: discard{}}
	hs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		if s.stall.Load() {
			select {
			case <-done:
			case <-r.Context().Done():
			}
			return
		}
		if u, p, _ := r.BasicAuth(); s.private.Load() && (u != "me" || p != token) {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		// The server of the tests asks for the protocol as a real one does.
		h := *h
		h.Env = append(h.Env, "GIT_PROTOCOL="+r.Header.Get("Git-Protocol"))
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(hs.Close)
	t.Cleanup(func() { close(done) })
	s.url = "git+" + hs.URL
	return s
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

// git runs git in dir as somebody who commits.
func (s *server) git(dir string, args ...string) string {
	s.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.root, "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// commit makes, or continues, a repository with these files and returns the
// commit.
func (s *server) commit(name string, files map[string]string) string {
	s.t.Helper()
	dir := filepath.Join(s.root, name)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		s.git(s.root, "init", "-q", "-b", "main", dir)
	}
	for p, text := range files {
		p = filepath.Join(dir, p)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			s.t.Fatal(err)
		}
		if to, ok := strings.CutPrefix(text, "-> "); ok {
			if err := os.Symlink(to, p); err != nil {
				s.t.Fatal(err)
			}
			continue
		}
		if err := os.WriteFile(p, []byte(text), 0o755); err != nil {
			s.t.Fatal(err)
		}
	}
	s.git(dir, "add", "-A")
	s.git(dir, "commit", "-q", "--allow-empty", "-m", "x")
	return s.git(dir, "rev-parse", "HEAD")
}

func get(t *testing.T, c checkout.Cache, ref string, ask checkout.Ask) (checkout.Tree, error) {
	t.Helper()
	s, err := checkout.Parse(ref)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return c.Get(ctx, s, ask)
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

func TestACommitBecomesFiles(t *testing.T) {
	s := serve(t)
	first := s.commit("k", map[string]string{"kit/kit.yaml": "one", "kit/run": "#!", "kit/link": "-> run", "kit/up/back": "-> ../run", "other": "not wanted", "kit/.gitattributes": "* export-ignore filter=evil\n"})
	s.git(filepath.Join(s.root, "k"), "tag", "-a", "v1", "-m", "annotated")
	s.git(filepath.Join(s.root, "k"), "branch", "same")
	var said []string
	c := checkout.Cache{Dir: t.TempDir(), Notice: func(l string) { said = append(said, l) }}
	tree, err := get(t, c, s.url+"/k#ref=main&dir=kit", checkout.IfUnknown)
	if err != nil || tree.Commit != first || tree.File != "" {
		t.Fatalf("%+v, %v", tree, err)
	}
	if read(t, tree.Dir+"/kit.yaml") != "one" || read(t, tree.Dir+"/link") != "#!" || read(t, tree.Dir+"/up/back") != "#!" || read(t, tree.Dir+"/.gitattributes") == "" {
		t.Error("not what was committed")
	}
	if st, err := os.Stat(tree.Dir + "/run"); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", st, err)
	}
	if es, err := os.ReadDir(filepath.Dir(filepath.Dir(tree.Dir))); err != nil || len(es) != 2 { // the tree and refs.json
		t.Errorf("left: %v, %v", es, err)
	}
	if len(said) != 1 || !strings.Contains(said[0], first) {
		t.Errorf("said %q", said)
	}

	// A name that is known is not asked about, unless that is wanted.
	second := s.commit("k", map[string]string{"kit/kit.yaml": "two"})
	n := s.requests.Load()
	for _, ask := range []checkout.Ask{checkout.IfUnknown, checkout.Never} {
		if again, err := get(t, c, s.url+"/k#ref=main&dir=kit", ask); err != nil || again != tree || s.requests.Load() != n {
			t.Errorf("%+v, %v, %d requests", again, err, s.requests.Load()-n)
		}
	}
	if again, err := get(t, c, s.url+"/k#ref=main&dir=kit", checkout.Always); err != nil || again.Commit != second || read(t, again.Dir+"/kit.yaml") != "two" {
		t.Errorf("%+v, %v", again, err)
	}
	for ref, want := range map[string]string{"v1": first, "refs/tags/v1": first, "same": first, first: first, "": second, "refs/heads/main": second} {
		if tree, err := get(t, c, s.url+"/k?ref="+ref, checkout.IfUnknown); err != nil || tree.Commit != want {
			t.Errorf("%s: %+v, %v", ref, tree, err)
		}
	}
	// A file is its directory's, by docker's spelling as well.
	if tree, err := get(t, c, s.url+"/k#v1:kit/kit.yaml", checkout.IfUnknown); err != nil || tree.File != "kit.yaml" || read(t, tree.Dir+"/kit.yaml") != "one" {
		t.Errorf("%+v, %v", tree, err)
	}
	for ref, want := range map[string]string{"#ref=none": "no branch or tag none", "#ref=main&dir=none": "has no none", "#ref=" + strings.Repeat("1", 40): "git says"} {
		if _, err := get(t, c, s.url+"/k"+ref, checkout.IfUnknown); !errors.Is(err, kiterr.ErrNotFound) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", ref, err)
		}
	}
	if _, err := get(t, c, s.url+"/none", checkout.IfUnknown); !errors.Is(err, kiterr.ErrNotFound) {
		t.Error(err)
	}
	if _, err := get(t, checkout.Cache{Dir: t.TempDir()}, s.url+"/k", checkout.Never); !errors.Is(err, kiterr.ErrNotFound) {
		t.Error(err)
	}
}

func TestHostileRepositories(t *testing.T) {
	s := serve(t)
	evil := filepath.Join(t.TempDir(), "evil")
	s.commit("inner", map[string]string{"f": "x"})
	s.commit("submodule", map[string]string{"kit.yaml": "x"})
	s.git(filepath.Join(s.root, "submodule"), "update-index", "--add", "--cacheinfo", "160000,"+strings.Repeat("1", 40)+",sub")
	s.git(filepath.Join(s.root, "submodule"), "commit", "-q", "-m", "sub")
	s.commit("absolute", map[string]string{"l": "-> /etc/passwd"})
	s.commit("climbing", map[string]string{"d/l": "-> ../../x"})
	s.commit("out-of-dir", map[string]string{"kit/l": "-> ../secret", "secret": "s"})
	s.commit("through", map[string]string{"a/b/c/f": "", "x/up": "-> ../a/b/c", "x/l": "-> up/../../../../y"})
	s.commit("loop", map[string]string{"a": "-> b", "b": "-> a"})
	s.commit("large", map[string]string{"f": strings.Repeat("x", 2<<20)}) // packs well
	many := map[string]string{}
	for i := range 30 {
		many[strings.Repeat("d/", i)+"f"] = "x"
	}
	s.commit("many", many)
	for name, want := range map[string]string{
		"submodule": "sub is a submodule", "absolute": "leads out", "climbing": "leads out", "out-of-dir#dir=kit": "leads out",
		"through": "leads out", "loop": "leads out", "large": "more than 1048576 bytes", "many": "more than 40 files",
	} {
		dir := t.TempDir()
		c := checkout.Cache{Dir: dir, Limits: checkout.Limits{Bytes: 1 << 20, Entries: 40}}
		if _, err := get(t, c, s.url+"/"+name, checkout.IfUnknown); !errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
		left, err := filepath.Glob(filepath.Join(dir, "*", "*"))
		if err != nil || len(left) != 1 || filepath.Base(left[0]) != "refs.json" {
			t.Errorf("%s left %v", name, left)
		}
	}

	// A pack that is too large is cut off while it comes.
	noise := make([]byte, 3<<20)
	for i := range noise {
		noise[i] = byte(i*i>>7 ^ i>>3*i)
	}
	s.commit("noise", map[string]string{"f": string(noise[:1<<20-1]), "g": string(noise[1<<20:])})
	if _, err := get(t, checkout.Cache{Dir: t.TempDir(), Limits: checkout.Limits{Bytes: 64 << 10}}, s.url+"/noise", checkout.IfUnknown); !errors.Is(err, kiterr.ErrRefused) {
		t.Errorf("a large pack: %v", err)
	}

	// Nobody's configuration has a say, hooks and helpers in it included.
	user := t.TempDir()
	text := "[core]\n\thooksPath = " + user + "\n\tfsmonitor = touch " + evil + "\n[credential]\n\thelper = \"!touch " + evil + "\"\n[filter \"evil\"]\n\tsmudge = touch " + evil + "\n[url \"file:///\"]\n\tinsteadOf = http://\n"
	if err := errors.Join(
		os.WriteFile(filepath.Join(user, ".gitconfig"), []byte(text), 0o644),
		os.WriteFile(filepath.Join(user, "reference-transaction"), []byte("#!/bin/sh\ntouch "+evil+"\n"), 0o755),
	); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", user)
	t.Setenv("GIT_CONFIG_COUNT", "1")
	t.Setenv("GIT_CONFIG_KEY_0", "core.hooksPath")
	t.Setenv("GIT_CONFIG_VALUE_0", user)
	s.commit("good", map[string]string{"f": "x", ".gitattributes": "* filter=evil\n"})
	if tree, err := get(t, checkout.Cache{Dir: t.TempDir()}, s.url+"/good", checkout.IfUnknown); err != nil || read(t, tree.Dir+"/f") != "x" {
		t.Errorf("%+v, %v", tree, err)
	}
	if _, err := os.Stat(evil); err == nil {
		t.Error("something of the user's configuration ran")
	}
}

func TestAServerThatStallsIsLeft(t *testing.T) {
	s := serve(t)
	s.stall.Store(true)
	c := checkout.Cache{Dir: t.TempDir(), Limits: checkout.Limits{Time: 300 * time.Millisecond}}
	if _, err := get(t, c, s.url+"/k", checkout.IfUnknown); !errors.Is(err, kiterr.ErrUnavailable) || !strings.Contains(err.Error(), "took longer than 300ms") {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	source, err := checkout.Parse(s.url + "/k")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(ctx, source, checkout.Always); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestParse(t *testing.T) {
	for ref, want := range map[string]checkout.Source{
		"git+https://Host.example/a/b.git":            {URL: "https://host.example/a/b.git"},
		"git+https://h/k#ref=v3.1&dir=lamp":           {URL: "https://h/k", Ref: "v3.1", Dir: "lamp"},
		"git+https://h/k?ref=v1#dir=./a//b/":          {URL: "https://h/k", Ref: "v1", Dir: "a/b"},
		"git+https://h/k#main":                        {URL: "https://h/k", Ref: "main"},
		"git+https://h/k#main:x/y.yaml":               {URL: "https://h/k", Ref: "main", Dir: "x/y.yaml"},
		"git+https://h/k#:x":                          {URL: "https://h/k", Dir: "x"},
		"git+http://127.0.0.1:8080/k#ref=feature%2Fx": {URL: "http://127.0.0.1:8080/k", Ref: "feature/x"},
		"git+http://localhost/k#dir=.":                {URL: "http://localhost/k"},
	} {
		got, err := checkout.Parse(ref)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", ref, got, err)
		}
		if again, err := checkout.Parse(got.String()); err != nil || again != got {
			t.Errorf("%s is written %s, which is %+v, %v", ref, got, again, err)
		}
	}
	for _, ref := range []string{
		"https://h/k", "git+ssh://h/k", "git+http://h/k", "git+file:///k", "git+https://h", "git+https:///k", "git+https://me:secret@h/k",
		"git+https://h/k#dir=../x", "git+https://h/k#dir=/x", "git+https://h/k#ref=--upload-pack=x", "git+https://h/k#ref=a..b", "git+https://h/k#ref=a%20b",
		"git+https://h/k#ref=a&ref=b", "git+https://h/k#branch=x", "git+https://h/k?ref=a#ref=b", "git+https://h/k#ref=a*", "git+ext::sh -c x",
	} {
		if s, err := checkout.Parse(ref); !errors.Is(err, kiterr.ErrRefused) {
			t.Errorf("%s: %+v, %v", ref, s, err)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("the login is shown: %v", err)
		}
	}
}
