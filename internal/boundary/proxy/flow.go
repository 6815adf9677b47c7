package proxy

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/boundary/intercept"
)

// A flow is one connection from the sandbox.
type flow struct {
	host   string // the name, or the address in its one spelling
	named  bool   // host is a name
	v6     bool   // the client uses IPv6
	port   uint16
	client *net.TCPConn
	cancel context.CancelFunc // ends lookup and dialling
	ended  chan struct{}      // closed when it is cut, or has ended in order
	gate   gate

	mu       sync.Mutex
	spliced  bool        // guarded by mu; it is carried unseen
	dialling int         // guarded by mu; how many other sides are being made
	ups      []*upstream // guarded by mu; more than one only if it is looked into
	requests []*request  // guarded by mu; being carried
	cut      bool        // guarded by mu; nothing may be attached any more
	held     bool        // guarded by mu; it was stopped, and is open until tell
	closed   bool        // guarded by mu; both sides have been reset or closed
}

// An upstream is the other side of a flow.
type upstream struct {
	net.Conn
	f *flow
	route
}

// A route is where a connection leads.
type route struct {
	to     netip.AddrPort // what was connected to, if it has an address
	routed bool           // to is not what policy is about
	via    string         // the proxy of the host's network that it goes through
	behind []netip.Addr   // what a name resolves to that the proxy resolves again
	unseen bool           // it does not resolve here
}

// Close implements [net.Conn].
func (u *upstream) Close() error {
	u.f.mu.Lock()
	u.f.ups = slices.DeleteFunc(u.f.ups, func(o *upstream) bool { return o == u })
	u.f.mu.Unlock()
	return u.Conn.Close()
}

// A request is an HTTP request that is being carried.
type request struct {
	method, path string
	proof        *Proof
	cancel       intercept.Cancel
	over         bool // it was cancelled, though it may not have ended yet; guarded by flow.mu
}

// request is f as a question about policy.
func (f *flow) request(rules Rules) egress.Request {
	return egress.Request{Phase: rules.Phase, Host: f.host, Port: f.port, Protocol: egress.TCP, V6: f.v6}
}

// end resets both sides and ends what is under way, unless f has been stopped: whoever
// carries it comes to an end by that, and both ends must learn of it from tell alone. It
// can be called at any time and more than once; only the call that cut f returns true.
func (f *flow) end() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	first := f.mark()
	f.reset()
	return first
}

// tell is end of what has been stopped.
func (f *flow) tell() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held = false
	f.reset()
}

// reset is for end and tell; f.mu is held.
func (f *flow) reset() {
	if !f.held && !f.closed {
		f.closed = true
		f.cancel() // after the mark: what runs when ctx is done comes here too
		reset(f.client)
		for _, u := range f.ups {
			reset(u.Conn)
		}
	}
}

// mark cuts f and reports whether it had not been; f.mu is held.
func (f *flow) mark() bool {
	if f.cut {
		return false
	}
	f.cut = true
	f.gate.shut.Store(true)
	close(f.ended)
	return true
}

// stop is end, except that what is open stays so and both ends learn of nothing: f is
// only kept from moving another byte, which takes a moment. idle says that it moves
// none from now on; else see undialled and rest. If it is the first to cut f, tell has to
// follow.
func (f *flow) stop() (first, idle bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	first = f.mark()
	f.held = f.held || first
	if first && f.dialling > 0 {
		f.cancel() // that goes through no gate
	}
	return first, f.dialling == 0 && f.gate.idle()
}

// live appends to qs the requests that are carried and have not been cancelled, and
// reports whether f has been cut.
func (f *flow) live(qs []*request) (_ []*request, cut bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, q := range f.requests {
		if !q.over {
			qs = append(qs, q)
		}
	}
	return qs, f.cut
}

// undialled waits until no other side of f, which has been stopped, is being made; not
// longer than until late comes, and then it reports false. A dial can say something of
// its own, to a proxy or a resolver.
func (f *flow) undialled(late <-chan time.Time) bool {
	for {
		f.mu.Lock()
		n := f.dialling
		f.mu.Unlock()
		if n == 0 {
			return true
		}
		select {
		case <-late:
			return false
		case <-time.After(20 * time.Microsecond):
		}
	}
}

// rest waits until f, which has been stopped, moves no byte any more; not longer than
// until late comes, and then it reports false.
func (f *flow) rest(late <-chan time.Time) bool {
	if f.gate.idle() {
		return true
	}
	// Within the gate is a system call, which is about to return, or a write to
	// what is no socket.
	for n := 0; !f.gate.idle(); n++ {
		if n%50 == 0 { // TLS sets a deadline of its own once, for its last words
			f.hurry()
		}
		select {
		case <-late:
			return false
		case <-time.After(20 * time.Microsecond):
		}
	}
	return true
}

// hurry makes fail what waits for either side to take something.
func (f *flow) hurry() {
	past := time.Unix(1, 0)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	_ = f.client.SetWriteDeadline(past) // fails when it is closed, which is as good
	for _, u := range f.ups {
		u.Conn.SetWriteDeadline(past)
	}
}

// until bounds reads from the client, unless f has been stopped.
func (f *flow) until(t time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.cut {
		_ = f.client.SetReadDeadline(t)
	}
}

// dials says that another side is about to be made, unless f has been cut, and reports
// whether it may be; dialled says that it is none any more.
func (f *flow) dials() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.cut {
		f.dialling++
	}
	return !f.cut
}

func (f *flow) dialled() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dialling--
}

// attach makes up another side of f, unless f has been cut meanwhile.
func (f *flow) attach(up net.Conn, r route) *upstream {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cut {
		reset(up)
		return nil
	}
	u := &upstream{up, f, r}
	f.ups = append(f.ups, u)
	return u
}

// plain is what c leads through. A proxy of the host's network may be spoken to by TLS.
func plain(c net.Conn) net.Conn {
	for {
		w, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return c
		}
		c = w.NetConn()
	}
}

// reset closes c with a RST, so that the other end learns that this was not an
// ordinary end. TLS is not told: it would say that this is one, and wait seconds for
// an end that does not listen.
func reset(c net.Conn) {
	c = plain(c)
	if t, ok := c.(*net.TCPConn); ok {
		t.SetLinger(0)
	}
	c.Close()
}
