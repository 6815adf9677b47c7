// Package intercept looks into the connections of a sandbox to hosts at which
// only particular HTTP requests are allowed: it ends TLS on the sandbox's side,
// has every request judged, and carries the allowed ones on over a connection of
// its own whose certificate it verifies.
//
// It speaks HTTP/1.1 and HTTP/2 on both sides and nothing else: what cannot be
// looked into is refused. It decides nothing and dials nothing; package proxy
// gives it a [Session] that does.
package intercept

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/handover"
)

// How long one client may take. Tests have less time.
var (
	helloTime  = 30 * time.Second // from the first byte expected to the end of a handshake
	headerTime = 30 * time.Second // for the headers of a request
)

// Bounds of what one client can hold.
const (
	idleTime       = 10 * time.Minute // between requests
	maxHeaderBytes = 256 << 10
	maxSniff       = 64 // longer than every method

	// What is on its way within HTTP/2 is held here when one side sends and
	// the other does not take it. The sandbox is near, so a megabyte keeps an
	// upload going; what a host sends may have been under way for 100 ms.
	uploadWindow   = 1 << 20
	streamWindow   = 1 << 20
	downloadWindow = 8 << 20
)

// A Session is one connection from the sandbox. All fields that
// do not say otherwise are required.
type Session struct {
	Client net.Conn // closing it ends the session, by a reset after SetLinger(0), if it has that
	Host   string   // what it is connected to: a name, or an address in its one spelling
	Port   uint16

	// Dial connects to Host and Port. A [RefusedError] says that policy
	// does not allow what they lead to.
	Dial func(ctx context.Context) (net.Conn, error)

	// Forward is a proxy that requests without TLS go to, but for upgrades.
	// Nil: they go where Dial leads.
	Forward *Forward

	// Begin judges a request. If it is allowed, cancel may be called with a
	// reason until t.End is.
	Begin func(ctx context.Context, r Request, cancel Cancel) (v egress.Verdict, t Turn)

	// Refuse is told of what was refused without or before a judgement, in
	// words; method is empty when there was no request.
	Refuse func(protocol, method, path, why string)
}

// A Cancel ends a request. It returns at once and wakes nobody.
type Cancel func(why error) Cancelled

// A Cancelled request is about to be over.
type Cancelled struct {
	// Alone says that the request has its connection to itself and that its answer has
	// begun, as in HTTP/1, which ends such only with the connection: the server may
	// hold a part back. Who can cut that needs nothing else.
	Alone bool

	// Still is nil if the request moves no byte any more. Else others have to come to
	// an end for it, and it is closed some time after Tell; a client that reads
	// nothing, or a hook that does not heed its context, can keep that from happening.
	Still <-chan struct{}

	// Tell lets both ends know, and does nothing when called again. It is to be called
	// when nothing else is to be ended first, which it would hold up.
	Tell func()
}

// A Turn is what is done with one request that was allowed.
type Turn struct {
	// Take may answer the request, if it is proven as [Request] says, in the
	// place of the host, which send asks, and reports whether it did. It is
	// called once. Nil answers none.
	Take func(w http.ResponseWriter, r *http.Request, send Send) bool

	// Answered is told of the answer before the client gets it. It may change
	// its fields and put another body in the place of the one there is, which it
	// then closes, and must not read it. Nil: nobody is told.
	Answered func(*http.Response)

	// End is called when nothing of the request is left. Required.
	End func()
}

// A Forward is an HTTP proxy of the host's network that takes requests in absolute
// form.
type Forward struct {
	Name string        // for messages
	User *url.Userinfo // its login; nil if it wants none
	Dial func(context.Context) (net.Conn, error)
}

// Send asks the host of a session for a request, whose URL has a path and a
// query; the caller closes the answer's body.
type Send func(*http.Request) (*http.Response, error)

// A Request is one HTTP request as it is put to [Session.Begin].
type Request struct {
	Method string
	Path   string // as it was sent, without its query

	// Header is what is about to be sent to the host, and Begin may change
	// it. Nil if the request is only judged.
	Header http.Header

	// Proven says that the connection is TLS whose client named the host of
	// the session, which the authority of the request is as well.
	Proven bool
}

// A RefusedError is a refusal that becomes known after a request has begun.
type RefusedError struct{ Why string }

