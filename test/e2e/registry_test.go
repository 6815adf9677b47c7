package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const registered = "  - type: com.docker.sandbox/kit-registry@1\n"

// piece is a mixin that a sandbox can fetch and push.
func piece(t *testing.T) string {
	t.Helper()
	return write(t, map[string]string{"kit.yaml": "# syntax=docker/sandbox-kit:3\nschemaVersion: \"3\"\nkind: mixin\nprovides: [piece@1.2.3]\n" +
		"build: |\n  FROM scratch\n  COPY <<EOT /piece.txt\n  a piece\n  EOT\n"})
}

func TestASandboxReadsAndPushesKitsOfTheStore(t *testing.T) {
	ok(t, "build", "-q", "-t", "kitbox.local/kits/team/piece:1", piece(t))
	ok(t, "build", "-q", "-t", "hidden:1", piece(t))
	t.Cleanup(func() {
		for _, name := range []string{"kitbox.local/kits/team/piece:1", "hidden:1", "kitbox.local/sandboxes/publisher/mine:2"} {
			kitbox(t, "image", "rm", name)
		}
	})
	create(t, "publisher", "-q", kit(t, registered))
	create(t, "onlooker", "-q", kit(t, registered))
	create(t, "outsider", "-q", kit(t, "  - type: com.docker.sandbox/network-policy@1\n    config: {runtime: {allow: ['**', registry.kitbox.internal]}}\n"))
	get := func(name, script string) string {
		t.Helper()
		o := kitbox(t, "exec", "-u", "root", name, "--", "sh", "-c", script)
		return strings.TrimSpace(o.Stdout + o.Stderr)
	}
	if got := get("publisher", "echo $KIT_REGISTRY"); got != "registry.kitbox.internal" {
		t.Errorf("announced: %q", got)
	}
	for _, scheme := range []string{"http", "https"} {
		if got := get("publisher", "curl -sS --max-time 10 "+scheme+"://$KIT_REGISTRY/v2/kits/team/piece/tags/list"); got != `{"name":"kits/team/piece","tags":["1"]}` {
			t.Errorf("%s: %s", scheme, got)
		}
	}
	// Without the grant there is no such name, and no rule makes one.
	if got := get("outsider", "echo -$KIT_REGISTRY-; curl -sS --max-time 10 http://registry.kitbox.internal/v2/ http://198.18.0.6/v2/"); !strings.HasPrefix(got, "--\n") || !strings.Contains(got, "Could not resolve") || strings.Contains(got, "{}") {
		t.Errorf("without the grant: %s", got)
	}
	// Nothing else is opened by the grant.
	if got := get("publisher", "curl -sS --max-time 10 http://registry.kitbox.internal:8080/ http://example.test/"); !strings.Contains(got, "curl: (6)") {
		t.Errorf("beyond the grant: %s", got)
	}
	if got := get("publisher", "curl -sS --max-time 10 -o /dev/null -w '%{http_code}' http://$KIT_REGISTRY/v2/hidden/manifests/1"); got != "404" {
		t.Errorf("another image of the store: %s", got)
	}

	// kitbox itself is a client of registries: it gets the Kit over TLS, which
	// it verifies, and pushes it under a name of its own.
	program, err := os.ReadFile(filepath.Join(bin, "kit-engine"))
	if err != nil {
		t.Fatal(err)
	}
	if o := kitboxIn(t, program, "exec", "-u", "root", "-i", "publisher", "--", "sh", "-c", "cat > /tmp/kitbox && chmod 755 /tmp/kitbox"); o.Code != 0 {
		t.Fatalf("%+v", o)
	}
	client := "export KITBOX_HOME=/tmp/kb; "
	if got := get("publisher", client+"/tmp/kitbox pull $KIT_REGISTRY/kits/team/piece:1 && /tmp/kitbox push $KIT_REGISTRY/kits/team/piece:1 as $KIT_REGISTRY/kits/mine:2 && echo done"); !strings.Contains(got, "\ndone\n") {
		t.Fatalf("pull and push: %s", got)
	}
	if got := get("publisher", client+"/tmp/kitbox push $KIT_REGISTRY/kits/team/piece:1 as $KIT_REGISTRY/kits/team/piece:1"); !strings.Contains(got, "403") && !strings.Contains(got, "denies") {
		t.Errorf("over a name of the host's: %s", got)
	}
	if got := ok(t, "images"); !strings.Contains(got, "kitbox.local/sandboxes/publisher/mine:2") {
		t.Errorf("the host's store:\n%s", got)
	}
	if got := ok(t, "image", "inspect", "kitbox.local/sandboxes/publisher/mine:2"); !strings.Contains(got, "piece@1.2.3") {
		t.Errorf("what was pushed: %s", got)
	}
	if got := get("onlooker", "curl -sS --max-time 10 -o /dev/null -w '%{http_code}' http://$KIT_REGISTRY/v2/kits/mine/manifests/2"); got != "404" {
		t.Errorf("what another sandbox pushed: %s", got)
	}
	if log := ok(t, "policy", "log", "publisher"); !strings.Contains(log, "PUT registry.kitbox.internal/v2/kits/mine/manifests/2: stored sha256:") {
		t.Errorf("log:\n%s", log)
	}
	ok(t, "restart", "publisher")
	if got := get("publisher", "curl -sS --max-time 10 https://$KIT_REGISTRY/v2/kits/mine/tags/list"); !strings.Contains(got, `"2"`) {
		t.Errorf("after a restart: %s", got)
	}
	ok(t, "policy", "deny", "--sandbox", "publisher", "registry.kitbox.internal")
	if got := get("publisher", "curl -sS --max-time 10 https://$KIT_REGISTRY/v2/"); !strings.Contains(got, "curl: (") {
		t.Errorf("denied: %s", got)
	}
}
