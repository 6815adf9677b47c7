package intercept_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/boundary/intercept"
)

// host is a name that httptest's certificate is for.
const host = "example.com"

// bound is a boundary with one origin behind it.
type bound struct {
	t      testing.TB
	origin *httptest.Server
	addr   string // where the sandbox connects
	port   uint16 // that it believes to connect to
	roots  *x509.CertPool

	mu      sync.Mutex
	judge   func(method, path string) bool
	refused []string
	cancel  intercept.Cancel // of the last request
	amend   func(intercept.Request)
	take    func(http.ResponseWriter, *http.Request, intercept.Send) bool
	dial    func(ctx context.Context) (net.Conn, error)

	answered func(*http.Response) // of sessions that begin from now on
}

func start(t testing.TB, secure bool, h http.HandlerFunc) *bound {
	t.Helper()
	b := &bound{t: t, port: 80, judge: func(string, string) bool { return true }}
	b.origin = httptest.NewUnstartedServer(h)
	b.origin.EnableHTTP2 = true
	b.origin.StartTLS()
	t.Cleanup(b.origin.Close)
	pair := b.origin.TLS.Certificates[0]
	b.roots = x509.NewCertPool()
	b.roots.AddCert(b.origin.Certificate())
	if secure {
		b.port = 443
	} else {
		plain := httptest.NewServer(h)
		t.Cleanup(plain.Close)
		b.origin = plain
	}
	b.dial = func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", b.origin.Listener.Addr().String())
	}
	s := intercept.New(func(string) (*tls.Certificate, error) { return &pair, nil }, b.roots)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				s.Serve(ctx, b.session(c))
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		cancel()
		wg.Wait() // every session ends when it is told to
		s.Close()
	})
	return b
}

func (b *bound) session(c net.Conn) *intercept.Session {
	b.mu.Lock()
	defer b.mu.Unlock()
	take, answered := b.take, b.answered
	return &intercept.Session{Client: c, Host: host, Port: b.port,
		Dial: func(ctx context.Context) (net.Conn, error) {
			b.mu.Lock()
			dial := b.dial
			b.mu.Unlock()
			return dial(ctx)
		},
		Begin: func(_ context.Context, r intercept.Request, cancel intercept.Cancel) (egress.Verdict, intercept.Turn) {
			b.mu.Lock()
			defer b.mu.Unlock()
			if !b.judge(r.Method, r.Path) {
				return egress.Verdict{Why: "no rule allows " + r.Method + " " + r.Path}, intercept.Turn{}
			}
			if b.amend != nil {
				b.amend(r)
			}
			b.cancel = cancel
			return egress.Verdict{Allow: true}, intercept.Turn{Take: take, Answered: answered, End: func() {}}
		},
		Refuse: func(protocol, method, path, why string) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.refused = append(b.refused, why)
		},
	}
}

// end ends the last request.
func (b *bound) end(why string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cancel(&intercept.RefusedError{Why: why}).Tell()
}

func (b *bound) client(http2 bool) *http.Client {
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: b.roots}, DisableCompression: true, Protocols: new(http.Protocols), ExpectContinueTimeout: 5 * time.Second,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", b.addr)
		}}
	tr.Protocols.SetHTTP1(!http2)
	tr.Protocols.SetHTTP2(http2)
	b.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 2 * time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func (b *bound) url(path string) string {
	if b.port == 443 {
		return "https://" + host + path
	}
	return "http://" + host + path
}

// raw sends text on a connection of its own and returns the first line of the
// answer.
func (b *bound) raw(text string, secure bool) string {
	b.t.Helper()
	var c net.Conn
	c, err := net.Dial("tcp", b.addr)
	if err != nil {
		b.t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if secure {
		c = tls.Client(c, &tls.Config{RootCAs: b.roots, ServerName: host})
	}
	io.WriteString(c, text)
	out, _ := bufio.NewReader(c).ReadString('\n')
	return out
}

func (b *bound) why(t testing.TB, part string) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); ; runtime.Gosched() {
		b.mu.Lock()
		all := strings.Join(b.refused, "\n")
		b.mu.Unlock()
		if strings.Contains(all, part) {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("nothing was refused because of %q, but\n%s", part, all)
			return
		}
	}
}

// each runs f for every way to speak HTTP through the boundary.
func each(t *testing.T, h http.HandlerFunc, f func(t *testing.T, b *bound, c *http.Client)) {
	for _, k := range []struct {
		name          string
		secure, http2 bool
	}{{"plain", false, false}, {"h1", true, false}, {"h2", true, true}} {
		t.Run(k.name, func(t *testing.T) {
			b := start(t, k.secure, h)
			f(t, b, b.client(k.http2))
		})
	}
}

