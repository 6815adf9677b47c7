package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/needs"
)

// TestBrowsersTrustTheBoundary has two browsers of the distribution ask a host that is
// looked into. Each keeps what it trusts in a place of its own.
func TestBrowsersTrustTheBoundary(t *testing.T) {
	h := newHub(t, "looked.hub.test")
	t.Setenv("KITBOX_UPSTREAM_CA", h.ca)
	dir := write(t, map[string]string{"kit.yaml": head + `build: |
  FROM kitbox.local/base:1
  USER root
  RUN apt-get -q update && apt-get -qy -o Acquire::Retries=3 install --no-install-recommends chromium firefox-esr && rm -rf /var/lib/apt/lists/*
  USER agent
  ENTRYPOINT ["/bin/echo"]
capabilities:
` + looked})
	// Half a gigabyte is fetched and packed.
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	o := finish(t, command(ctx, "kitbox", "create", "-q", "--name", "browsers", "--build-network", "host", "--route", "looked.hub.test="+h.addr, dir))
	if o.Code != 0 && strings.Contains(o.Stderr, "apt-get") {
		needs.Lacks(t, "no browsers can be had of the distribution's mirror: %s", o.Stderr)
	}
	if o.Code != 0 {
		t.Fatal(o.Stderr)
	}
	t.Cleanup(func() { ok(t, "rm", "-f", "browsers") })
	ok(t, "start", "browsers")
	browse := func(how string) string {
		t.Helper()
		o := kitbox(t, "exec", "browsers", "--", "sh", "-c", "cd && timeout -k 1 100 "+how+" https://looked.hub.test/v2/ 2>&1")
		return o.Stdout + o.Stderr
	}
	const chromium, firefox = "chromium --headless=new --no-sandbox --disable-gpu --dump-dom", "firefox-esr --headless --screenshot seen.png"
	const asked = "looked.hub.test/v2/ " // with no login
	for name, how := range map[string]string{"chromium": chromium, "firefox": firefox} {
		before := strings.Count(h.requests(), asked)
		if out := browse(how); strings.Count(h.requests(), asked) == before {
			t.Errorf("%s did not reach the host:\n%s", name, out)
		}
	}
	// What they need for that is the policy.
	ok(t, "exec", "-u", "root", "browsers", "--", "rm", "/etc/chromium/policies/managed/00-kitbox.json")
	before := h.requests()
	if out := browse(chromium); !strings.Contains(out, "ERR_CERT_AUTHORITY_INVALID") || h.requests() != before {
		t.Errorf("without it:\n%s", out)
	}
}
