package checkout_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/checkout"
	"github.com/kitbox-dev/kitbox/kiterr"
)

const token = "t0k/en:with@signs%41"

// TestPrivateRepositories has a server that lets me:token in, and every way in
// which a user tells git of logins.
func TestPrivateRepositories(t *testing.T) {
	s := serve(t)
	s.private.Store(true)
	commit := s.commit("k", map[string]string{"kit.yaml": "private"})
	ref := s.url + "/k#ref=main"
	host := strings.TrimPrefix(s.url, "git+http://")

	home := t.TempDir()
	clean := func(t *testing.T) {
		t.Setenv("HOME", home)
		t.Setenv("XDG_CONFIG_HOME", home)
		t.Setenv("GIT_CONFIG_GLOBAL", filepath.Join(home, "none"))
		t.Setenv("GIT_CONFIG_NOSYSTEM", "1")
		for _, name := range []string{"GIT_ASKPASS", "SSH_ASKPASS", "NETRC"} {
			t.Setenv(name, "")
			os.Unsetenv(name)
		}
	}
	script := func(t *testing.T, text string) string {
		t.Helper()
		p := filepath.Join(t.TempDir(), "helper")
		if err := os.WriteFile(p, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
		return p
	}
	good := map[string]func(t *testing.T){
		"a helper": func(t *testing.T) {
			config := filepath.Join(t.TempDir(), "config")
			h := script(t, "[ $1 = get ] && printf 'username=me\\npassword=%s\\n' '"+token+"'\n")
			if err := os.WriteFile(config, []byte("[credential \"http://"+host+"\"]\n\thelper = "+h+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			t.Setenv("GIT_CONFIG_GLOBAL", config)
		},
		"askpass": func(t *testing.T) {
			t.Setenv("GIT_ASKPASS", script(t, "case $1 in Username*) echo me;; *) echo '"+token+"';; esac\n"))
		},
		"netrc": func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "netrc")
			if err := os.WriteFile(file, []byte("machine 127.0.0.1 login me password "+token+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			t.Setenv("NETRC", file)
		},
	}
	for name, prepare := range good {
		t.Run(name, func(t *testing.T) {
			clean(t)
			prepare(t)
			c := checkout.Cache{Dir: t.TempDir()}
			tree, err := get(t, c, ref, checkout.Always)
			if err != nil || tree.Commit != commit || read(t, tree.Dir+"/kit.yaml") != "private" {
				t.Fatalf("%+v, %v", tree, err)
			}
			nowhere(t, c.Dir)
		})
	}
	for name, c := range map[string]struct {
		prepare func(t *testing.T)
		says    string
	}{
		"nobody knows": {func(*testing.T) {}, "wants a login, and no credential helper"},
		"a wrong one": {func(t *testing.T) {
			t.Setenv("GIT_ASKPASS", script(t, "echo wrong-"+token+"\n"))
		}, "wants a login, and refuses"},
		"a helper that fails": {func(t *testing.T) { t.Setenv("GIT_ASKPASS", script(t, "echo "+token+" >&2; exit 1\n")) }, "wants a login"},
		"an open netrc": {func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "netrc")
			if err := os.WriteFile(file, []byte("machine 127.0.0.1 login me password "+token+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			t.Setenv("NETRC", file)
		}, "chmod 600"},
		// A repository around must not say who is asked.
		"a helper of the directory": {func(t *testing.T) {
			dir := t.TempDir()
			s.git(dir, "init", "-q", ".")
			s.git(dir, "config", "credential.helper", script(t, "printf 'username=me\\npassword=%s\\n' '"+token+"'\n"))
			t.Chdir(dir)
		}, "wants a login, and no credential helper"},
	} {
		t.Run(name, func(t *testing.T) {
			clean(t)
			c.prepare(t)
			cache := checkout.Cache{Dir: filepath.Join(mustGetwd(t), ".kitbox-test-cache")}
			t.Cleanup(func() { os.RemoveAll(cache.Dir) })
			tree, err := get(t, cache, ref, checkout.Always)
			if !errors.Is(err, kiterr.ErrNotFound) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%+v, %v", tree, err)
			}
			if err != nil && strings.Contains(err.Error(), "t0k") {
				t.Errorf("the login is shown: %v", err)
			}
			nowhere(t, cache.Dir)
		})
	}
	// A server that sends somebody elsewhere does not have the login sent along.
	t.Run("a redirect", func(t *testing.T) {
		clean(t)
		var leaked atomic.Int32
		thief := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "" {
				leaked.Add(1)
			}
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		}))
		defer thief.Close()
		door := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") == "" {
				w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			http.Redirect(w, r, strings.Replace(thief.URL, "127.0.0.1", "localhost", 1)+r.URL.RequestURI(), http.StatusFound)
		}))
		defer door.Close()
		u, err := url.Parse(door.URL)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "netrc")
		if err := os.WriteFile(file, []byte("machine "+u.Hostname()+" login me password "+token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv("NETRC", file)
		if tree, err := get(t, checkout.Cache{Dir: t.TempDir()}, "git+"+door.URL+"/k", checkout.Always); err == nil {
			t.Errorf("%+v", tree)
		}
		if leaked.Load() > 0 {
			t.Error("the login went where the server sent the client")
		}
	})
}

