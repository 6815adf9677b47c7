package upstream_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/upstream"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// A proxy is a real one. It knows names that nobody else does: all of them are
// its target.
type proxy struct {
	addr, target string
	answer       string // instead of a tunnel
	login        string // user:password that it wants

	mu   sync.Mutex
	seen []string // guarded by mu; what it was asked for
}

func (p *proxy) asked(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = append(p.seen, what)
}

func (p *proxy) last() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.seen) == 0 {
		return ""
	}
	return p.seen[len(p.seen)-1]
}

func listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			done.Go(func() {
				defer c.Close()
				c.SetDeadline(time.Now().Add(20 * time.Second))
				serve(c)
			})
		}
	})
	t.Cleanup(func() { l.Close(); done.Wait() })
	return l.Addr().String()
}

func (p *proxy) tunnel(c net.Conn, r io.Reader) {
	up, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer up.Close()
	go func() { io.Copy(up, r); up.(*net.TCPConn).CloseWrite() }()
	io.Copy(c, up)
}

func (p *proxy) http(c net.Conn) {
	r := bufio.NewReader(c)
	req, err := http.ReadRequest(r)
	if err != nil {
		return
	}
	p.asked(req.Method + " " + req.RequestURI + " " + req.Host)
	switch {
	case p.answer != "":
		io.WriteString(c, p.answer)
	case p.login != "" && req.Header.Get("Proxy-Authorization") != "Basic "+base64.StdEncoding.EncodeToString([]byte(p.login)):
		io.WriteString(c, "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
	default:
		io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		p.tunnel(c, r)
	}
}

func (p *proxy) socks(c net.Conn) {
	b := make([]byte, 600)
	io.ReadFull(c, b[:2])
	methods := b[2 : 2+int(b[1])]
	io.ReadFull(c, methods)
	if p.answer != "" {
		io.WriteString(c, p.answer)
		return
	}
	if p.login == "" {
		c.Write([]byte{5, 0})
	} else {
		if !slices.Contains(methods, 2) {
			c.Write([]byte{5, 0xff})
			return
		}
		c.Write([]byte{5, 2})
		io.ReadFull(c, b[:2])
		user := make([]byte, b[1])
		io.ReadFull(c, user)
		io.ReadFull(c, b[:1])
		pass := make([]byte, b[0])
		io.ReadFull(c, pass)
		if string(user)+":"+string(pass) != p.login {
			c.Write([]byte{1, 1})
			return
		}
		c.Write([]byte{1, 0})
	}
	io.ReadFull(c, b[:4])
	host := ""
	switch b[3] {
	case 1:
		io.ReadFull(c, b[:4])
		host = net.IP(b[:4]).String()
	case 4:
		io.ReadFull(c, b[:16])
		host = net.IP(b[:16]).String()
	case 3:
		io.ReadFull(c, b[:1])
		name := make([]byte, b[0])
		io.ReadFull(c, name)
		host = string(name)
	}
	io.ReadFull(c, b[:2])
	p.asked(fmt.Sprintf("%s %d", host, binary.BigEndian.Uint16(b[:2])))
	if host == "refused.test" {
		c.Write([]byte{5, 2, 0, 1, 0, 0, 0, 0, 0, 0})
		return
	}
	c.Write([]byte{5, 0, 0, 3, 4, 'n', 'a', 'm', 'e', 0, 1})
	p.tunnel(c, c)
}

func greeter(t *testing.T) string {
	return listen(t, func(c net.Conn) {
		io.WriteString(c, "hello, ")
		b, _ := io.ReadAll(c)
		c.Write(b)
	})
}

func through(t *testing.T, proxyURL, host string, port uint16) (string, error) {
	t.Helper()
	u, err := url.Parse(proxyURL)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c, err := upstream.Dialer{}.Dial(ctx, u, host, port)
	if err != nil {
		return "", err
	}
	defer c.Close()
	cancel() // a connection outlives the context that it was made in
	io.WriteString(c, "you")
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Error(err)
	}
	b, err := io.ReadAll(c)
	return string(b), err
}

func TestTunnelsThroughRealProxies(t *testing.T) {
	target := greeter(t)
	h := &proxy{target: target, login: "u:p ss"}
	h.addr = listen(t, h.http)
	s := &proxy{target: target, login: "u:p ss"}
	s.addr = listen(t, s.socks)
	open := &proxy{target: target}
	open.addr = listen(t, open.socks)
	for _, tt := range []struct {
		url, host string
		port      uint16
		p         *proxy
		asked     string
	}{
		{"http://u:p%20ss@" + h.addr, "only-there.test", 443, h, "CONNECT only-there.test:443 only-there.test:443"},
		{"http://u:p%20ss@" + h.addr, "2001:db8::1", 8443, h, "CONNECT [2001:db8::1]:8443 [2001:db8::1]:8443"},
		{"socks5://u:p%20ss@" + s.addr, "only-there.test", 22, s, "only-there.test 22"},
		{"socks5h://u:p%20ss@" + open.addr, "192.0.2.1", 80, open, "192.0.2.1 80"},
		{"socks5://" + open.addr, "2001:db8::1", 80, open, "2001:db8::1 80"},
	} {
		got, err := through(t, tt.url, tt.host, tt.port)
		if got != "hello, you" || err != nil || tt.p.last() != tt.asked {
			t.Errorf("%s to %s: %q, %v; it was asked for %q", tt.url, tt.host, got, err, tt.p.last())
		}
	}
}