func body(t testing.TB, r *http.Response, err error) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestARequestAndItsAnswerPassAsTheyAre(t *testing.T) {
	each(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("Location", "https://elsewhere.example/")
		w.Header().Add("Set-Cookie", "a=1")
		w.Header().Add("Set-Cookie", "b=2")
		w.WriteHeader(http.StatusFound)
		fmt.Fprintf(w, "%s %s %s|%s|%q|%v|%v|%v", r.Method, r.Host, r.RequestURI, b, r.Header["User-Agent"], r.Header["X-Forwarded-For"], r.Header["Accept-Encoding"], r.ProtoMajor)
	}, func(t *testing.T, b *bound, c *http.Client) {
		req, _ := http.NewRequest(http.MethodPatch, b.url("/a%20b/c;d?x=1;y=%zz&&"), strings.NewReader("payload"))
		req.Header.Set("User-Agent", "")
		r, err := c.Do(req)
		got := body(t, r, err)
		want := fmt.Sprintf(`PATCH example.com /a%%20b/c;d?x=1;y=%%zz&&|payload|[]|[]|[]|%d`, r.ProtoMajor)
		if got != want || r.StatusCode != http.StatusFound || len(r.Header["Set-Cookie"]) != 2 {
			t.Errorf("%d, %v\n got %s\nwant %s", r.StatusCode, r.Header, got, want)
		}
	})
}

func TestHeadAndNotModifiedHaveNoBody(t *testing.T) {
	each(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			w.Header().Set("Content-Length", "12345")
			return
		}
		w.WriteHeader(http.StatusNotModified)
	}, func(t *testing.T, b *bound, c *http.Client) {
		if r, err := c.Head(b.url("/")); body(t, r, err) != "" || r.ContentLength != 12345 {
			t.Errorf("HEAD: %v", r)
		}
		if r, err := c.Get(b.url("/")); body(t, r, err) != "" || r.StatusCode != http.StatusNotModified {
			t.Errorf("GET: %v", r)
		}
	})
}

// noise is n bytes that do not repeat soon, and counts what is read of it.
type noise struct {
	n   int64
	sum hash.Hash
}

func (r *noise) Read(p []byte) (int, error) {
	if r.n == 0 {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), r.n)]
	clear(p)
	for i := 0; i+8 <= len(p); i += 1 << 10 {
		binary.BigEndian.PutUint64(p[i:], uint64(r.n-int64(i)))
	}
	r.n -= int64(len(p))
	r.sum.Write(p)
	return len(p), nil
}

func TestLargeBodiesAreStreamedBothWays(t *testing.T) {
	const size = 64 << 20
	each(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			n := &noise{size, sha256.New()}
			w.Header().Set("Trailer", "Sum")
			io.Copy(w, n)
			w.Header().Set("Sum", fmt.Sprintf("%x", n.sum.Sum(nil)))
			return
		}
		s := sha256.New()
		io.Copy(s, r.Body)
		fmt.Fprintf(w, "%x", s.Sum(nil))
	}, func(t *testing.T, b *bound, c *http.Client) {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		n := &noise{size, sha256.New()}
		req, _ := http.NewRequest(http.MethodPut, b.url("/"), n)
		req.ContentLength = size
		r, err := c.Do(req)
		if got := body(t, r, err); got != fmt.Sprintf("%x", n.sum.Sum(nil)) {
			t.Error("the upload arrived changed")
		}
		r, err = c.Get(b.url("/"))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		s := sha256.New()
		if _, err := io.Copy(s, r.Body); err != nil || r.Trailer.Get("Sum") != fmt.Sprintf("%x", s.Sum(nil)) {
			t.Errorf("the download arrived changed: %v", err)
		}
		runtime.ReadMemStats(&after)
		if grown := int64(after.HeapSys) - int64(before.HeapSys); grown > 48<<20 {
			t.Errorf("the heap grew by %d MiB", grown>>20)
		}
	})
}

func TestEventsArriveWhenTheyAreSent(t *testing.T) {
	next := make(chan struct{})
	each(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			w.(http.Flusher).Flush()
			<-next
		}
	}, func(t *testing.T, b *bound, c *http.Client) {
		r, err := c.Get(b.url("/"))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		s := bufio.NewScanner(r.Body)
		for i := range 3 {
			if !s.Scan() || s.Text() != fmt.Sprintf("data: %d", i) {
				t.Fatalf("event %d: %q, %v", i, s.Text(), s.Err())
			}
			s.Scan()
			next <- struct{}{}
		}
	})
}

func TestTrailersPassBothWays(t *testing.T) {
	each(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "Grpc-Status")
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s", b, r.Trailer.Get("Checksum"))
		w.Header().Set("Grpc-Status", "0")
		w.Header().Set(http.TrailerPrefix+"Grpc-Message", "fine")
	}, func(t *testing.T, b *bound, c *http.Client) {
		req, _ := http.NewRequest(http.MethodPost, b.url("/"), io.MultiReader(strings.NewReader("body"))) // of unknown length
		req.Trailer = http.Header{"Checksum": {"abc"}}
		r, err := c.Do(req)
		if got := body(t, r, err); got != "body abc" || r.Trailer.Get("Grpc-Status") != "0" || r.Trailer.Get("Grpc-Message") != "fine" {
			t.Errorf("%q, trailers %v", got, r.Trailer)
		}
	})
}

func TestAnAnswerOfTrailersOnlyIsOne(t *testing.T) {
	b := start(t, true, func(w http.ResponseWriter, r *http.Request) {
		if te := r.Header.Get("Te"); te != "trailers" {
			t.Errorf("te is %q", te)
		}
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Grpc-Status", "5")
	})
	req, _ := http.NewRequest(http.MethodPost, b.url("/svc/Method"), strings.NewReader("x"))
	req.Header.Set("Te", "trailers")
	r, err := b.client(true).Do(req)
	if got := body(t, r, err); got != "" || r.Header.Get("Grpc-Status") != "5" {
		t.Errorf("%q, %v", got, r.Header)
	}
}

