package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/needs"
)

// crowd is a recipe with programs of the distribution that keep what they trust in
// places of their own, or run others that do.
const crowd = `build: |
  FROM kitbox.local/base:1
  USER root
  RUN apt-get -q update && apt-get -qy -o Acquire::Retries=3 install --no-install-recommends chromium firefox-esr docker.io iptables && rm -rf /var/lib/apt/lists/*
  USER agent
  ENTRYPOINT ["/bin/echo"]
capabilities:
`

// crowded starts a sandbox with them, in which looked.hub.test is h.
func crowded(t *testing.T, name string, h *hub, capabilities string, args ...string) {
	t.Helper()
	t.Setenv("KITBOX_UPSTREAM_CA", h.ca)
	dir := write(t, map[string]string{"kit.yaml": head + crowd + looked + capabilities})
	// More than half a gigabyte is fetched and packed.
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	o := finish(t, command(ctx, "kitbox", append([]string{"create", "-q", "--name", name, "--build-network", "host", "--route", "looked.hub.test=" + h.addr, dir}, args...)...))
	if o.Code != 0 && strings.Contains(o.Stderr, "apt-get") {
		needs.Lacks(t, "the distribution's mirror cannot be reached: %s", o.Stderr)
	}
	if o.Code != 0 {
		t.Fatal(o.Stderr)
	}
	t.Cleanup(func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if o := finish(t, command(ctx, "kitbox", "rm", "-f", name)); o.Code != 0 {
			t.Error(o.Stderr)
		}
	})
	ok(t, "start", name)
}

// asked is a request that reached the host, with no login.
const asked = "looked.hub.test/v2/ "

// TestBrowsersTrustTheBoundary has two browsers ask a host that is looked into.
func TestBrowsersTrustTheBoundary(t *testing.T) {
	h := newHub(t, "looked.hub.test")
	crowded(t, "browsers", h, "")
	browse := func(how string) string {
		t.Helper()
		o := kitbox(t, "exec", "browsers", "--", "sh", "-c", "cd && timeout -k 1 100 "+how+" https://looked.hub.test/v2/ 2>&1")
		return o.Stdout + o.Stderr
	}
	const chromium, firefox = "chromium --headless=new --no-sandbox --disable-gpu --dump-dom", "firefox-esr --headless --screenshot seen.png"
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

// TestDockerRunsInsideAndTrustsTheBoundary has Docker's engine as the distribution has
// it, without a word of configuration, run and build containers that ask a host which is
// looked into, on a bridge of its own.
func TestDockerRunsInsideAndTrustsTheBoundary(t *testing.T) {
	h := newHub(t, "looked.hub.test")
	crowded(t, "docked", h, "  - type: com.docker.sandbox/privileged@1\n  - type: com.docker.sandbox/volume@1\n    config: {path: /var/lib/docker}\n", "--allow-privileged")
	in := func(script string) string {
		t.Helper()
		o := kitbox(t, "exec", "-u", "root", "docked", "--", "sh", "-c", script)
		return o.Stdout + o.Stderr
	}
	ok(t, "exec", "-d", "-u", "root", "docked", "--", "sh", "-c", "exec dockerd >/var/log/dockerd.log 2>&1")
	if out := in("for i in $(seq 600); do docker info >/dev/null 2>&1 && exec echo up; sleep 0.1; done; tail -5 /var/log/dockerd.log"); out != "up\n" {
		t.Fatalf("the engine: %s", out)
	}
	if out := in("docker info 2>/dev/null | grep 'Storage Driver'"); !strings.Contains(out, "overlay2") {
		t.Errorf("on a volume it has %s", out)
	}
	in("tar -C / --one-file-system -c bin sbin lib lib64 usr/bin usr/lib/x86_64-linux-gnu usr/lib/aarch64-linux-gnu usr/lib64 usr/lib/ssl etc/passwd etc/ssl/openssl.cnf etc/nsswitch.conf 2>/dev/null | docker import - base")
	const ask = "curl -sS -o /dev/null -w status:%{http_code} --max-time 30 https://looked.hub.test/v2/"
	in("mkdir -p /b && printf 'FROM base\nRUN " + strings.ReplaceAll(ask, "%", "%%") + "\n' >/b/Dockerfile")
	for what, how := range map[string]string{"a container": `docker run --rm base sh -c "` + ask + `"`, "a build": "DOCKER_BUILDKIT=0 docker build --no-cache /b", "a build of BuildKit": "DOCKER_BUILDKIT=1 docker build --no-cache --progress plain /b"} {
		before := strings.Count(h.requests(), asked)
		if out := in(how + " 2>&1"); !strings.Contains(out, "status:401") || strings.Count(h.requests(), asked) != before+1 {
			t.Errorf("%s: %s", what, out)
		}
	}
	// And is under the policy as all else.
	if out := in(`docker run --rm base sh -c "curl -sS -X POST -w status:%{http_code} -o /dev/null https://looked.hub.test/v2/; curl -sS --max-time 5 https://other.hub.test/ && echo out" 2>&1`); !strings.Contains(out, "status:403") || strings.Contains(out, "out\n") {
		t.Errorf("past the policy: %s", out)
	}
}
