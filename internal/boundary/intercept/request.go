package intercept

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
)

// handle judges one request and carries it.
func (s *Server) handle(w http.ResponseWriter, r *http.Request) {
	st := r.Context().Value(stateKey{}).(*state)
	if !st.enter() {
		panic(http.ErrAbortHandler)
	}
	defer st.leave()
	path, _, _ := strings.Cut(r.RequestURI, "?")
	if why := st.fault(r); why != "" {
		st.Refuse(st.protocol(r), r.Method, path, why)
		refuse(w, r, why)
		return
	}
	unlist(r.Header)
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	c := &carried{ResponseWriter: w, st: st, http2: r.ProtoMajor == 2, sent: r.ContentLength == 0}
	defer st.after(c)
	stop := func(why error) Cancelled {
		alone, still := c.abort()
		return Cancelled{alone, still, func() { c.hush(); cancel(why); c.wake() }}
	}
	asked := []Request{}
	other := others(r)
	if len(other) > maxOverrides {
		why := "the request asks to be one with more than two methods besides its own"
		st.Refuse(st.protocol(r), r.Method, path, why)
		refuse(w, r, why)
		return
	}
	for _, m := range other {
		asked = append(asked, Request{Method: m, Path: path})
	}
	// Last, since what it is given is for a request that is sent.
	asked = append(asked, Request{Method: r.Method, Path: path, Header: r.Header, Proven: st.proven})
	for _, q := range asked {
		v, t := st.Begin(ctx, q, stop)
		if !v.Allow {
			refuse(w, r, v.Why)
			return
		}
		c.turn = t
		c.turns = append(c.turns, t)
	}
	w = c
	r = r.WithContext(context.WithValue(httptrace.WithClientTrace(ctx, c.trace()), carriedKey{}, c))
	if !c.sent {
		r.Body = &arriving{r.Body, c} // of the copy: the server looks at that of its own
	}
	if c.turn.Take != nil && st.proven && c.turn.Take(w, r, st.send) {
		c.deliver()
		return
	}
	if c.turn.Answered != nil {
		// An answer before the answer would pass who looks at answers. Nobody
		// needs one to be right.
		w = final{w}
	}
	st.proxy.ServeHTTP(w, r)
	c.deliver()
}

// after ends c, whose handler returns. What the server of HTTP/1 has not written of the
// answer yet it writes then, once the client takes it.
func (st *state) after(c *carried) {
	changed, cut := c.finish()
	if changed || c.http2 {
		c.end()
	} else {
		st.mu.Lock()
		st.last = c
		st.mu.Unlock()
	}
	if cut {
		panic(http.ErrAbortHandler) // though it may be whole; its connection is not what it was
	}
}

// answered says that what is between two requests of HTTP/1, or behind them, has come.
func (st *state) answered() {
	st.mu.Lock()
	c := st.last
	st.last = nil
	st.mu.Unlock()
	if c != nil {
		c.end()
	}
}

// A final leaves out what a host says before its answer, but for a change of the
// protocol.
type final struct{ http.ResponseWriter }

// WriteHeader implements [http.ResponseWriter].
func (f final) WriteHeader(status int) {
	if status >= 100 && status < 200 && status != http.StatusSwitchingProtocols {
		return
	}
	f.ResponseWriter.WriteHeader(status)
}

// Unwrap is for [http.ResponseController].
func (f final) Unwrap() http.ResponseWriter { return f.ResponseWriter }

// send asks the host of the session for r, whose URL has a path and a query.
func (st *state) send(r *http.Request) (*http.Response, error) {
	r.URL.Scheme, r.URL.Host, r.Host = "https", st.authority, st.authority
	if !st.secure {
		r.URL.Scheme = "http"
	}
	return st.transport.RoundTrip(r)
}

func (st *state) protocol(r *http.Request) string {
	p := "http"
	if st.secure {
		p = "https"
	}
	return p
}

