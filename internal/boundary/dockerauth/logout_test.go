package dockerauth

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/secret"
)

// A cabinet holds a login that can be taken away.
type cabinet struct{ login atomic.Pointer[Login] }

func (c *cabinet) find(context.Context, plan.DockerAuth) (Login, error) {
	if l := c.login.Load(); l != nil {
		return *l, nil
	}
	return Login{}, errors.New("no login")
}

// TestALogoutHoldsFromTheNextRequestOn also for tokens that the login was exchanged for
// before.
func TestALogoutHoldsFromTheNextRequestOn(t *testing.T) {
	h := newHub(t)
	var c cabinet
	c.login.Store(&realLogin)
	p, _ := presenter(t, c.find)
	h.ask(t, p, "registry.test", "GET", "/v2/", "", "")
	_, body, _ := h.ask(t, p, "auth.test", "POST", "/token", "", "grant_type=password&username=kitbox&service=s&password="+standIn)
	var tokens struct {
		Token   string `json:"token"`
		Refresh string `json:"refresh_token"`
	}
	if err := json.Unmarshal([]byte(body), &tokens); err != nil || tokens.Refresh == "" {
		t.Fatalf("%s, %v", body, err)
	}
	pull := func() bool {
		h.ask(t, p, "registry.test", "GET", "/v2/x/manifests/1", "Bearer "+tokens.Token, "")
		return strings.Contains(h.last(), "REAL-TOKEN")
	}
	refresh := func() (int, string) {
		code, _, _ := h.ask(t, p, "auth.test", "POST", "/token", "", "grant_type=refresh_token&service=s&refresh_token="+tokens.Refresh)
		return code, h.last()
	}
	if code, saw := refresh(); !pull() || code != 200 || !strings.Contains(saw, "REAL-REFRESH") {
		t.Fatalf("with the login: %d, %s", code, saw)
	}

	c.login.Store(nil)
	if pull() {
		t.Error("after the logout the registry is shown a token of the login")
	}
	if l := h.log[len(h.log)-1]; !l.failed || !strings.Contains(l.why, "no login") {
		t.Errorf("the log says %+v", l)
	}
	before := h.last()
	if code, saw := refresh(); code == 200 || saw != before {
		t.Errorf("after the logout a token is refreshed: %d, %s", code, saw)
	}

	// Another login has nothing of that one.
	c.login.Store(&Login{Username: "another", Password: secret.New([]byte("another-password"))})
	if pull() {
		t.Error("another login is shown the token of the first")
	}
	if code, saw := refresh(); code != 200 || strings.Contains(saw, "REAL-REFRESH") || strings.Contains(saw, password) || !strings.Contains(saw, "another-password") {
		t.Errorf("a refresh with another login: %d, %s", code, saw)
	}
}

// TestARequestDoesNotWaitForAnothersHelper has two, of which one asks a helper that
// does not answer.
func TestARequestDoesNotWaitForAnothersHelper(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	var asked atomic.Int32
	g := &grant{}
	source := func(context.Context, plan.DockerAuth) (Login, error) {
		if asked.Add(1) == 1 {
			close(entered)
			<-release
		}
		return realLogin, nil
	}
	done := make(chan error, 1)
	go func() { _, err := g.find(t.Context(), source); done <- err }()
	<-entered
	if l, err := g.find(t.Context(), source); err != nil || l.Username != user {
		t.Errorf("the second: %+v, %v", l, err)
	}
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
}
