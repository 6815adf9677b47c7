package proxy

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A gate is what both sides of a flow that is looked into go through, so that it can be
// cut in a moment, whoever holds them: to close them takes many times as long.
type gate struct {
	shut atomic.Bool
	busy sync.RWMutex // read-locked while something is written
}

// idle reports whether nothing is being written, behind a gate that is shut.
func (g *gate) idle() bool {
	if !g.busy.TryLock() {
		return false
	}
	g.busy.Unlock()
	return true
}

// gated is one side of f. Once f is cut, it moves no byte and closing it resets both
// sides.
type gated struct {
	net.Conn
	f *flow
}

// Read implements [net.Conn]. What arrives when f is cut meanwhile is dropped.
func (g *gated) Read(p []byte) (int, error) {
	if g.f.gate.shut.Load() {
		return 0, net.ErrClosed
	}
	n, err := g.Conn.Read(p)
	if g.f.gate.shut.Load() {
		return 0, net.ErrClosed
	}
	return n, err
}

// Write implements [net.Conn].
func (g *gated) Write(p []byte) (int, error) {
	g.f.gate.busy.RLock()
	defer g.f.gate.busy.RUnlock()
	if g.f.gate.shut.Load() {
		return 0, net.ErrClosed
	}
	return g.Conn.Write(p)
}

// CloseWrite ends one half.
func (g *gated) CloseWrite() error {
	if h, ok := g.Conn.(interface{ CloseWrite() error }); ok && !g.f.gate.shut.Load() {
		return h.CloseWrite()
	}
	return net.ErrClosed
}

// Close implements [net.Conn].
func (g *gated) Close() error {
	if g.f.gate.shut.Load() {
		g.f.end()
		return nil
	}
	return g.Conn.Close()
}

// SetDeadline implements [net.Conn].
func (g *gated) SetDeadline(t time.Time) error { return g.bound(t, g.Conn.SetDeadline) }

// SetReadDeadline implements [net.Conn].
func (g *gated) SetReadDeadline(t time.Time) error { return g.bound(t, g.Conn.SetReadDeadline) }

// SetWriteDeadline implements [net.Conn].
func (g *gated) SetWriteDeadline(t time.Time) error { return g.bound(t, g.Conn.SetWriteDeadline) }

// bound leaves alone what a cut has set.
func (g *gated) bound(t time.Time, set func(time.Time) error) error {
	g.f.mu.Lock()
	defer g.f.mu.Unlock()
	if g.f.cut {
		return net.ErrClosed
	}
	return set(t)
}
