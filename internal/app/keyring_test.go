package app

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

func TestALoginIsReadAgainWhenDockersConfigurationChanges(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "config.json")
	at := plan.DockerAuth{Registry: "registry.example", Config: dir}
	var k keyring
	ask := func() (string, error) {
		l, err := k.Login(t.Context(), at)
		return l.Username + ":" + string(l.Password.Expose()), err
	}
	for _, c := range []struct{ content, want string }{
		{`{"auths":{"registry.example":{"auth":"YTpi"}}}`, "a:b"},
		{`{"auths":{"registry.example":{"auth":"YTpj"}}}`, "a:c"}, // of the same length, a moment later
		{`{"auths":{}}`, ""},
		{`{"auths":{"registry.example":{"auth":"YTpi"}}}`, "a:b"},
	} {
		if err := os.WriteFile(config, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := ask()
		if c.want == "" {
			if err == nil {
				t.Errorf("after a logout: %q", got)
			}
		} else if got != c.want || err != nil {
			t.Errorf("%s: %q, %v", c.content, got, err)
		}
	}
}

func TestAHelperIsNotAskedForEveryRequest(t *testing.T) {
	dir := t.TempDir()
	at := plan.DockerAuth{Registry: "registry.example", Config: dir}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	asked := 0
	k := keyring{find: func(context.Context, string, string) (fetch.Login, error) {
		asked++
		return fetch.Login{Username: "u", Password: "p"}, nil
	}}
	ask := func() {
		if _, err := k.Login(t.Context(), at); err != nil {
			t.Fatal(err)
		}
	}
	// The file is too new to tell a change by its time.
	ask()
	ask()
	if asked != 2 {
		t.Errorf("asked %d times about a new file", asked)
	}
	later := time.Minute
	k.now = func() time.Time { return time.Now().Add(later) }
	ask()
	before := asked
	for range 10 {
		ask()
	}
	if asked != before {
		t.Errorf("asked %d times about an old file", asked-before)
	}
	later += loginAge
	ask()
	if asked != before+1 {
		t.Errorf("asked %d times after its age", asked-before)
	}
}

func TestAHelperThatHangsHoldsNobodyBeyondItsPatience(t *testing.T) {
	hang, entered := make(chan struct{}), make(chan struct{}, 2)
	k := keyring{find: func(ctx context.Context, _, _ string) (fetch.Login, error) {
		entered <- struct{}{}
		select {
		case <-hang:
		case <-ctx.Done():
		}
		return fetch.Login{}, errors.New("a helper that was ended")
	}}
	at := plan.DockerAuth{Registry: "registry.example", Config: t.TempDir()}
	first := make(chan error, 1)
	go func() { _, err := k.Login(t.Context(), at); first <- err }()
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	second := make(chan error, 1)
	go func() { _, err := k.Login(ctx, at); second <- err }()
	cancel()
	select {
	case err := <-second:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("a request waits for another's helper although it has ended")
	}
	close(hang)
	if err := <-first; err == nil {
		t.Error("no error of a helper that failed")
	}
}