func TestBothSidesOfAStreamCanTalkAtOnce(t *testing.T) {
	b := start(t, true, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		for s := bufio.NewScanner(r.Body); s.Scan(); w.(http.Flusher).Flush() {
			fmt.Fprintf(w, "%s!\n", s.Text())
		}
	})
	pr, pw := io.Pipe()
	req, _ := http.NewRequest(http.MethodPost, b.url("/"), pr)
	r, err := b.client(true).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	s := bufio.NewScanner(r.Body)
	for i := range 3 {
		fmt.Fprintf(pw, "%d\n", i)
		if !s.Scan() || s.Text() != fmt.Sprintf("%d!", i) {
			t.Fatalf("%q, %v", s.Text(), s.Err())
		}
	}
	pw.Close()
	if s.Scan() || s.Err() != nil {
		t.Errorf("after the end: %q, %v", s.Text(), s.Err())
	}
}

func TestTheServerDecidesWhetherABodyIsWanted(t *testing.T) {
	each(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/no" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		io.Copy(w, r.Body)
	}, func(t *testing.T, b *bound, c *http.Client) {
		for path, want := range map[string]int{"/no": 401, "/yes": 200} {
			var sent atomic.Bool
			req, _ := http.NewRequest(http.MethodPut, b.url(path), io.MultiReader(readerFunc(func([]byte) (int, error) { sent.Store(true); return 0, io.EOF })))
			req.Header.Set("Expect", "100-continue")
			began := time.Now()
			r, err := c.Do(req)
			body(t, r, err)
			if r.StatusCode != want || sent.Load() && want == 401 && r.ProtoMajor == 1 || time.Since(began) > 8*time.Second {
				t.Errorf("%s: %d after %v, body read: %v", path, r.StatusCode, time.Since(began), sent.Load())
			}
		}
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestATruncatedAnswerDoesNotLookWhole(t *testing.T) {
	each(t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "half of it")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}, func(t *testing.T, b *bound, c *http.Client) {
		r, err := c.Get(b.url("/"))
		if err != nil {
			return // the end came before the answer was passed on
		}
		defer r.Body.Close()
		if got, err := io.ReadAll(r.Body); err == nil {
			t.Errorf("%q arrived as the whole", got)
		}
	})
}

func TestAClientThatLeavesEndsItsRequest(t *testing.T) {
	began, gone := make(chan struct{}), make(chan struct{})
	each(t, func(w http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		<-r.Context().Done()
		gone <- struct{}{}
	}, func(t *testing.T, b *bound, c *http.Client) {
		ctx, cancel := context.WithCancel(t.Context())
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, b.url("/"), nil)
		go func() { <-began; cancel() }()
		r, err := c.Do(req)
		if err == nil {
			r.Body.Close()
		}
		if !errors.Is(err, context.Canceled) {
			t.Errorf("err = %v", err)
		}
		select {
		case <-gone:
		case <-time.After(10 * time.Second):
			t.Error("the server was not told")
		}
	})
}

func TestARefusedRequestIs403AndNeverArrives(t *testing.T) {
	each(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.Path != "/ok" {
			t.Errorf("%s %s arrived", r.Method, r.URL)
		}
	}, func(t *testing.T, b *bound, c *http.Client) {
		b.judge = func(m, p string) bool { return m == "GET" && p == "/ok" }
		for _, rq := range []string{"GET /other", "DELETE /ok", "PUT /ok", "GET /ok/", "GET /OK", "OPTIONS /ok", "TRACE /ok"} {
			m, p, _ := strings.Cut(rq, " ")
			req, _ := http.NewRequest(m, b.url(p+"?secret=1"), nil)
			r, err := c.Do(req)
			if got := body(t, r, err); r.StatusCode != http.StatusForbidden || r.Header.Get("Kitbox-Boundary") != "refused" || !strings.Contains(got, "refused by the sandbox's network policy") || strings.Contains(got, "secret") {
				t.Errorf("%s: %d %q", rq, r.StatusCode, got)
			}
		}
		req, _ := http.NewRequest(http.MethodGet, b.url("/ok"), nil)
		req.Header.Set("X-HTTP-Method-Override", "delete")
		if r, err := c.Do(req); body(t, r, err) == "" || r.StatusCode != http.StatusForbidden {
			t.Errorf("an override: %d", r.StatusCode)
		}
		if r, err := c.Get(b.url("/ok")); body(t, r, err) != "" || r.StatusCode != http.StatusOK {
			t.Errorf("the allowed one: %d", r.StatusCode)
		}
		req, _ = http.NewRequest(http.MethodGet, b.url("/ok"), nil)
		for _, other := range []string{"other.example", host + ":8443", "EXAMPLE.com.evil.example", "127.0.0.1", "a b"} {
			req.Host = other
			if r, err := c.Do(req); err == nil && (body(t, r, err) == "" || r.StatusCode < 400 || r.StatusCode >= 500) {
				t.Errorf("for %s: %d", other, r.StatusCode)
			}
		}
		b.why(t, `the request is for "other.example"`)
		req.Host = "Example.COM."
		if r, err := c.Do(req); body(t, r, err) != "" || r.StatusCode != http.StatusOK {
			t.Errorf("another spelling: %d", r.StatusCode)
		}
	})
}