// A server that was given the login can say it, in whatever it answers afterwards.
func TestALoginThatAServerSaysIsNotShown(t *testing.T) {
	const password = "t0k/en@1"
	basic := base64.StdEncoding.EncodeToString([]byte("me:" + password))
	for name, form := range map[string]string{"plain": password, "in a URL": url.QueryEscape(password), "as it was sent": basic} {
		t.Run(name, func(t *testing.T) {
			line := func(text string) string { return fmt.Sprintf("%04x%s", len(text)+4, text) }
			commit := strings.Repeat("1", 40)
			var asked atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Authorization") == "" {
					w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
					w.WriteHeader(http.StatusUnauthorized)
					return
				}
				w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
				said := commit + " refs/heads/main\x00shallow allow-reachable-sha1-in-want\n"
				if asked.Add(1) > 1 {
					said = "ERR you are " + form // to the fetch, which has the login from the start
				}
				fmt.Fprint(w, line("# service=git-upload-pack\n")+"0000"+line(said)+"0000")
			}))
			defer server.Close()
			file := filepath.Join(t.TempDir(), "netrc")
			if err := os.WriteFile(file, []byte("machine 127.0.0.1 login me password "+password+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			t.Setenv("HOME", t.TempDir())
			t.Setenv("GIT_CONFIG_NOSYSTEM", "1")
			t.Setenv("GIT_ASKPASS", "")
			t.Setenv("NETRC", file)
			_, err := get(t, checkout.Cache{Dir: t.TempDir()}, "git+"+server.URL+"/k#ref=main", checkout.Always)
			if err == nil || !strings.Contains(err.Error(), "you are") {
				t.Fatalf("the server is not heard: %v", err)
			}
			if strings.Contains(err.Error(), form) || !strings.Contains(err.Error(), "REDACTED") {
				t.Errorf("the login is shown: %v", err)
			}
		})
	}
}

// A process that is killed leaves the login that it presented.
func TestWhatAKilledProcessLeftGoesWithTheNextExchange(t *testing.T) {
	s := serve(t)
	s.commit("k", map[string]string{"kit.yaml": "x"})
	cache := checkout.Cache{Dir: t.TempDir()}
	left, young := filepath.Join(cache.Dir, "other", ".tmp-1"), filepath.Join(cache.Dir, "other", ".tmp-2")
	for _, dir := range []string{left, young} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "login"), []byte("http://me:t0k@x\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	past := time.Now().Add(-time.Hour)
	if err := os.Chtimes(left, past, past); err != nil {
		t.Fatal(err)
	}
	if _, err := get(t, cache, s.url+"/k#ref=main", checkout.Always); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was left is there: %v", err)
	}
	if _, err := os.Stat(young); err != nil {
		t.Errorf("what another process does is gone: %v", err)
	}
}

func mustGetwd(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// nowhere sees that no file below dir holds the login.
func nowhere(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(p)
		if strings.Contains(string(data), "t0k") || strings.Contains(string(data), url.QueryEscape(token)) {
			t.Errorf("%s holds the login", p)
		}
		return err
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
