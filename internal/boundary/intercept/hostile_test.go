package intercept_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/kitbox-dev/kitbox/internal/boundary/intercept"
)

// hello is the ClientHello of an ordinary client.
func hello(t testing.TB) []byte {
	t.Helper()
	mine, theirs := net.Pipe()
	go func() {
		tls.Client(theirs, &tls.Config{ServerName: host, InsecureSkipVerify: true}).Handshake()
		theirs.Close()
	}()
	b := make([]byte, 16<<10)
	n, err := mine.Read(b)
	mine.Close()
	if err != nil {
		t.Fatal(err)
	}
	return b[:n]
}

// TestSlowClientsAreLetGo has clients that begin something and never end it, and
// one that goes on for ever.
func TestSlowClientsAreLetGo(t *testing.T) {
	intercept.SetTimes(t, 200*time.Millisecond)
	b := start(t, true, func(http.ResponseWriter, *http.Request) { t.Error("a request arrived") })
	first := hello(t)
	inTLS := func(text string, drip string) func(net.Conn) error {
		return func(c net.Conn) error {
			s := tls.Client(c, &tls.Config{RootCAs: b.roots, ServerName: host})
			if err := s.Handshake(); err != nil {
				return err
			}
			if _, err := io.WriteString(s, text); err != nil {
				return err
			}
			var err error
			for drip != "" && err == nil {
				_, err = io.WriteString(s, drip)
				time.Sleep(5 * time.Millisecond)
			}
			if err == nil {
				_, err = io.Copy(io.Discard, s)
			}
			return err
		}
	}
	says := func(p []byte) func(net.Conn) error {
		return func(c net.Conn) error {
			if _, err := c.Write(p); err != nil {
				return err
			}
			_, err := io.Copy(io.Discard, c)
			return err
		}
	}
	var wg sync.WaitGroup
	for name, act := range map[string]func(net.Conn) error{
		"nothing":                 says(nil),
		"a byte of TLS":           says(first[:1]),
		"a record's head":         says(first[:5]),
		"half a hello":            says(first[:len(first)/2]),
		"a method's beginning":    says([]byte("GE")),
		"TLS and nothing":         inTLS("", ""),
		"half a first line":       inTLS("GET /x HT", ""),
		"half a header":           inTLS("GET /x HTTP/1.1\r\nHost: exa", ""),
		"headers without end":     inTLS("GET /x HTTP/1.1\r\nHost: example.com\r\n", "A: b\r\n"),
		"a header without end":    inTLS("GET /x HTTP/1.1\r\nHost: example.com\r\nA: ", "a"),
		"a target without end":    inTLS("GET /x", "x"),
		"a method without an end": inTLS("G", "G"),
	} {
		wg.Go(func() {
			c, err := net.Dial("tcp", b.addr)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(10 * time.Second))
			begun := time.Now()
			var late net.Error
			if errors.As(act(c), &late) && late.Timeout() {
				t.Errorf("%s: still there after %v", name, time.Since(begun))
			}
		})
	}
	wg.Wait()
}

// TestHeadersWithoutEndAreRefused sends what a client may, until it is told to
// stop.
func TestHeadersWithoutEndAreRefused(t *testing.T) {
	const most = 8 << 20
	b := start(t, true, func(http.ResponseWriter, *http.Request) { t.Error("a request arrived") })
	dial := func(protocols ...string) *tls.Conn {
		c, err := tls.Dial("tcp", b.addr, &tls.Config{RootCAs: b.roots, ServerName: host, NextProtos: protocols})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(20 * time.Second))
		return c
	}
	for _, line := range []string{"A: b\r\n", strings.Repeat("a", 1000), "Cookie: " + strings.Repeat("c", 5000) + "\r\n"} {
		c := dial()
		sent := 0
		io.WriteString(c, "GET /x HTTP/1.1\r\nHost: example.com\r\n")
		for sent < most {
			n, err := io.WriteString(c, line)
			if sent += n; err != nil {
				break
			}
		}
		if sent >= most {
			t.Errorf("%.10q: %d bytes of headers were taken", line, sent)
		}
	}

	// HTTP/2, in frames that go on and on.
	c := dial("h2")
	io.WriteString(c, http2.ClientPreface)
	f := http2.NewFramer(c, c)
	f.WriteSettings()
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, x := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", host}, {":path", "/x"}} {
		enc.WriteField(hpack.HeaderField{Name: x[0], Value: x[1]})
	}
	f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndStream: true})
	sent := 0
	for sent < most {
		block.Reset()
		enc.WriteField(hpack.HeaderField{Name: fmt.Sprintf("x-%d", sent), Value: strings.Repeat("v", 8000), Sensitive: true})
		if f.WriteContinuation(1, false, block.Bytes()) != nil {
			break
		}
		sent += block.Len()
	}
	if sent >= most {
		t.Errorf("%d bytes of continued headers were taken", sent)
	}
}