// TestAnotherMethodIsJudgedHoweverItIsAskedFor has all the spellings that some server
// takes for one request to have another method.
func TestAnotherMethodIsJudgedHoweverItIsAskedFor(t *testing.T) {
	each(t, func(w http.ResponseWriter, r *http.Request) {}, func(t *testing.T, b *bound, c *http.Client) {
		var judged []string
		b.judge = func(m, p string) bool { judged = append(judged, m); return m == "POST" || m == "PATCH" }
		send := func(query, header string, values ...string) (int, string) {
			req, err := http.NewRequest(http.MethodPost, b.url("/ok"+query), nil)
			if err != nil {
				t.Fatal(err)
			}
			if header != "" {
				req.Header[header] = values
			}
			judged = nil
			r, err := c.Do(req)
			text := body(t, r, err)
			return r.StatusCode, text
		}
		for _, x := range []struct {
			query, header string
			values        []string
		}{
			{"", "X-HTTP-Method-Override", []string{"DELETE"}},
			{"", "X_HTTP_Method_Override", []string{"DELETE"}},
			{"", "x_http-method_override", []string{"delete"}},
			{"", "X.Http.Method.Override", []string{"DELETE"}},
			{"", "X_Http_Method", []string{"DELETE"}},
			{"", "X_METHOD_OVERRIDE", []string{" Delete "}},
			{"", "X-HTTP-Method-Override", []string{"POST, DELETE"}},
			{"", "X-HTTP-Method-Override", []string{"PATCH", "DELETE"}},
			{"?_method=DELETE", "", nil},
			{"?a=b&_METHOD=delete", "", nil},
			{"?a=b;_method=DELETE", "", nil},
			{"?%5Fmethod=%44ELETE", "", nil},
			{"?.method=DELETE", "", nil},
			{"?%20[method=DELETE", "", nil},
			{"?x-http-method-override=DELETE", "", nil},
			{"?_method=DELETE%zz&_method=DELETE", "", nil},
		} {
			if status, text := send(x.query, x.header, x.values...); status != http.StatusForbidden || !strings.Contains(text, "DELETE") {
				t.Errorf("%q %s: %q: %d %q, judged %q", x.query, x.header, x.values, status, text, judged)
			}
		}
		for query, values := range map[string][]string{
			"":                                    {"PATCH, PUT", "PURGE"},
			"?_method=A&_method=B&_method=C":      nil,
			"?_method=PATCH&x-http-method=POST,B": {"PUT"},
		} {
			status, text := send(query, "X_HTTP_METHOD_OVERRIDE", values...)
			if status != http.StatusForbidden || !strings.Contains(text, "more than two methods") || len(judged) > 0 {
				t.Errorf("%q %q: %d %q, judged %q", query, values, status, text, judged)
			}
		}
		for query, values := range map[string][]string{
			"?method=DELETE&my_method=DELETE&q=_method=DELETE": nil,
			"?_method=":            {"PATCH, patch", "Patch", ""},
			"?_method=PATCH&_meth": {"POST"},
		} {
			if status, text := send(query, "X_HTTP_METHOD_OVERRIDE", values...); status != http.StatusOK {
				t.Errorf("%q %q: %d %q, judged %q", query, values, status, text, judged)
			}
			if judged[len(judged)-1] != "POST" || len(judged) > 2 {
				t.Errorf("%q %q: judged %q", query, values, judged)
			}
		}
	})
}

func TestWhatIsNoOrdinaryRequestIsRefused(t *testing.T) {
	for _, secure := range []bool{false, true} {
		b := start(t, secure, func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			if r.URL.Path != "/fine" || len(b) > 5 {
				t.Errorf("%s %s %q arrived", r.Method, r.RequestURI, b)
			}
		})
		for text, want := range map[string]string{
			"GET /fine HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n":  "200",
			"CONNECT other.example:443 HTTP/1.1\r\nHost: other.example:443\r\n\r\n": "403",
			"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n":     "403",
			"GET http://other.example/ HTTP/1.1\r\nHost: example.com\r\n\r\n":       "403",
			"GET https://example.com/x HTTP/1.1\r\nHost: example.com\r\n\r\n":       "403",
			"OPTIONS * HTTP/1.1\r\nHost: example.com\r\n\r\n":                       "403",
			"GET /x HTTP/1.1\r\nHost: example.com\r\nHost: other.example\r\n\r\n":   "400",
			"GET /x HTTP/1.1\r\n\r\n": "400",
			"GET /x HTTP/1.0\r\n\r\n": "403",
			"GET /x HTTP/1.1\r\nHost: example.com\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n":                  "403",
			"GET /x HTTP/1.1\r\nHost: example.com\r\nConnection: upgrade\r\nUpgrade: websocket, h2c\r\n\r\n":                                                   "403",
			"POST /x HTTP/1.1\r\nHost: example.com\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n":                                                       "403",
			"GET /x HTTP/1.1\r\nHost: example.com\r\nTransfer-Encoding: gzip\r\n\r\n":                                                                          "501",
			"POST /x HTTP/1.1\r\nHost: example.com\r\nContent-Length: 3\r\nTransfer-Encoding_: chunked\r\n\r\nabc":                                             "403",
			"POST /x HTTP/1.1\r\nHost: example.com\r\nContent-Length: 3\r\nCONTENT_LENGTH: 0\r\n\r\nabc":                                                       "403",
			"GET /x HTTP/1.1\r\nHost: example.com\r\nX : y\r\n\r\n":                                                                                            "400",
			"POST /x HTTP/1.1\r\nHost: example.com\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef":                                                    "400",
			"GET /x HTTP/1.1\r\nHost: example.com\r\nA: " + strings.Repeat("x", 1<<20) + "\r\n\r\n":                                                            "431",
			"POST /fine HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\nContent-Length: 40\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n": "200",
		} {
			if got := b.raw(text, secure); !strings.HasPrefix(got, "HTTP/1.1 "+want) && !strings.HasPrefix(got, "HTTP/1.0 "+want) {
				t.Errorf("secure %v, %.60q: %.60q", secure, text, got)
			}
		}
		for text, why := range map[string]string{
			"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":   "HTTP/2 without TLS",
			"SSH-2.0-x\r\n":                      "not HTTP",
			"\x00\x01\x02":                       "not HTTP",
			"\x80\x2e\x01\x03\x01":               "not HTTP",
			strings.Repeat("A", 100) + " / HTTP": "not HTTP",
		} {
			if got := b.raw(text, secure); got != "" {
				t.Errorf("%q: %q", text, got)
			}
			b.why(t, why)
		}
	}
}