func (e *RefusedError) Error() string { return e.Why }

// A Server serves the sessions of one sandbox. Make it with [New]. Its methods
// can be called concurrently.
type Server struct {
	leaf  func(host string) (*tls.Certificate, error)
	roots *x509.CertPool
	http  *http.Server
	conns *handover.Listener
	tls   tls.ClientSessionCache
	bufs  buffers
	over  sync.WaitGroup
}

// New returns a server that shows clients what leaf returns for a host, and
// accepts of hosts what roots have signed; nil roots are the system's.
func New(leaf func(host string) (*tls.Certificate, error), roots *x509.CertPool) *Server {
	s := &Server{leaf: leaf, roots: roots, conns: handover.New(), tls: tls.NewLRUClientSessionCache(128)}
	s.http = &http.Server{
		Handler:                      http.HandlerFunc(s.handle),
		ReadHeaderTimeout:            headerTime,
		IdleTimeout:                  idleTime,
		MaxHeaderBytes:               maxHeaderBytes,
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     log.New(io.Discard, "", 0), // what clients do wrong is theirs to see
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, stateKey{}, stateOf(c))
		},
		ConnState: func(c net.Conn, to http.ConnState) {
			if w, ok := c.(*wire); ok && (to == http.StateIdle || to == http.StateClosed) {
				w.state.answered()
			}
		},
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 250, MaxReceiveBufferPerConnection: uploadWindow, MaxReceiveBufferPerStream: uploadWindow},
	}
	s.over.Go(func() { _ = s.http.Serve(s.conns) })
	return s
}

// Close ends every session and returns when none is left.
func (s *Server) Close() {
	s.http.Close()
	s.over.Wait()
}

type stateKey struct{}

// state is a session and what belongs to it.
type state struct {
	*Session
	secure    bool
	proven    bool   // secure, and the client named the host
	authority string // of Host and Port as a URL has it
	transport *http.Transport
	proxy     *httputil.ReverseProxy

	gone    <-chan struct{} // closed when the client is
	spoiled atomic.Bool     // of HTTP/1: nothing more may be said to the client

	mu       sync.Mutex
	requests int           // being carried, and connections being made for them; guarded by mu
	over     bool          // no more are; guarded by mu
	idle     chan struct{} // closed when over and none is left
	last     *carried      // of HTTP/1, whose answer may wait to be written; guarded by mu
}

// enter counts a request in, unless the session is over.
func (st *state) enter() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.over {
		return false
	}
	st.requests++
	return true
}

func (st *state) leave() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.requests--; st.over && st.requests == 0 {
		close(st.idle)
	}
}

// dial connects to the host, for as long as there is a client: the transport goes
// on with what a request that has ended began.
func (st *state) dial(ctx context.Context, to func(context.Context) (net.Conn, error)) (net.Conn, error) {
	if !st.enter() {
		return nil, net.ErrClosed
	}
	defer st.leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-st.gone:
			cancel()
		case <-done:
		}
	}()
	return to(ctx)
}

// end waits for the requests that are left.
func (st *state) end() {
	st.mu.Lock()
	st.over = true
	if st.requests == 0 {
		close(st.idle)
	}
	st.mu.Unlock()
	<-st.idle
}

// wire is the client's connection, with what has been read of it put back.
type wire struct {
	net.Conn
	r     *bufio.Reader
	state *state
	once  sync.Once
	gone  chan struct{}
}

func (w *wire) Read(p []byte) (int, error) { return w.r.Read(p) }

// Write implements [net.Conn].
func (w *wire) Write(p []byte) (int, error) {
	if w.state.spoiled.Load() {
		return 0, net.ErrClosed
	}
	return w.Conn.Write(p)
}

// Close implements [net.Conn]. It resets what is spoiled.
func (w *wire) Close() error {
	if l, ok := w.Conn.(interface{ SetLinger(sec int) error }); ok && w.state.spoiled.Load() {
		_ = l.SetLinger(0) // fails when it is closed, which is as good
	}
	err := w.Conn.Close()
	w.once.Do(func() { close(w.gone) })
	return err
}

// CloseWrite lets the server end its half and read on for a moment, so that an
// answer to a request that was not read to its end arrives.
func (w *wire) CloseWrite() error {
	if w.state.spoiled.Load() {
		return net.ErrClosed
	}
	if h, ok := w.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return errors.ErrUnsupported
}

