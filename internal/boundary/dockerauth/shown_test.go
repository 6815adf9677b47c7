package dockerauth

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestWhereALoginIsShownIsKnownWithoutIt(t *testing.T) {
	h := newHub(t)
	state := filepath.Join(t.TempDir(), "registries.json")
	p, _ := presenterOf(t, source(realLogin, nil), state)
	at := func(p *Presenter, host string) string { return strings.Join(p.Shown(host, 443), ",") }
	if got := at(p, "registry.test"); got != "docker-auth registry.test" {
		t.Errorf("at the registry: %q", got)
	}
	if got := at(p, "auth.test") + at(p, "other.test"); got != "" {
		t.Errorf("before the registry said anything: %q", got)
	}
	h.ask(t, p, "registry.test", "GET", "/v2/", "", "")
	again, _ := presenterOf(t, source(realLogin, nil), state)
	for _, p := range []*Presenter{p, again} {
		if got := at(p, "auth.test"); got != "docker-auth registry.test" {
			t.Errorf("at its token service: %q", got)
		}
		if got := p.Shown("registry.test", 80); len(got) > 0 {
			t.Errorf("at another port: %q", got)
		}
	}
}