// TestWhoJudgesARequestMayChangeWhatIsSent sees a header replaced on the way out,
// and that only TLS which named the host counts as proof of it.
func TestWhoJudgesARequestMayChangeWhatIsSent(t *testing.T) {
	each(t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, r.Header.Get("X-Key")+" "+r.Header.Get("X-Http-Method"))
	}, func(t *testing.T, b *bound, c *http.Client) {
		var proven atomic.Bool
		b.mu.Lock()
		b.amend = func(r intercept.Request) {
			if r.Header == nil {
				return // only judged
			}
			proven.Store(r.Proven)
			r.Header.Set("X-Key", "real")
		}
		b.mu.Unlock()
		req, err := http.NewRequest(http.MethodGet, b.url("/x"), nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Key", "placeholder")
		req.Header.Set("X-Http-Method", "PUT")
		r, err := c.Do(req)
		if got := body(t, r, err); got != "real PUT" {
			t.Errorf("the host got %q", got)
		}
		if secure := b.port == 443; proven.Load() != secure {
			t.Errorf("proven is %v on a connection with TLS %v", proven.Load(), secure)
		}
	})
}

func TestTLSWithoutAServerNameProvesNoHost(t *testing.T) {
	b := start(t, true, func(http.ResponseWriter, *http.Request) {})
	proven := make(chan bool, 1)
	b.mu.Lock()
	b.amend = func(r intercept.Request) { proven <- r.Proven }
	b.mu.Unlock()
	c, err := net.Dial("tcp", b.addr)
	if err != nil {
		t.Fatal(err)
	}
	tc := tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
	defer tc.Close()
	io.WriteString(tc, "GET /x HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n")
	if _, err := io.ReadAll(tc); err != nil {
		t.Fatal(err)
	}
	if <-proven {
		t.Error("a client that named no host is taken to have named this one")
	}
}

func TestARequestCanBeTaken(t *testing.T) {
	b := start(t, true, func(w http.ResponseWriter, r *http.Request) {
		got, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s %s", r.Host, r.URL.RequestURI(), r.Method, got)
	})
	b.mu.Lock()
	b.take = func(w http.ResponseWriter, r *http.Request, send intercept.Send) bool {
		if r.URL.Path != "/taken" {
			return false
		}
		out, err := http.NewRequestWithContext(r.Context(), http.MethodPost, "/taken?q=1", strings.NewReader("mine"))
		if err != nil {
			t.Error(err)
			return true
		}
		resp, err := send(out)
		if err != nil {
			t.Error(err)
			return true
		}
		defer resp.Body.Close()
		got, _ := io.ReadAll(resp.Body)
		io.WriteString(w, "answered: "+string(got))
		return true
	}
	b.mu.Unlock()
	r, err := b.client(false).Get(b.url("/taken"))
	if got := body(t, r, err); got != "answered: example.com /taken?q=1 POST mine" {
		t.Errorf("%q", got)
	}
	r, err = b.client(false).Get(b.url("/left"))
	if got := body(t, r, err); got != "example.com /left GET " {
		t.Errorf("%q", got)
	}
}

func TestTLSIsForTheHostThatWasAskedFor(t *testing.T) {
	b := start(t, true, func(http.ResponseWriter, *http.Request) { t.Error("something arrived") })
	for name, conf := range map[string]*tls.Config{
		"another name": {RootCAs: b.roots, ServerName: "other.example"},
		"no trust":     {ServerName: host},
		"protocol":     {RootCAs: b.roots, ServerName: host, NextProtos: []string{"postgresql"}},
		"too old":      {RootCAs: b.roots, ServerName: host, MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10},
	} {
		c, err := tls.Dial("tcp", b.addr, conf)
		if err == nil {
			c.Close()
			t.Errorf("%s: a handshake", name)
		}
	}
	b.why(t, `TLS server name "other.example"`)
	b.why(t, "does not let this boundary look into its TLS")
	b.why(t, "recreate the sandbox")
}