// fault says why r cannot be carried whatever the policy; empty if it can.
func (st *state) fault(r *http.Request) string {
	switch {
	case r.Method == http.MethodConnect:
		return "CONNECT would make a tunnel that cannot be looked into"
	case r.Method == http.MethodTrace:
		return "TRACE is not carried"
	case r.URL.IsAbs() || !strings.HasPrefix(r.RequestURI, "/"):
		return "only the path of a request may stand in its first line; no proxy is here"
	}
	if strings.ContainsFunc(r.RequestURI, func(c rune) bool { return c <= ' ' || c == 0x7f }) {
		// HTTP/2 lets it through, and in HTTP/1 it ends the target.
		return "the target of the request has a space or a control character"
	}
	if why := st.foreign(r.Host); why != "" {
		return why
	}
	for name := range r.Header {
		if framing(name) {
			return fmt.Sprintf("some servers take the header %.40q for one that says where a request ends", name)
		}
	}
	if up := r.Header["Upgrade"]; len(up) > 0 && httpguts.HeaderValuesContainsToken(r.Header["Connection"], "Upgrade") {
		if len(up) != 1 || !strings.EqualFold(up[0], "websocket") || r.Method != http.MethodGet {
			return fmt.Sprintf("an upgrade to %.40q cannot be looked into", strings.Join(up, ", "))
		}
	}
	return ""
}

// unlist takes out of h the fields that it says are for the next hop alone (RFC 9110
// §7.6.1), as whoever passes a request on must. Here it is done before the request is
// judged: a client that lists a field could else have a secret taken out again that
// was put there, and logged, since. What says how the connection is used stays for
// who carries the request.
func unlist(h http.Header) {
	values := h["Connection"]
	if len(values) == 0 {
		return
	}
	var kept []string
	for _, name := range strings.Split(strings.Join(values, ","), ",") {
		name = strings.TrimSpace(name)
		switch strings.ToLower(name) {
		case "":
		case "close", "keep-alive", "te", "upgrade":
			kept = append(kept, name)
		default:
			h.Del(name)
		}
	}
	h["Connection"] = kept
}

// framing reports whether name is almost that of a header that says where a body
// ends. Nobody needs one, and a server that drops or replaces odd characters
// would end the body elsewhere, and take the rest for one more request.
func framing(name string) bool {
	if len(name) < len("Content-Length") || len(name) > 40 || name == "Content-Length" || name == "Transfer-Encoding" {
		return false
	}
	return letters(name, "contentlength") || letters(name, "transferencoding")
}

// foreign says why authority is not the host of the connection. One that is not
// would let the answer to one name be asked for under another.
func (st *state) foreign(authority string) string {
	host, port := authority, st.defaultPort()
	if i := strings.LastIndexByte(authority, ':'); i >= 0 && !strings.HasSuffix(authority, "]") {
		n, err := strconv.ParseUint(authority[i+1:], 10, 16)
		if err != nil {
			return fmt.Sprintf("the request is for %.80q, which is no host", authority)
		}
		host, port = authority[:i], uint16(n)
	}
	h, err := egress.ParseHost(host)
	if err != nil || h.String() != st.Host || port != st.Port {
		return fmt.Sprintf("the request is for %.80q and the connection to %s", authority, st.authority)
	}
	return ""
}

// rewrite makes the request that leaves out of the one that came: the same but
// for what belongs to a connection.
func rewrite(r *httputil.ProxyRequest, st *state) {
	r.Out.URL.Scheme = "http"
	if st.secure {
		r.Out.URL.Scheme = "https"
	}
	r.Out.URL.Host = st.authority
	r.Out.URL.RawQuery = r.In.URL.RawQuery // parameters that Go does not understand as well
	r.Out.Trailer = r.In.Trailer
	// What the client says of those before it is the client's affair.
	for _, h := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v, ok := r.In.Header[h]; ok {
			r.Out.Header[h] = v
		}
	}
	if _, ok := r.Out.Header["User-Agent"]; !ok {
		r.Out.Header.Set("User-Agent", "") // and not Go's
	}
}