func newWire(c net.Conn, st *state) *wire {
	return &wire{Conn: c, r: bufio.NewReaderSize(c, 4096), state: st, gone: make(chan struct{})}
}

func stateOf(c net.Conn) *state {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	return c.(*wire).state
}

// Serve serves one session and returns when its connection has ended and
// nothing of it is left, or when it has been refused; then the caller closes the
// connection, in the way that refusals have. ctx ends it.
func (s *Server) Serve(ctx context.Context, sess *Session) {
	defer context.AfterFunc(ctx, func() { sess.Client.Close() })()
	st := &state{Session: sess, idle: make(chan struct{})}
	w := newWire(sess.Client, st)
	st.gone = w.gone
	sess.Client.SetReadDeadline(time.Now().Add(helloTime))
	first, err := w.r.Peek(1)
	if err != nil {
		if errors.Is(err, io.EOF) || ctx.Err() != nil {
			return // a connection that was only tried
		}
		sess.Refuse("tcp", "", "", "only HTTP requests are allowed there, and the client said nothing")
		return
	}
	var conn net.Conn = w
	http2 := false
	if first[0] == 0x16 {
		st.secure = true
		t, err := s.handshake(ctx, w, sess)
		if err != nil {
			if ctx.Err() == nil {
				sess.Refuse("tls", "", "", err.Error())
			}
			return
		}
		st.proven = t.ConnectionState().ServerName != ""
		if http2 = t.ConnectionState().NegotiatedProtocol == "h2"; http2 {
			conn = t
		} else {
			conn = newWire(t, st)
		}
	}
	if !http2 {
		if why := sniff(conn.(*wire)); why != "" {
			if ctx.Err() == nil {
				sess.Refuse(map[bool]string{true: "tls", false: "tcp"}[st.secure], "", "", why)
			}
			return
		}
	}
	sess.Client.SetReadDeadline(time.Time{})
	s.prepare(st, http2)
	defer st.transport.CloseIdleConnections()
	if !s.conns.Put(conn) {
		return
	}
	<-w.gone
	st.end()
}

// handshake ends the client's TLS with a certificate for exactly the host that
// it is connected to.
func (s *Server) handshake(ctx context.Context, w *wire, sess *Session) (*tls.Conn, error) {
	leaf, err := s.leaf(sess.Host)
	if err != nil {
		return nil, err
	}
	var other error
	t := tls.Server(w, &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		// A ticket would have to be tied to the host, and a client that
		// resumes saves next to nothing on a link this short.
		SessionTicketsDisabled: true,
		GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
			if h.ServerName != "" && !strings.EqualFold(strings.TrimSuffix(h.ServerName, "."), sess.Host) {
				other = fmt.Errorf("TLS server name %q is not the name that was asked for", h.ServerName)
				return nil, other
			}
			return leaf, nil
		},
	})
	ctx, cancel := context.WithTimeout(ctx, helloTime)
	defer cancel()
	if err := t.HandshakeContext(ctx); err != nil {
		if other != nil {
			return nil, other
		}
		next := ""
		if distrusts(err) {
			next = "; recreate the sandbox if the rule is newer than it, or lead the client to /usr/local/share/ca-certificates/kitbox.crt"
		}
		return nil, fmt.Errorf("requests there have to be looked at, and the client does not let this boundary look into its TLS: %w%s", err, next)
	}
	return t, nil
}

// distrusts reports whether a handshake ended as one does whose client does not
// accept the certificate: with an alert that says so, without a word, or, as
// OpenSSL, with an alert that is not encrypted where it has to be.
func distrusts(err error) bool {
	var op *net.OpError
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET):
		return true
	case !errors.As(err, &op) || op.Err == nil:
		return false
	case op.Op == "remote error":
		return strings.Contains(op.Err.Error(), "certificate")
	}
	return op.Op == "local error" && strings.Contains(op.Err.Error(), "bad record MAC")
}

