package control_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/control"
	"github.com/kitbox-dev/kitbox/internal/boundary/intercept"
	"github.com/kitbox-dev/kitbox/internal/boundary/proxy"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// setter is a Presenter of one credential that is granted while installing.
type setter struct {
	held    chan struct{} // not nil: Present waits for it
	entered chan struct{}
}

func (s *setter) Interest(phase plan.Phase, host string, port uint16) proxy.Interest {
	switch {
	case host != "key.example" || phase != plan.Install:
		return proxy.None
	case port == 443:
		return proxy.All
	}
	return proxy.TLS
}

func (s *setter) Present(_ context.Context, _ plan.Phase, _ string, _ uint16, q intercept.Request, proof *proxy.Proof) {
	if s.held != nil {
		s.entered <- struct{}{}
		<-s.held
	}
	if proof.Give("svc", "real") {
		q.Header.Set("X-Key", "real")
	}
}

func (s *setter) Insists(_ plan.Phase, _ string, _ uint16, path string) bool { return path == "/token" }

func (s *setter) Grants(phase plan.Phase, _ string) bool { return phase == plan.Install }

func (s *setter) Take(plan.Phase, string, uint16, http.ResponseWriter, *http.Request, intercept.Send, *proxy.Proof) bool {
	return false
}

// keyed is a guest whose key.example is given a credential while installing.
func keyed(t *testing.T, s *setter, h http.HandlerFunc) (g *guest, b *control.Boundary, log *decisions, client *http.Client, plain netip.AddrPort) {
	t.Helper()
	i, b, log := keyedBoth(t, s, h)
	return i.g, b, log, i.client(false), i.at
}

func keyedBoth(t *testing.T, s *setter, h http.HandlerFunc) (*inspected, *control.Boundary, *decisions) {
	t.Helper()
	i := inspect(t, "key.example", h)
	log := newDecisions()
	b := start(t, i.g, control.Config{Phase: plan.Install, Log: log.log, Policy: policy(t, "install allow key.example", "runtime allow key.example"),
		Leaf: i.authority.Leaf, Roots: i.roots, Presenter: s, Routes: []plan.Route{route("key.example", i.at)}})
	return i, b, log
}

func get(t *testing.T, c *http.Client, url string) (status int, body string) {
	t.Helper()
	r, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, _ := io.ReadAll(r.Body)
	return r.StatusCode, string(b)
}

func TestACredentialIsPresentedInItsPhaseOnly(t *testing.T) {
	hold := make(chan struct{})
	begun := make(chan struct{}, 1)
	_, b, log, c, _ := keyed(t, new(setter), func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "key="+r.Header.Get("X-Key"))
		if r.URL.Path == "/hold" {
			w.(http.Flusher).Flush()
			begun <- struct{}{}
			<-hold
		}
	})
	defer close(hold)
	for _, url := range []string{"https://key.example/", "https://key.example:8443/"} {
		if _, got := get(t, c, url); got != "key=real" {
			t.Errorf("%s while installing: the host got %q", url, got)
		}
	}
	d := log.wait(t, "the request", func(d audit.Decision) bool { return d.Kind == audit.Request })
	if d.Credential != "svc" || strings.Contains(fmt.Sprint(d), "real") {
		t.Errorf("logged %+v", d)
	}
	r, err := c.Get("https://key.example/hold")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	<-begun
	b.SetPhase(plan.Runtime)
	if got, err := io.ReadAll(r.Body); err == nil {
		t.Errorf("a request with a credential outlived its phase: %q", got)
	}
	log.wait(t, "the cut", func(d audit.Decision) bool { return d.Kind == audit.Cut && strings.Contains(d.Why, "svc") })
	c.CloseIdleConnections()
	if _, got := get(t, c, "https://key.example/"); got != "key=" {
		t.Errorf("after its phase: the host got %q", got)
	}
}

// TestAPhaseThatEndsWhileACredentialIsFetched holds the presenter, as a helper
// that takes its time would.
func TestAPhaseThatEndsWhileACredentialIsFetched(t *testing.T) {
	s := &setter{held: make(chan struct{}), entered: make(chan struct{})}
	_, b, _, c, _ := keyed(t, s, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("arrived with %q", r.Header.Get("X-Key")) })
	go func() {
		<-s.entered
		go func() {
			for b.Phase() != plan.Runtime {
				time.Sleep(time.Millisecond)
			}
			close(s.held)
		}()
		b.SetPhase(plan.Runtime)
	}()
	if status, got := get(t, c, "https://key.example/"); status != http.StatusForbidden || !strings.Contains(got, "not granted") {
		t.Errorf("%d %q", status, got)
	}
}

func TestWithoutTLSNothingIsPresented(t *testing.T) {
	g, _, log, _, _ := keyed(t, new(setter), func(http.ResponseWriter, *http.Request) {})
	// On the port of HTTPS all is looked into, and plain HTTP gets nothing.
	conn, err := g.dialName("ip4", "key.example", 443)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, "GET / HTTP/1.1\r\nHost: key.example:443\r\n\r\n")
	d := log.wait(t, "the request", func(d audit.Decision) bool { return d.Kind == audit.Request })
	if d.Credential != "" || !strings.Contains(d.Why, "only over TLS") {
		t.Errorf("logged %+v", d)
	}
	// What issues tokens is not asked at all.
	token, err := g.dialName("ip4", "key.example", 443)
	if err != nil {
		t.Fatal(err)
	}
	defer token.Close()
	io.WriteString(token, "POST /token HTTP/1.1\r\nHost: key.example:443\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
	if got, err := io.ReadAll(token); err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 403") {
		t.Errorf("%.60q, %v", got, err)
	}
}

// TestWhatIsNotTLSPassesToAHostWithACredential is ssh to a host whose API has
// one: the server speaks first, or the client something else.
func TestWhatIsNotTLSPassesToAHostWithACredential(t *testing.T) {
	g := newGuest(t)
	at := serve(t, "tcp4", func(c net.Conn) {
		io.WriteString(c, "banner\n")
		io.Copy(c, c)
	})
	start(t, g, control.Config{Phase: plan.Install, Policy: policy(t, "install allow key.example"), Leaf: openAuthority(t).Leaf,
		Presenter: new(setter), Routes: []plan.Route{route("key.example", at)}})
	for _, first := range []bool{true, false} {
		c, err := g.dialName("ip4", "key.example", 22)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(10 * time.Second))
		if first {
			io.WriteString(c, "SSH-2.0-x\n")
		}
		r := bufio.NewReader(c)
		if got, err := r.ReadString('\n'); got != "banner\n" {
			t.Fatalf("client first %v: %q, %v", first, got, err)
		}
		if !first {
			io.WriteString(c, "SSH-2.0-x\n")
		}
		if got, err := r.ReadString('\n'); got != "SSH-2.0-x\n" {
			t.Fatalf("client first %v: %q, %v", first, got, err)
		}
	}
}