// carried is a request on its way, and the writer of its answer, which writes nothing
// once the request is cancelled unless the answer had not begun: then it can still be
// another one.
type carried struct {
	http.ResponseWriter
	st    *state
	turn  Turn   // of what is sent
	turns []Turn // that one, and those of what else it could be taken for
	http2 bool
	sent  bool // the request has no body

	mu      sync.Mutex
	to      net.Conn // what it leaves by; guarded by mu
	left    bool     // wholly, by that; guarded by mu
	arrived bool     // the body of the request has; guarded by mu
	begun   bool     // the answer has; guarded by mu
	changed bool     // to another protocol, which is written past this; guarded by mu
	writing bool     // guarded by mu
	aborted bool     // guarded by mu
	over    bool     // nothing may be asked of the writer any more; guarded by mu
	refused bool     // all of the answer is that it was cancelled; guarded by mu
	ended   bool     // nothing of it is left; guarded by mu
	quiet   bool     // it moves no byte any more; guarded by mu

	still chan struct{} // closed when it is quiet, if somebody waits for that; guarded by mu
}

type carriedKey struct{}

// carriedFor returns the request that r answers.
func carriedFor(r *http.Response) *carried {
	return r.Request.Context().Value(carriedKey{}).(*carried)
}

// begin says that what comes next is a part of the answer.
func (c *carried) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun = true
	c.spoil()
}

// change says that what comes next is of another protocol.
func (c *carried) change() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun, c.changed = true, true
	c.spoil()
}

// spoil has the connection of HTTP/1 carry nothing more if an answer that has begun is
// aborted: when its handler ends, the server writes what it has held back of that, and
// ends the connection in order, which is the end of some answers. c.mu is held.
func (c *carried) spoil() {
	if c.aborted && c.begun && !c.over && !c.http2 {
		c.st.spoiled.Store(true)
	}
}

// trace is told by what the request leaves, and when it has.
func (c *carried) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GotConn: func(i httptrace.GotConnInfo) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.to, c.left = i.Conn, false
		},
		WroteRequest: func(i httptrace.WroteRequestInfo) {
			if i.Err != nil {
				return
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			c.left = true
			c.settle()
		},
	}
}

// deliver waits until the client has taken what it gets of the answer. The server of
// HTTP/2 would wait for that when nobody can end it any more.
func (c *carried) deliver() {
	if c.http2 {
		_ = c.FlushError() // then the stream has been reset
	}
}

// abort lets no more of an answer be written that has begun, and returns what
// [Cancelled] holds.
func (c *carried) abort() (alone bool, still <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.aborted = true
	c.spoil()
	c.settle()
	alone = c.begun && !c.http2 && !c.ended
	if c.quiet {
		return alone, nil
	}
	if c.still == nil {
		c.still = make(chan struct{})
	}
	return alone, c.still
}

// past is a deadline that is over.
var past = time.Unix(1, 0)

// hush makes fail what waits for the client to read: it would not notice that its
// request has ended.
func (c *carried) hush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over && c.begun && (c.writing || c.changed || !c.http2) {
		_ = http.NewResponseController(c.ResponseWriter).SetWriteDeadline(past) // or the connection is ended
	}
}

// wake does the same for what waits for the client to send, which has to end with the
// reason that its request was given. If nothing does, the connection is left alone: to the
// server of HTTP/1 it would be broken, and its next request over when it comes.
func (c *carried) wake() {
	c.hush()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over && !c.sent && !c.arrived {
		_ = http.NewResponseController(c.ResponseWriter).SetReadDeadline(past) // or the connection is ended
	}
}

// settle notes whether c is quiet; c.mu is held. What has begun to be answered moves
// nothing more if it has no body and has left; all else is waited for to its end.
func (c *carried) settle() {
	if !c.quiet && (c.ended || c.over && c.refused || !c.over && c.aborted && c.begun && c.sent && (c.left || c.to == nil) && !c.changed && !c.writing) {
		c.quiet = true
		if c.still != nil {
			close(c.still)
		}
	}
}