// TestATunnelHasNoBody has proxies whose answer says that it has one, or says something
// before: the first bytes of the host are no part of it (RFC 9110 §9.3.6).
func TestATunnelHasNoBody(t *testing.T) {
	target := greeter(t)
	for _, head := range []string{"Content-Length: 0", "Content-Length: 5", "Content-Length: 100000", "Transfer-Encoding: chunked", "Connection: close"} {
		for _, together := range []bool{false, true} {
			addr := listen(t, func(c net.Conn) {
				r := bufio.NewReader(c)
				if _, err := http.ReadRequest(r); err != nil {
					return
				}
				answer := "HTTP/1.1 200 OK\r\n" + head + "\r\n\r\n"
				if !together {
					io.WriteString(c, answer)
					(&proxy{target: target}).tunnel(c, r)
					return
				}
				io.WriteString(c, answer+"hello, ") // in one packet
				b, _ := io.ReadAll(r)
				c.Write(b)
			})
			if got, err := through(t, "http://"+addr, "only-there.test", 443); got != "hello, you" || err != nil {
				t.Errorf("%s, with the host's bytes together %v: %q, %v", head, together, got, err)
			}
		}
	}
}

func TestFailuresOfProxiesAreNamedWithoutTheirLogins(t *testing.T) {
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead.Close()
	with := func(login, answer string) *proxy { return &proxy{target: "127.0.0.1:1", login: login, answer: answer} }
	for _, tt := range []struct {
		scheme, login string
		p             *proxy
		host, want    string
	}{
		{"http", "", nil, "a.test", "cannot be reached"},
		{"socks5", "me:SECRET", nil, "a.test", "cannot be reached"},
		{"http", "", with("u:p", ""), "a.test", "wants a login for a.test:443"},
		{"http", "me:SECRET", with("u:p", ""), "a.test", "does not accept the login"},
		{"http", "me:SECRET", with("", "HTTP/1.1 403 Not\x01 here\r\n\r\n"), "a.test", "refuses a.test:443: 403 Not"},
		{"http", "", with("", "SSH-2.0-x\r\n"), "a.test", "gave no answer of HTTP"},
		{"http", "", with("", "HTTP/1.1 200 OK\r\nX: "+strings.Repeat("x", 100_000)), "a.test", "gave no answer of HTTP"},
		{"https", "me:SECRET", with("", "HTTP/1.1 200 OK\r\n\r\n"), "a.test", "TLS"},
		{"socks5", "", with("u:p", ""), "a.test", "wants another login"},
		{"socks5", "me:SECRET", with("u:p", ""), "a.test", "does not accept the login"},
		{"socks5", "", with("", ""), "refused.test", "refuses refused.test:443: not allowed by its rules"},
		{"socks5", "", with("", "HTTP/1.1 400"), "a.test", "does not speak SOCKS5"},
		{"socks5", "", with("", "\x05"), "a.test", "broke off"},
		{"socks5", "", with("", ""), strings.Repeat("a", 300), "name that long"},
	} {
		addr := dead.Addr().String()
		if tt.p != nil && tt.scheme == "socks5" {
			addr = listen(t, tt.p.socks)
		} else if tt.p != nil {
			addr = listen(t, tt.p.http)
		}
		login := ""
		if tt.login != "" {
			login = tt.login + "@"
		}
		_, err := through(t, tt.scheme+"://"+login+addr, tt.host, 443)
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), addr) || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%s %q %+v: %v, want %q", tt.scheme, tt.login, tt.p, err, tt.want)
		}
	}
}

func TestASilentProxyIsGivenUp(t *testing.T) {
	hold := make(chan bool)
	addr := listen(t, func(net.Conn) { <-hold })
	defer close(hold)
	for _, scheme := range []string{"http", "socks5", "https"} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err := upstream.Dialer{}.Dial(ctx, &url.URL{Scheme: scheme, Host: addr}, "a.test", 443)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", scheme, err)
		}
		cancel()
	}
}

func TestAProxyIsSpokenToByVerifiedTLS(t *testing.T) {
	p := &proxy{target: greeter(t)}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, buf, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		p.asked(r.Method + " " + r.RequestURI)
		io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		p.tunnel(c, buf)
	}))
	s.StartTLS()
	defer s.Close()
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (upstream.Dialer{}).Dial(t.Context(), u, "a.test", 443); err == nil || !strings.Contains(err.Error(), "trusted") {
		t.Errorf("a certificate that nobody signed: %v", err)
	}
	roots := s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	c, err := upstream.Dialer{Roots: roots}.Dial(t.Context(), u, "a.test", 443)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b := make([]byte, 7)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "hello, " || p.last() != "CONNECT a.test:443" {
		t.Errorf("%q, %v, asked for %q", b, err, p.last())
	}
}

