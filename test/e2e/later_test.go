package e2e

import (
	"strings"
	"testing"
)

// TestARuleAboutRequestsCanComeLater adds one to a sandbox that was made without:
// clients that use the image's store need nothing new.
func TestARuleAboutRequestsCanComeLater(t *testing.T) {
	h := newHub(t, "passed.hub.test")
	t.Setenv("KITBOX_UPSTREAM_CA", h.ca)
	create(t, "later", "-q", "--route", "passed.hub.test="+h.addr, kit(t, "  - type: com.docker.sandbox/network-policy@1\n    config: {runtime: {allow: [passed.hub.test]}}\n"))
	in := func(script string) string {
		t.Helper()
		o := kitbox(t, "exec", "later", "--", "sh", "-c", script)
		return strings.TrimSpace(o.Stdout + o.Stderr)
	}
	if got := in("env | grep -c CERT"); got != "0" {
		t.Errorf("variables: %s", got)
	}
	code := "curl -sS -o /dev/null -w '%{http_code} ' --max-time 20 "
	issuer := "; echo | openssl s_client -connect passed.hub.test:443 -servername passed.hub.test 2>/dev/null | grep -m1 -i issuer"
	// Passed through, with the host's own certificate, whose authority is the
	// operator's.
	if got := in(code + "-X DELETE https://passed.hub.test/v2/" + issuer); !strings.HasPrefix(got, "401") || !strings.Contains(got, "hub") {
		t.Errorf("passed through: %s", got)
	}
	ok(t, "policy", "deny", "--sandbox", "later", "passed.hub.test", "--method", "DELETE")
	if got := in(code + "https://passed.hub.test/v2/; " + code + "-X DELETE https://passed.hub.test/v2/" + issuer); !strings.HasPrefix(got, "401 403") || !strings.Contains(got, "kitbox") {
		t.Errorf("looked into: %s", got)
	}
	// One that trusts nothing of the image's is told what to do.
	in("python3 -c 'import ssl,socket; c=ssl.create_default_context(cafile=\"/usr/local/share/ca-certificates/kitbox-1.crt\"); c.wrap_socket(socket.create_connection((\"passed.hub.test\",443)),server_hostname=\"passed.hub.test\")'")
	if log := ok(t, "policy", "log", "later"); !strings.Contains(log, "recreate the sandbox") {
		t.Errorf("log:\n%s", log)
	}
}
