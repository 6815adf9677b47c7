// Package handover is a listener whose connections are put into it by hand: for a
// server of net/http that is given connections which somebody else accepted.
package handover

import (
	"net"
	"sync"
)

// A Listener is a [net.Listener]. Make it with [New]; its methods can be called
// concurrently.
type Listener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// New returns a listener without connections.
func New() *Listener {
	return &Listener{conns: make(chan net.Conn), done: make(chan struct{})}
}

// Put waits until c is accepted, and reports whether it was: c stays the
// caller's once the listener is closed.
func (l *Listener) Put(c net.Conn) bool {
	select {
	case l.conns <- c:
		return true
	case <-l.done:
		return false
	}
}

// Accept implements [net.Listener].
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener]. It can be called again.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// Addr implements [net.Listener]; there is no address.
func (l *Listener) Addr() net.Addr { return &net.UnixAddr{} }