func env(m map[string]string) func(string) string { return func(n string) string { return m[n] } }

func TestWhatIsReachedByWhichProxy(t *testing.T) {
	s, err := upstream.FromEnv(env(map[string]string{"HTTPS_PROXY": "me:SECRET@secure.test:3128", "http_proxy": "http://plain.test", "ALL_PROXY": "socks5://all.test", "NO_PROXY": "corp.test,.dotted.test,10.0.0.0/8,ported.test:8443"}))
	if err != nil {
		t.Fatal(err)
	}
	c := s.Chooser()
	for _, tt := range []struct {
		host string
		port uint16
		want string
	}{
		{"a.test", 443, "http://secure.test:3128"}, {"a.test", 22, "http://secure.test:3128"}, {"a.test", 80, "http://plain.test:80"},
		{"corp.test", 443, ""}, {"x.corp.test", 443, ""}, {"x.dotted.test", 443, ""}, {"notcorp.test", 443, "http://secure.test:3128"},
		{"10.1.2.3", 443, ""}, {"11.1.2.3", 443, "http://secure.test:3128"}, {"ported.test", 8443, ""}, {"ported.test", 443, "http://secure.test:3128"},
		{"localhost", 443, ""}, {"127.0.0.1", 443, ""}, {"::1", 443, ""},
	} {
		got := ""
		if p := c.For(tt.host, tt.port); p != nil {
			got = upstream.Name(p)
		}
		if got != tt.want {
			t.Errorf("%s:%d by %q, want %q", tt.host, tt.port, got, tt.want)
		}
	}
	pub := s.Public()
	if fmt.Sprintf("%+v", *pub) != "{HTTP:http://plain.test:80 HTTPS:http://secure.test:3128 All:socks5://all.test:1080 NoProxy:corp.test,.dotted.test,10.0.0.0/8,ported.test:8443 Login:true}" {
		t.Errorf("public: %+v", *pub)
	}
	back := upstream.Recorded(pub, s)
	if back != s {
		t.Errorf("with its logins again: %+v", back)
	}
	other, err := upstream.FromEnv(env(map[string]string{"HTTPS_PROXY": "http://you:OTHER@elsewhere.test:3128"}))
	if err != nil {
		t.Fatal(err)
	}
	if got := upstream.Recorded(pub, other); strings.Contains(fmt.Sprint(got), "OTHER") {
		t.Errorf("the login of another proxy: %+v", got)
	}
	all, err := upstream.FromEnv(env(map[string]string{"all_proxy": "socks5h://all.test:9"}))
	if err != nil || upstream.Name(all.Chooser().For("a.test", 80)) != "socks5h://all.test:9" || upstream.Name(all.Chooser().For("a.test", 443)) != "socks5h://all.test:9" {
		t.Errorf("for all: %+v, %v", all, err)
	}
	if none := (upstream.Settings{NoProxy: "x"}); none.Public() != nil || none.Chooser().For("a.test", 443) != nil {
		t.Error("no proxy is one")
	}
}

func TestVariablesThatCannotBeUnderstood(t *testing.T) {
	for _, v := range []string{"ftp://me:SECRET@p.test", "http://", "http://me:SECRET@:80", "http://p.test:99999", "http://p.test:SECRET", "http://me:SECRET@[::1", "http://me:%zzSECRET@p.test"} {
		_, err := upstream.FromEnv(env(map[string]string{"HTTPS_PROXY": v}))
		if !errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), "HTTPS_PROXY") || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%s: %v", v, err)
		}
	}
}

func TestPlainRequestsHaveAProxyOfHTTPAlone(t *testing.T) {
	for proxy, want := range map[string]string{"http://p.example:3128": "http://p.example:3128", "https://p.example": "https://p.example:443", "socks5://p.example": "", "": ""} {
		s, err := upstream.FromEnv(func(n string) string {
			return map[string]string{"HTTP_PROXY": proxy, "HTTPS_PROXY": "http://other.example", "NO_PROXY": "direct.example"}[n]
		})
		if err != nil {
			t.Fatal(err)
		}
		for host, want := range map[string]string{"a.example": want, "direct.example": "", "127.0.0.1": ""} {
			got := ""
			if u := s.Chooser().Plain(host, 8080); u != nil {
				got = upstream.Name(u)
			}
			if got != want {
				t.Errorf("%s through %q: %q, want %q", host, proxy, got, want)
			}
		}
	}
	var none *upstream.Chooser
	if none.Plain("a.example", 80) != nil {
		t.Error("no settings have a proxy")
	}
}