func TestAFailureOfTheHostIs502AndARefusal403(t *testing.T) {
	each(t, func(http.ResponseWriter, *http.Request) {}, func(t *testing.T, b *bound, c *http.Client) {
		b.dial = func(context.Context) (net.Conn, error) { return nil, errors.New("no route to it") }
		r, err := c.Get(b.url("/"))
		if got := body(t, r, err); r.StatusCode != http.StatusBadGateway || !strings.Contains(got, "no route to it") || r.Header.Get("Kitbox-Boundary") != "unreachable" {
			t.Errorf("%d %q", r.StatusCode, got)
		}
		b.mu.Lock()
		b.dial = func(context.Context) (net.Conn, error) {
			return nil, fmt.Errorf("dial: %w", &intercept.RefusedError{Why: "a private address"})
		}
		b.mu.Unlock()
		r, err = c.Get(b.url("/"))
		if got := body(t, r, err); r.StatusCode != http.StatusForbidden || !strings.Contains(got, "a private address") {
			t.Errorf("%d %q", r.StatusCode, got)
		}
	})
}

func TestTheHostsCertificateIsVerified(t *testing.T) {
	b := start(t, true, func(http.ResponseWriter, *http.Request) { t.Error("a request was sent to whoever answered") })
	client := b.client(false)
	other := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("arrived") }))
	pair, err := tls.X509KeyPair(selfSigned(t))
	if err != nil {
		t.Fatal(err)
	}
	other.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	other.StartTLS()
	defer other.Close()
	b.dial = func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", other.Listener.Addr().String())
	}
	r, err := client.Get(b.url("/"))
	if got := body(t, r, err); r.StatusCode != http.StatusBadGateway || !strings.Contains(got, "certificate cannot be verified") {
		t.Errorf("%d %q", r.StatusCode, got)
	}
}

func TestWebSocketsPass(t *testing.T) {
	for _, secure := range []bool{false, true} {
		b := start(t, secure, func(w http.ResponseWriter, r *http.Request) {
			c, rw, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			io.Copy(c, rw)
		})
		var c net.Conn
		c, err := net.Dial("tcp", b.addr)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(10 * time.Second))
		if secure {
			c = tls.Client(c, &tls.Config{RootCAs: b.roots, ServerName: host})
		}
		io.WriteString(c, "GET /chat HTTP/1.1\r\nHost: example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n")
		r, err := http.ReadResponse(bufio.NewReader(&oneByte{c}), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		if r.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("status %s", r.Status)
		}
		for range 3 {
			io.WriteString(c, "frame")
			got := make([]byte, 5)
			if _, err := io.ReadFull(c, got); err != nil || string(got) != "frame" {
				t.Fatalf("%q, %v", got, err)
			}
		}
		// A change of the rules ends it.
		b.end("no more")
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("the socket is still open")
		}
		c.Close()
	}
}

// oneByte keeps a reader from taking more than it needs.
type oneByte struct{ net.Conn }

func (o *oneByte) Read(p []byte) (int, error) { return o.Conn.Read(p[:1]) }

func TestAChangeOfRulesEndsARequest(t *testing.T) {
	each(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/begun" {
			io.WriteString(w, "some")
			w.(http.Flusher).Flush()
		}
		<-r.Context().Done()
	}, func(t *testing.T, b *bound, c *http.Client) {
		end := func() { b.end("denied since") }
		r, err := c.Get(b.url("/begun"))
		if err != nil {
			t.Fatal(err)
		}
		end()
		if got, err := io.ReadAll(r.Body); err == nil {
			t.Errorf("%q arrived as the whole", got)
		}
		r.Body.Close()

		called := make(chan struct{})
		b.mu.Lock()
		dial := b.dial
		b.dial = func(ctx context.Context) (net.Conn, error) { defer close(called); return dial(ctx) }
		b.mu.Unlock()
		c2 := b.client(r.ProtoMajor == 2)
		go func() { <-called; end() }()
		r, err = c2.Get(b.url("/silent"))
		if got := body(t, r, err); r.StatusCode != http.StatusForbidden || !strings.Contains(got, "denied since") {
			t.Errorf("%d %q", r.StatusCode, got)
		}
	})
}

