package proxy

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A gate is what every byte of a flow goes through on its way out of the boundary, to
// either side, so that the flow can be cut in a moment, whoever carries it: to close
// its sockets, or to wait for those who read them, takes many times as long.
//
// Its zero value is open. Its methods can be called concurrently.
type gate struct {
	shut atomic.Bool
	busy sync.RWMutex // read-locked by those who are within
}

// enter is called before each system call that moves bytes, and leave after it. It
// reports whether the gate is open.
func (g *gate) enter() bool {
	g.busy.RLock()
	if g.shut.Load() {
		g.busy.RUnlock()
		return false
	}
	return true
}

func (g *gate) leave() { g.busy.RUnlock() }

// idle reports whether nobody is within, behind a gate that is shut.
func (g *gate) idle() bool {
	if !g.busy.TryLock() {
		return false
	}
	g.busy.Unlock()
	return true
}

// A side is one side of a flow. Once that is cut, it moves no byte and closing it
// resets both sides.
type side struct {
	net.Conn
	f   *flow
	raw syscall.RawConn // of a socket; nil: what is written is passed to Conn
}

func (f *flow) side(c net.Conn) *side { return &side{c, f, socket(c)} }

// socket gives access to the socket of c; nil if c is more than a socket.
func socket(c net.Conn) syscall.RawConn {
	if u, ok := c.(*upstream); ok {
		c = u.Conn
	}
	var raw syscall.RawConn
	switch c := c.(type) {
	case *net.TCPConn:
		raw, _ = c.SyscallConn() // fails for nil only
	case *net.UnixConn:
		if a, ok := c.LocalAddr().(*net.UnixAddr); ok && a.Net == "unix" { // a stream
			raw, _ = c.SyscallConn()
		}
	}
	return raw
}

// Read implements [net.Conn]. What arrives when the flow is cut meanwhile is dropped.
func (s *side) Read(p []byte) (int, error) {
	if s.f.gate.shut.Load() {
		return 0, net.ErrClosed
	}
	n, err := s.Conn.Read(p)
	if s.f.gate.shut.Load() {
		return 0, net.ErrClosed
	}
	return n, err
}

// Write implements [net.Conn]. To wait until a socket has room is not to be within the
// gate.
func (s *side) Write(p []byte) (n int, err error) {
	if s.raw == nil {
		if !s.f.gate.enter() {
			return 0, net.ErrClosed
		}
		defer s.f.gate.leave()
		return s.Conn.Write(p)
	}
	for n < len(p) && err == nil {
		var m int
		m, err = s.out(func(fd int) (int, error) { return unix.Write(fd, p[n:]) })
		n += m
	}
	return n, err
}

// out has move, a system call, move bytes to the socket of s as soon as it has room,
// and returns how many those were.
func (s *side) out(move func(fd int) (int, error)) (n int, err error) {
	failed := s.raw.Write(func(fd uintptr) bool {
		for {
			if !s.f.gate.enter() {
				n, err = 0, net.ErrClosed
				return true
			}
			n, err = move(int(fd))
			s.f.gate.leave()
			if err != unix.EINTR { //nolint:errorlint // what the kernel says is not wrapped
				break
			}
		}
		return err != unix.EAGAIN //nolint:errorlint // as above
	})
	switch {
	case s.f.gate.shut.Load() && (failed != nil || err != nil):
		return 0, net.ErrClosed
	case failed != nil:
		return 0, failed
	case err != nil:
		if errno, ok := err.(unix.Errno); ok { //nolint:errorlint // as above
			err = &net.OpError{Op: "write", Net: "tcp", Source: s.LocalAddr(), Addr: s.RemoteAddr(), Err: os.NewSyscallError("write", errno)}
		}
		return 0, err
	}
	return n, nil
}

// CloseWrite ends one half, where that is possible.
func (s *side) CloseWrite() error {
	c := s.Conn
	if u, ok := c.(*upstream); ok {
		c = u.Conn
	}
	h, ok := c.(interface{ CloseWrite() error })
	switch {
	case !ok:
		return errors.ErrUnsupported
	case !s.f.gate.enter():
		return net.ErrClosed
	}
	defer s.f.gate.leave()
	return h.CloseWrite()
}

// Close implements [net.Conn].
func (s *side) Close() error {
	if s.f.gate.shut.Load() {
		s.f.end()
		return nil
	}
	return s.Conn.Close()
}

// SetLinger is that of TCP.
func (s *side) SetLinger(sec int) error {
	if t, ok := s.Conn.(*net.TCPConn); ok {
		return t.SetLinger(sec)
	}
	return errors.ErrUnsupported
}

// SetDeadline implements [net.Conn].
func (s *side) SetDeadline(t time.Time) error { return s.bound(t, s.Conn.SetDeadline) }

// SetReadDeadline implements [net.Conn].
func (s *side) SetReadDeadline(t time.Time) error { return s.bound(t, s.Conn.SetReadDeadline) }

// SetWriteDeadline implements [net.Conn].
func (s *side) SetWriteDeadline(t time.Time) error { return s.bound(t, s.Conn.SetWriteDeadline) }

// bound leaves alone what a cut has set.
func (s *side) bound(t time.Time, set func(time.Time) error) error {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	if s.f.cut {
		return net.ErrClosed
	}
	return set(t)
}