// TestAnAnswerOfHeadersWithoutEndIsAFailure has a host that does it.
func TestAnAnswerOfHeadersWithoutEndIsAFailure(t *testing.T) {
	b := start(t, false, func(http.ResponseWriter, *http.Request) {})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		http.ReadRequest(bufio.NewReader(c))
		io.WriteString(c, "HTTP/1.1 200 OK\r\n")
		for {
			if _, err := io.WriteString(c, "A: "+strings.Repeat("b", 1000)+"\r\n"); err != nil {
				return
			}
		}
	})
	defer wg.Wait()
	defer l.Close()
	b.mu.Lock()
	b.dial = func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	}
	b.mu.Unlock()
	r, err := b.client(false).Get(b.url("/x"))
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if r.StatusCode != http.StatusBadGateway {
		t.Errorf("status %d", r.StatusCode)
	}
}

// TestBodiesThatNobodyTakesAreBounded has clients that send, and a host that does
// not read.
func TestBodiesThatNobodyTakesAreBounded(t *testing.T) {
	const conns, streams = 24, 8
	release := make(chan struct{})
	b := start(t, true, func(_ http.ResponseWriter, r *http.Request) { <-release })
	defer close(release)
	held := holding(t)
	var taken atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for range conns {
		c := b.client(true)
		for range streams {
			wg.Go(func() {
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.url("/x"), endless{ctx, &taken})
				if err != nil {
					return
				}
				if r, err := c.Do(req); err == nil {
					r.Body.Close()
				}
			})
		}
	}
	// What is on its way comes to rest.
	for last := int64(-1); last != taken.Load() || last < conns*64<<10; time.Sleep(300 * time.Millisecond) {
		last = taken.Load()
	}
	held(conns, 5<<20)
}

// holding returns what judges how much memory has come to be held since, for each of
// several connections.
func holding(t *testing.T) func(conns, most int64) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	return func(conns, most int64) {
		t.Helper()
		runtime.GC()
		runtime.ReadMemStats(&after)
		per := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / conns
		t.Logf("%d KiB for each connection, with client and host", per>>10)
		if per > most {
			t.Errorf("%d KiB are held for each connection", per>>10)
		}
	}
}

// endless is a body, which counts what is taken of it.
type endless struct {
	ctx   context.Context
	taken *atomic.Int64
}

func (e endless) Read(p []byte) (int, error) {
	e.taken.Add(int64(len(p)))
	return len(p), e.ctx.Err()
}

// TestAnswersThatNobodyTakesAreBounded has a host that sends, and clients that do
// not read.
func TestAnswersThatNobodyTakesAreBounded(t *testing.T) {
	const conns, streams = 4, 40
	var sent atomic.Int64
	b := start(t, true, func(w http.ResponseWriter, r *http.Request) {
		p := make([]byte, 64<<10)
		for r.Context().Err() == nil {
			n, err := w.Write(p)
			if sent.Add(int64(n)); err != nil {
				return
			}
		}
	})
	held := holding(t)
	for range conns {
		c, err := tls.Dial("tcp", b.addr, &tls.Config{RootCAs: b.roots, ServerName: host, NextProtos: []string{"h2"}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, http2.ClientPreface)
		f := http2.NewFramer(c, c)
		f.WriteSettings()
		var block bytes.Buffer
		enc := hpack.NewEncoder(&block)
		for i := range streams {
			block.Reset()
			for _, x := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", host}, {":path", "/x"}} {
				enc.WriteField(hpack.HeaderField{Name: x[0], Value: x[1]})
			}
			if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: block.Bytes(), EndHeaders: true, EndStream: true}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for last := int64(-1); last != sent.Load() || last < 1<<20; time.Sleep(300 * time.Millisecond) {
		last = sent.Load()
	}
	held(conns, 24<<20)
}

// TestMalformedTLSEndsItsConnectionOnly changes each part of a hello.
func TestMalformedTLSEndsItsConnectionOnly(t *testing.T) {
	intercept.SetTimes(t, 200*time.Millisecond)
	b := start(t, true, func(http.ResponseWriter, *http.Request) {})
	good := hello(t)
	var wg sync.WaitGroup
	limit := make(chan struct{}, 16)
	for i := 0; i < len(good); i += 7 {
		wg.Add(1)
		limit <- struct{}{}
		go func() {
			defer wg.Done()
			defer func() { <-limit }()
			c, err := net.Dial("tcp", b.addr)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(10 * time.Second))
			bad := bytes.Clone(good)
			bad[i] ^= 0xff
			c.Write(bad)
			var late net.Error
			if _, err := io.Copy(io.Discard, c); errors.As(err, &late) && late.Timeout() {
				t.Errorf("with another byte %d the connection stays", i)
			}
		}()
	}
	wg.Wait()
	if r, err := b.client(true).Get(b.url("/x")); body(t, r, err) != "" || r.StatusCode != http.StatusOK {
		t.Errorf("after all that: %v", r.Status)
	}
}
