package e2e

import (
	"bufio"
	"encoding/base64"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// A corporate is an HTTP proxy with a login that knows names which nobody else
// knows: all of them are one address.
type corporate struct {
	addr string
	mu   sync.Mutex
	seen []string // guarded by mu
}

func newCorporate(t *testing.T, target, login string) *corporate {
	t.Helper()
	p := new(corporate)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.addr = l.Addr().String()
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte(login))
	var done sync.WaitGroup
	done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			done.Go(func() {
				defer c.Close()
				c.SetDeadline(time.Now().Add(time.Minute))
				r := bufio.NewReader(c)
				req, err := http.ReadRequest(r)
				if err != nil {
					return
				}
				p.mu.Lock()
				p.seen = append(p.seen, req.Method+" "+req.RequestURI)
				p.mu.Unlock()
				if req.Header.Get("Proxy-Authorization") != want {
					io.WriteString(c, "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
					return
				}
				up, err := net.Dial("tcp", target)
				if err != nil {
					return
				}
				defer up.Close()
				io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
				go func() { io.Copy(up, r); up.(*net.TCPConn).CloseWrite() }()
				io.Copy(c, up)
			})
		}
	})
	t.Cleanup(func() { l.Close(); done.Wait() })
	return p
}

func (p *corporate) requests() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.seen, "\n")
}

func TestTheOutsideIsReachedThroughTheProxyOfTheHost(t *testing.T) {
	h := newHub(t, "passed.hub.test", "looked.hub.test", "registry.hub.test", "auth.hub.test")
	p := newCorporate(t, h.addr, "me:proxy-secret")
	t.Setenv("KITBOX_UPSTREAM_CA", h.ca)
	t.Setenv("HTTPS_PROXY", "http://me:proxy-secret@"+p.addr)
	t.Setenv("NO_PROXY", "direct.hub.test")
	dir := kit(t, `  - type: com.docker.sandbox/network-policy@2
    config: {runtime: {allow: [passed.hub.test, direct.hub.test, {hosts: [looked.hub.test], methods: [GET]}]}}
`)
	shown := kitbox(t, "plan", dir)
	if text := shown.Stdout + shown.Stderr; !strings.Contains(text, "http://"+p.addr) || !strings.Contains(text, "addresses judged only where they resolve here too") {
		t.Errorf("plan: %+v", shown)
	}
	create(t, "behind", "-q", dir)
	get := func(args string) string {
		t.Helper()
		o := kitbox(t, "exec", "behind", "--", "sh", "-c", "curl -sS -o /dev/null -w '%{http_code}' --max-time 20 "+args)
		return strings.TrimSpace(o.Stdout + o.Stderr)
	}
	// 401 is the answer of the host, by either way.
	for _, name := range []string{"passed", "looked"} {
		if got := get("https://" + name + ".hub.test/v2/"); got != "401" {
			t.Errorf("%s: %s\n%s", name, got, p.requests())
		}
	}
	if got := get("-X DELETE https://looked.hub.test/v2/"); got != "403" {
		t.Errorf("a request that is not allowed: %s", got)
	}
	if got := get("https://direct.hub.test/"); !strings.HasPrefix(got, "000") {
		t.Errorf("a name that is reached without the proxy: %s", got)
	}
	if got := get("https://other.hub.test/"); !strings.HasPrefix(got, "000") {
		t.Errorf("a name that is not allowed: %s", got)
	}
	want := "CONNECT passed.hub.test:443\nCONNECT looked.hub.test:443"
	if got := p.requests(); got != want {
		t.Errorf("the proxy was asked for\n%s\nwant\n%s", got, want)
	}
	log := ok(t, "policy", "log", "behind", "--json")
	if !strings.Contains(log, "through the proxy http://"+p.addr) {
		t.Errorf("log: %s", log)
	}
	for _, text := range []string{log, ok(t, "inspect", "behind"), shown.Stdout + shown.Stderr, ok(t, "exec", "-u", "root", "behind", "--", "sh", "-c", "env; cat /proc/[0-9]*/environ 2>/dev/null; true")} {
		if strings.Contains(text, "proxy-secret") {
			t.Error("the login of the proxy is shown")
		}
	}

	// Without the login, which is recorded nowhere, the proxy is still the one
	// that was there when the sandbox was made, and says what it wants.
	ok(t, "stop", "behind")
	t.Setenv("HTTPS_PROXY", "")
	ok(t, "start", "behind")
	if got := get("https://passed.hub.test/v2/"); !strings.HasPrefix(got, "000") {
		t.Errorf("without the login: %s", got)
	}
	if log := ok(t, "policy", "log", "behind"); !strings.Contains(log, "wants a login") {
		t.Errorf("log: %s", log)
	}

	// Registries are reached in the same way.
	t.Setenv("HTTPS_PROXY", "http://me:proxy-secret@"+p.addr)
	t.Setenv("SSL_CERT_FILE", h.ca)
	o := kitbox(t, "pull", "registry.hub.test/team/none:1")
	if o.Code == 0 || !strings.Contains(p.requests(), "CONNECT registry.hub.test:443") || strings.Contains(o.Stderr, "proxy-secret") {
		t.Errorf("pull: %+v\n%s", o, p.requests())
	}
}
