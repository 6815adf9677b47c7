package mirror_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/mirror"
	"github.com/kitbox-dev/kitbox/kiterr"
)

func TestRead(t *testing.T) {
	home, user := t.TempDir(), t.TempDir()
	env := func(name string) string { return map[string]string{"HOME": user}[name] }
	if c, err := mirror.Read(home, env); err != nil || c.Of("docker.io") != nil {
		t.Errorf("nothing configured: %+v, %v", c, err)
	}
	write := func(name, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(user, ".config/kitbox", mirror.File), `{"version":1,"mirrors":{"docker.io":[{"host":"of.the.user:5000","prefix":"hub","tags":true}]}}`)
	c, err := mirror.Read(home, env)
	if want := (mirror.Mirror{Host: "of.the.user:5000", Prefix: "hub", Tags: true}); err != nil || len(c.Of("docker.io")) != 1 || c.Of("docker.io")[0] != want {
		t.Errorf("the user's: %+v, %v", c, err)
	}
	write(filepath.Join(home, mirror.File), `{"version":1,"mirrors":{}}`)
	if c, err := mirror.Read(home, env); err != nil || len(c.Mirrors) > 0 {
		t.Errorf("the home's wins: %+v, %v", c, err)
	}
	for text, want := range map[string]string{
		`{`:             "EOF",
		`{"version":2}`: "version 2",
		`{"version":1,"mirrors":{"a.b":[{"host":"https://x"}]}}`:              "mirrors.a.b[0].host",
		`{"version":1,"mirrors":{"a.b":[{"host":"a.b"}]}}`:                    "itself",
		`{"version":1,"mirrors":{"a.b":[{"host":"x","prefix":"/p"}]}}`:        "slash",
		`{"version":1,"mirrors":{"a.b":[{"host":"x","plainHTTP":true}]}}`:     "plainHTTP",
		`{"version":1,"registries":{}}` + strings.Repeat(" ", mirror.Version): "registries",
	} {
		write(filepath.Join(home, mirror.File), text)
		if _, err := mirror.Read(home, env); !errors.Is(err, kiterr.ErrUnsupported) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), home) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