// TestACancelledAnswerIsStillAtOnce cancels one whose host and client are both silent,
// one that the client does not read, and one whose request is still being sent.
func TestACancelledAnswerIsStillAtOnce(t *testing.T) {
	begun, over := make(chan struct{}, 1), make(chan struct{})
	b := start(t, true, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "some")
		w.(http.Flusher).Flush()
		begun <- struct{}{}
		chunk := make([]byte, 1<<20)
		for r.URL.Path == "/endless" {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
		select {
		case <-over: // whatever becomes of its connection
		case <-time.After(10 * time.Second):
		}
	})
	defer close(over)
	for _, http2 := range []bool{false, true} {
		for _, path := range []string{"/silent", "/endless", "/upload"} {
			c := b.client(http2)
			var body io.Reader
			if path == "/upload" {
				if !http2 {
					continue // the server reads it first
				}
				r, w := io.Pipe()
				defer w.Close()
				go w.Write([]byte("some"))
				body = r
			}
			q, err := http.NewRequest(http.MethodPost, b.url(path), body)
			if err != nil {
				t.Fatal(err)
			}
			r, err := c.Do(q)
			if err != nil {
				t.Fatal(err)
			}
			<-begun
			if _, err := io.ReadFull(r.Body, make([]byte, 4)); err != nil {
				t.Fatal(err)
			}
			b.mu.Lock()
			cancel := b.cancel
			b.mu.Unlock()
			over := cancel(&intercept.RefusedError{Why: "denied since"})
			if over.Alone == http2 {
				t.Errorf("%s, HTTP/2 %v: alone is %v", path, http2, over.Alone)
			}
			over.Tell()
			if over.Still != nil { // it was just being written
				select {
				case <-over.Still:
				case <-time.After(5 * time.Second):
					t.Errorf("%s, HTTP/2 %v: it goes on", path, http2)
				}
			}
			over.Tell() // again
			if _, err := io.Copy(io.Discard, r.Body); err == nil {
				t.Errorf("%s, HTTP/2 %v: it ended in order", path, http2)
			}
			r.Body.Close()
		}
	}
}

// TestWhatIsHeldBackOfACancelledAnswerDoesNotComeWithItsEnd has an answer that fails by
// itself after it was cancelled, and before both ends are told.
func TestWhatIsHeldBackOfACancelledAnswerDoesNotComeWithItsEnd(t *testing.T) {
	each(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100000")
		io.WriteString(w, strings.Repeat("x", 3000)) // less than is written at once
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}, func(t *testing.T, b *bound, c *http.Client) {
		held, more := make(chan struct{}), make(chan struct{})
		b.mu.Lock()
		b.answered = func(r *http.Response) {
			first, rest := true, r.Body
			r.Body = struct {
				io.Reader
				io.Closer
			}{readerFunc(func(p []byte) (int, error) {
				if first {
					first = false
					return io.ReadFull(rest, p[:3000])
				}
				close(held)
				<-more
				p[0] = 'y'
				return 1, nil
			}), rest}
		}
		b.mu.Unlock()
		come := make(chan string, 1)
		go func() {
			r, err := c.Get(b.url("/"))
			if err != nil {
				come <- ""
				return
			}
			defer r.Body.Close()
			got, _ := io.ReadAll(r.Body)
			come <- fmt.Sprintf("%s and %d bytes", r.Status, len(got))
		}()
		<-held
		b.mu.Lock()
		cancel := b.cancel
		b.mu.Unlock()
		tell := cancel(&intercept.RefusedError{Why: "denied since"}).Tell
		close(more)
		if got := <-come; got != "" {
			t.Errorf("the client was given %s", got)
		}
		tell()
	})
}

// TestACancelledAnswerDoesNotEndInOrder asks as clients do to whom an answer is over when
// its connection is.
func TestACancelledAnswerDoesNotEndInOrder(t *testing.T) {
	for _, secure := range []bool{false, true} {
		b := start(t, secure, func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "some")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		})
		c, err := net.Dial("tcp", b.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if secure {
			c = tls.Client(c, &tls.Config{RootCAs: b.roots, ServerName: host})
		}
		c.SetDeadline(time.Now().Add(10 * time.Second))
		fmt.Fprintf(c, "GET / HTTP/1.0\r\nHost: %s\r\n\r\n", strings.TrimPrefix(strings.TrimPrefix(b.url(""), "https://"), "http://"))
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		if _, err := io.ReadFull(r.Body, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
		b.end("denied since")
		if _, err := io.ReadAll(r.Body); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("TLS %v: the answer ends with %v, want a reset", secure, err)
		}
	}
}

// TestACancelledRequestHarmsNotTheNext has one refused whose body has arrived, and asks
// again on its connection.
func TestACancelledRequestHarmsNotTheNext(t *testing.T) {
	begun := make(chan struct{}, 1)
	each(t, func(w http.ResponseWriter, r *http.Request) {
		if io.Copy(io.Discard, r.Body); r.URL.Path == "/waits" {
			begun <- struct{}{}
			<-r.Context().Done()
			return
		}
		io.WriteString(w, "hello")
	}, func(t *testing.T, b *bound, c *http.Client) {
		var again bool
		trace := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { again = i.Reused }})
		for range 5 {
			go func() {
				<-begun
				b.end("denied since")
			}()
			r, err := c.Post(b.url("/waits"), "text/plain", strings.NewReader("all of it"))
			if got := body(t, r, err); r.StatusCode != http.StatusForbidden || !strings.Contains(got, "denied since") {
				t.Fatalf("%s: %s", r.Status, got)
			}
			q, _ := http.NewRequestWithContext(trace, http.MethodPost, b.url("/next"), struct{ io.Reader }{strings.NewReader("all of it")})
			r, err = c.Do(q)
			if got := body(t, r, err); got != "hello" {
				t.Errorf("the next, on the same connection %v: %s: %s", again, r.Status, got)
			}
		}
	})
}

