package control_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/control"
	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/boundary/intercept"
	"github.com/kitbox-dev/kitbox/internal/boundary/proxy"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/upstream"
)

// A corporate is an HTTP proxy as many networks have it: requests are sent to it as
// they are, and tunnels to port 80 are refused, but for one name.
type corporate struct {
	*httptest.Server
	login string // of Proxy-Authorization; empty: it wants none

	mu   sync.Mutex
	seen []string // guarded by mu
}

func newCorporate(t *testing.T, login string, tunnelled string) *corporate {
	p := &corporate{login: login}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.seen = append(p.seen, r.Method+" "+r.RequestURI)
		p.mu.Unlock()
		switch {
		case p.login != "" && r.Header.Get("Proxy-Authorization") != p.login:
			w.Header().Set("Proxy-Authenticate", "Basic realm=x")
			http.Error(w, "who are you", http.StatusProxyAuthRequired)
		case r.Method != http.MethodConnect && r.URL.IsAbs():
			body, _ := io.ReadAll(r.Body)
			fmt.Fprintf(w, "served %s to %s %s", r.RequestURI, r.Host, body)
		case r.Method == http.MethodConnect && strings.HasPrefix(r.RequestURI, "tunnel."):
			up, err := net.Dial("tcp", tunnelled)
			if err != nil {
				t.Error(err)
				return
			}
			defer up.Close()
			c, buf, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
			go func() { io.Copy(up, buf); up.(*net.TCPConn).CloseWrite() }()
			io.Copy(c, up)
		default:
			http.Error(w, "no tunnels there", http.StatusForbidden)
		}
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *corporate) requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string{}, p.seen...)
}

// way reaches everything through p.
func (p *corporate) way(t *testing.T, user *url.Userinfo) func(string, uint16) proxy.Way {
	u, err := url.Parse(p.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = user
	var d upstream.Dialer
	return func(host string, port uint16) proxy.Way {
		return proxy.Way{Name: upstream.Name(u), Dial: func(ctx context.Context) (net.Conn, error) { return d.Dial(ctx, u, host, port) },
			Plain: &intercept.Forward{Name: upstream.Name(u), User: user, Dial: func(ctx context.Context) (net.Conn, error) { return d.Reach(ctx, u) }}}
	}
}

func TestPlainRequestsGoToAProxyInAbsoluteForm(t *testing.T) {
	g := newGuest(t)
	log := newDecisions()
	p := newCorporate(t, "Basic bWU6c2VjcmV0", serve(t, "tcp4", echo).String())
	rule := func(pattern string) plan.EgressRule {
		return plan.EgressRule{Phase: plan.Runtime, Allow: true, Pattern: pattern, Source: "kit test"}
	}
	bounded := rule("bounded.example")
	bounded.Methods, bounded.Paths = []string{"GET"}, []string{"/ok/**"}
	rules, err := egress.New([]plan.EgressRule{bounded, rule("open.example"), rule("tunnel.example")})
	if err != nil {
		t.Fatal(err)
	}
	b := start(t, g, control.Config{Log: log.log, Upstream: p.way(t, url.UserPassword("me", "secret")), Policy: rules, Leaf: noLeaf})
	ask := func(host, request string) (int, string) {
		t.Helper()
		c, err := g.dialName("ip4", host, 80)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(20 * time.Second))
		io.WriteString(c, request)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	get := func(host, path, more string) string {
		return "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n" + more + "\r\n"
	}

	// A host that is looked into, and one that is not; whatever a client says to
	// a proxy stays here.
	for _, host := range []string{"bounded.example", "open.example"} {
		code, body := ask(host, get(host, "/ok/x?a=b;c", "Proxy-Authorization: Basic mine\r\nProxy-Connection: keep-alive\r\n"))
		if want := "served http://" + host + "/ok/x?a=b;c to " + host + " "; code != 200 || body != want {
			t.Errorf("%s: %d %q, want %q", host, code, body, want)
		}
		d := log.wait(t, "the connection", func(d audit.Decision) bool { return d.Kind == audit.Connect && d.Host == host })
		if d.Verdict != audit.Allow || !strings.Contains(d.Why, "through the proxy http://127.0.0.1") || strings.Contains(d.Why, "secret") {
			t.Errorf("logged %+v", d)
		}
	}
	if code, body := ask("open.example", "POST / HTTP/1.1\r\nHost: open.example\r\nContent-Length: 4\r\n\r\nbody"); code != 200 || !strings.HasSuffix(body, " body") {
		t.Errorf("a body: %d %q", code, body)
	}
	for _, s := range p.requests() {
		if strings.HasPrefix(s, "CONNECT") {
			t.Errorf("a tunnel was asked for: %s", s)
		}
	}
	// A request for another host would be the proxy's to send there.
	n := len(p.requests())
	for what, request := range map[string]string{
		"another Host":    get("denied.example", "/", ""),
		"another port":    get("open.example:8080", "/", ""),
		"what is refused": get("bounded.example", "/secret", ""),
	} {
		host := "open.example"
		if what == "what is refused" {
			host = "bounded.example"
		}
		if code, _ := ask(host, request); code != 403 && code != 400 {
			t.Errorf("%s: %d", what, code)
		}
	}
	if got := p.requests(); len(got) != n {
		t.Errorf("the proxy was asked for %v", got[n:])
	}

	// What is no such request goes by a tunnel, if the proxy makes one.
	for _, say := range []string{"\x00not HTTP", "GET http://denied.example/ HTTP/1.1\r\nHost: x\r\n\r\n", get("tunnel.example", "/", "Connection: Upgrade\r\nUpgrade: websocket\r\n")} {
		c, err := g.dialName("ip4", "tunnel.example", 80)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, say)
		c.(*net.TCPConn).CloseWrite()
		if got, err := read(c); got != say || err != nil {
			t.Errorf("%q: %q, %v", say, got, err)
		}
		c.Close()
	}
	c, err := g.dialName("ip4", "open.example", 80)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, "\x00not HTTP")
	if got, _ := read(c); got != "" {
		t.Errorf("through a proxy that makes no tunnel: %q", got)
	}
	d := log.wait(t, "the refusal of the proxy", func(d audit.Decision) bool { return d.Host == "open.example" && d.Verdict == audit.Failed })
	if !strings.Contains(d.Why, "refuses open.example:80: 403") {
		t.Errorf("logged %+v", d)
	}

	// A rule that goes takes the way with it.
	b.SetPolicy(policy(t))
	if c, err := g.dialName("ip4", "open.example", 80); err == nil {
		io.WriteString(c, get("open.example", "/", ""))
		if got, _ := read(c); got != "" {
			t.Errorf("without a rule: %q", got)
		}
		c.Close()
	}
}

func TestAProxyThatWantsALoginSaysSo(t *testing.T) {
	p := newCorporate(t, "Basic other", "")
	for want, user := range map[string]*url.Userinfo{"wants a login": nil, "does not accept the login": url.UserPassword("me", "secret")} {
		g := newGuest(t)
		start(t, g, control.Config{Log: newDecisions().log, Upstream: p.way(t, user), Policy: policy(t, "runtime allow open.example"),
			Leaf: noLeaf})
		c, err := g.dialName("ip4", "open.example", 80)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: open.example\r\nConnection: close\r\n\r\n")
		got, err := read(c)
		if !strings.HasPrefix(got, "HTTP/1.1 502") || !strings.Contains(got, want) || strings.Contains(got, "secret") || strings.Contains(got, "Proxy-Authenticate") {
			t.Errorf("%s: %q, %v", want, got, err)
		}
		c.Close()
	}
}