// sniff says why what w begins with is not HTTP/1; empty if it may be.
func sniff(w *wire) string {
	for n := 1; n <= maxSniff; n++ {
		b, err := w.r.Peek(n)
		if err != nil {
			return "only HTTP requests are allowed there, and the client began none"
		}
		switch c := b[n-1]; {
		case c == ' ' && string(b) == "PRI ":
			return "HTTP/2 without TLS is not carried"
		case c == ' ' && n > 1:
			return ""
		case !tokenByte(c):
			return "only HTTP requests are allowed there, and this is not HTTP"
		}
	}
	return "only HTTP requests are allowed there, and this is not HTTP"
}

// tokenByte reports whether c may be in a method (RFC 9110 §5.6.2).
func tokenByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

// prepare makes the way out of st. Connections to the host are never shared
// between sessions: when one is cut, all that it had is.
func (s *Server) prepare(st *state, http2 bool) {
	host := st.Host
	if a, err := netip.ParseAddr(host); err == nil && a.Is6() {
		host = "[" + host + "]"
	}
	st.authority = host
	if st.Port != st.defaultPort() {
		st.authority = fmt.Sprintf("%s:%d", host, st.Port)
	}
	st.transport = &http.Transport{
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return st.dial(ctx, st.Dial) },
		TLSClientConfig:        &tls.Config{RootCAs: s.roots, ServerName: st.Host, ClientSessionCache: s.tls},
		TLSHandshakeTimeout:    15 * time.Second,
		ExpectContinueTimeout:  10 * time.Second,
		IdleConnTimeout:        90 * time.Second,
		MaxIdleConnsPerHost:    16,
		MaxResponseHeaderBytes: maxHeaderBytes,
		DisableCompression:     true, // bodies pass as they are
		ReadBufferSize:         16 << 10,
		WriteBufferSize:        16 << 10,
		// The host is spoken to as the client speaks: an upgrade needs
		// HTTP/1.1, and gRPC needs HTTP/2.
		Protocols: new(http.Protocols),
		HTTP2:     &http.HTTP2Config{MaxReceiveBufferPerConnection: downloadWindow, MaxReceiveBufferPerStream: streamWindow},
	}
	if !st.secure && st.Forward != nil {
		st.transport.Proxy = func(r *http.Request) (*url.URL, error) {
			if r.Header.Get("Upgrade") != "" {
				return nil, nil // a proxy would answer it itself
			}
			return &url.URL{Scheme: "http", Host: forwardAddress, User: st.Forward.User}, nil
		}
		st.transport.DialContext = func(ctx context.Context, _, addr string) (net.Conn, error) {
			if addr == forwardAddress {
				return st.dial(ctx, st.Forward.Dial)
			}
			return st.dial(ctx, st.Dial)
		}
	}
	st.transport.Protocols.SetHTTP1(true)
	st.transport.Protocols.SetHTTP2(http2)
	st.proxy = &httputil.ReverseProxy{
		Rewrite:      func(r *httputil.ProxyRequest) { rewrite(r, st) },
		Transport:    st.transport,
		BufferPool:   &s.bufs,
		ErrorLog:     s.http.ErrorLog,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) { failed(w, r, st, err) },
		ModifyResponse: func(r *http.Response) error {
			if r.StatusCode == http.StatusProxyAuthRequired && !st.secure && st.Forward != nil {
				r.Body.Close()
				return st.Forward.unwelcome()
			}
			c := carriedFor(r)
			if c.turn.Answered != nil {
				c.turn.Answered(r)
			}
			if r.StatusCode != http.StatusSwitchingProtocols { // that one is written to as well
				r.Body = &whole{r.Body, r.Request.Context(), c}
			} else {
				c.change()
			}
			return keepTrailers(r)
		},
	}
}

// forwardAddress stands for the proxy in a transport, which dials it by that.
const forwardAddress = "forward.invalid:80"

// unwelcome is an error that says what to do about a proxy that wants a login.
func (f *Forward) unwelcome() error {
	if f.User != nil {
		return fmt.Errorf("the proxy %s does not accept the login (407)", f.Name)
	}
	return fmt.Errorf("the proxy %s wants a login: put it into the variable that names the proxy, http://USER:PASSWORD@…, and restart the sandbox", f.Name)
}

func (st *state) defaultPort() uint16 {
	if st.secure {
		return 443
	}
	return 80
}

// buffers are for copying bodies.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, 32<<10)
}

func (b *buffers) Put(p []byte) { b.pool.Put(&p) }