// A host that notices its connection end may still close its answer in order.
func TestAnAnswerThatEndsAfterItsRequestIsNotWhole(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	denied := &intercept.RefusedError{Why: "denied since"}
	read := func(ending func()) (string, error) {
		body := io.MultiReader(strings.NewReader("some"), reading(func() (int, error) { ending(); return 0, io.EOF }))
		b, err := io.ReadAll(intercept.Whole(ctx, io.NopCloser(body)))
		return string(b), err
	}
	if got, err := read(func() {}); got != "some" || err != nil {
		t.Errorf("while it goes on: %q, %v", got, err)
	}
	if got, err := read(func() { cancel(denied) }); got != "some" || !errors.Is(err, denied) {
		t.Errorf("meanwhile: %q, %v", got, err)
	}
	if got, err := read(func() { t.Error("it was read") }); got != "" || !errors.Is(err, denied) {
		t.Errorf("afterwards: %q, %v", got, err)
	}
}

type reading func() (int, error)

func (r reading) Read([]byte) (int, error) { return r() }

func BenchmarkSmallRequests(b *testing.B) {
	bd := start(b, true, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "ok") })
	direct := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: bd.roots}, MaxIdleConnsPerHost: 8,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return bd.dial(ctx) }}}
	through := bd.client(false)
	through.Transport.(*http.Transport).MaxIdleConnsPerHost = 8
	for name, c := range map[string]*http.Client{"direct": direct, "intercepted": through} {
		b.Run(name, func(b *testing.B) {
			b.SetParallelism(4)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					r, err := c.Get(bd.url("/"))
					if err != nil {
						b.Error(err)
						return
					}
					io.Copy(io.Discard, r.Body)
					r.Body.Close()
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
		})
		b.Run(name+"/alone", func(b *testing.B) {
			took := make([]time.Duration, 0, b.N)
			for b.Loop() {
				began := time.Now()
				r, err := c.Get(bd.url("/"))
				if err != nil {
					b.Fatal(err)
				}
				io.Copy(io.Discard, r.Body)
				r.Body.Close()
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
		})
	}
}

func BenchmarkDownload(b *testing.B) {
	const size = 64 << 20
	chunk := bytes.Repeat([]byte("x"), 1<<20)
	bd := start(b, true, func(w http.ResponseWriter, r *http.Request) {
		for range size / len(chunk) {
			w.Write(chunk)
		}
	})
	for _, http2 := range []bool{false, true} {
		c := bd.client(http2)
		b.Run(map[bool]string{true: "h2", false: "h1"}[http2], func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				r, err := c.Get(bd.url("/"))
				if err != nil {
					b.Fatal(err)
				}
				io.Copy(io.Discard, r.Body)
				r.Body.Close()
			}
		})
	}
}

func selfSigned(t testing.TB) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{host}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	kd, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: kd})
}

func TestNothingPassesWhoLooksAtAnswers(t *testing.T) {
	for _, looked := range []bool{false, true} {
		t.Run(fmt.Sprint(looked), func(t *testing.T) {
			seen := make(chan int, 10)
			b := start(t, true, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Link", "<given>")
				w.WriteHeader(http.StatusEarlyHints)
				w.Header().Del("Link")
				io.WriteString(w, "answer")
			})
			if looked {
				b.mu.Lock()
				b.answered = func(r *http.Response) { seen <- r.StatusCode }
				b.mu.Unlock()
			}
			for _, http2 := range []bool{false, true} {
				hints := 0
				req, err := http.NewRequest(http.MethodGet, b.url("/"), http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				req = req.WithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(int, textproto.MIMEHeader) error { hints++; return nil }}))
				r, err := b.client(http2).Do(req)
				if got := body(t, r, err); got != "answer" || r.Header.Get("Link") != "" {
					t.Errorf("%q, %v", got, r.Header)
				}
				if want := map[bool]int{false: 1, true: 0}[looked]; hints != want {
					t.Errorf("%d answers before the answer, want %d", hints, want)
				}
			}
			if looked && len(seen) != 2 {
				t.Errorf("%d answers were seen", len(seen))
			}
		})
	}
}

// TestAnAnswerInThePlaceOfTheHostEndsWithItsRequest has a hook whose answer waits in the
// server when its request is cancelled, and which then returns.
func TestAnAnswerInThePlaceOfTheHostEndsWithItsRequest(t *testing.T) {
	b := start(t, true, func(http.ResponseWriter, *http.Request) {})
	written, goOn := make(chan struct{}), make(chan struct{})
	b.mu.Lock()
	b.take = func(w http.ResponseWriter, _ *http.Request, _ intercept.Send) bool {
		io.WriteString(w, "some")
		written <- struct{}{}
		<-goOn
		return true
	}
	b.mu.Unlock()
	for _, http2 := range []bool{false, true} {
		got := make(chan error)
		go func() {
			r, err := b.client(http2).Get(b.url("/"))
			if err == nil {
				var text []byte
				text, err = io.ReadAll(r.Body)
				r.Body.Close()
				if err == nil {
					t.Errorf("HTTP/2 %v: the client got %q", http2, text)
				}
			}
			got <- err
		}()
		<-written
		b.mu.Lock()
		over := b.cancel(&intercept.RefusedError{Why: "denied since"})
		b.mu.Unlock()
		if over.Alone == http2 || http2 && over.Still != nil {
			t.Errorf("HTTP/2 %v: %+v", http2, over)
		}
		if !http2 {
			over.Tell() // or the connection would be cut
		}
		goOn <- struct{}{}
		<-got
	}
}