// finish says that the handler returns. changed reports whether nothing of an answer is
// left to the server, since another protocol was spoken, and cut whether an answer was
// aborted, of which nothing may be left to it either. A request that was cancelled while
// it left takes the connection to the host with it, and all others there: a part may
// wait there until the host takes it, and HTTP/2 leaves that behind.
func (c *carried) finish() (changed, cut bool) {
	c.mu.Lock()
	if to := c.to; c.aborted && to != nil && !c.left {
		c.mu.Unlock()
		if t, ok := to.(*tls.Conn); ok {
			to = t.NetConn() // TLS would have a last word
		}
		to.Close()
		c.mu.Lock()
	}
	c.over, c.refused = true, c.aborted && !c.begun
	c.settle()
	changed, cut = c.changed, c.aborted && c.begun
	c.mu.Unlock()
	return changed, cut
}

// end says that nothing of the request is left.
func (c *carried) end() {
	c.mu.Lock()
	c.ended = true
	c.settle()
	c.mu.Unlock()
	for _, t := range c.turns {
		t.End()
	}
}

// write calls f, which writes, unless that is over.
func (c *carried) write(f func() error) error {
	c.mu.Lock()
	if c.aborted && c.begun {
		c.mu.Unlock()
		return http.ErrAbortHandler
	}
	if !c.aborted {
		c.begun = true
	}
	c.writing = true
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.writing = false
		c.settle()
	}()
	return f()
}

// Write implements [http.ResponseWriter].
func (c *carried) Write(p []byte) (n int, err error) {
	err = c.write(func() error { n, err = c.ResponseWriter.Write(p); return err })
	return n, err
}

// FlushError is for [http.ResponseController].
func (c *carried) FlushError() error {
	return c.write(func() error { return http.NewResponseController(c.ResponseWriter).Flush() })
}

// Unwrap is for [http.ResponseController].
func (c *carried) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// An arriving is the body of a request that notes that all of it has come.
type arriving struct {
	io.ReadCloser
	c *carried
}

// Read implements [io.Reader].
func (b *arriving) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.c.mu.Lock()
		b.c.arrived = true
		b.c.mu.Unlock()
	}
	return n, err
}

// A whole is a body whose end counts only while its request may go on. A host
// that sees its connection end may close its answer in order, in the moment
// before ours is gone, and the client would take a part for everything.
type whole struct {
	io.ReadCloser
	ctx context.Context
	c   *carried
}

// Read implements [io.Reader].
func (b *whole) Read(p []byte) (int, error) {
	// Before the look at ctx: who cancels it looks whether this has begun.
	b.c.begin()
	if b.ctx.Err() != nil {
		return 0, context.Cause(b.ctx)
	}
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) && b.ctx.Err() != nil {
		err = context.Cause(b.ctx)
	}
	return n, err
}

// keepTrailers makes room for trailers in an answer to an HTTP/1 client, which
// gets none behind a body whose length was announced.
func keepTrailers(r *http.Response) error {
	if len(r.Trailer) > 0 && r.Request.ProtoMajor == 1 {
		r.Header.Del("Content-Length")
		r.ContentLength = -1
	}
	return nil
}

// Refuse answers, in a [Turn]'s Take, a request that is not allowed after all.
func Refuse(w http.ResponseWriter, r *http.Request, why string) { refuse(w, r, why) }

// refuse answers what is not allowed.
func refuse(w http.ResponseWriter, r *http.Request, why string) {
	answer(w, r, http.StatusForbidden, "refused by the sandbox's network policy: "+why)
}

func answer(w http.ResponseWriter, _ *http.Request, status int, text string) {
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Kitbox-Boundary", map[bool]string{true: "refused", false: "unreachable"}[status == http.StatusForbidden])
	w.WriteHeader(status)
	fmt.Fprintf(w, "kitbox: %s\n", text)
}

// failed answers a request that was allowed and got no answer.
func failed(w http.ResponseWriter, r *http.Request, st *state, err error) {
	var refused *RefusedError
	if errors.As(err, &refused) || errors.As(context.Cause(r.Context()), &refused) {
		refuse(w, r, refused.Why)
		return
	}
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the client has gone
	}
	what := err.Error()
	var bad *tls.CertificateVerificationError
	if errors.As(err, &bad) {
		what = "its certificate cannot be verified: " + bad.Err.Error()
	}
	answer(w, r, http.StatusBadGateway, fmt.Sprintf("%s cannot be reached: %s", st.authority, what))
}
