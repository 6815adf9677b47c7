package link

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// A Dial opens a connection to a guest.
type Dial = func(context.Context) (net.Conn, error)

// settleTime is how long a command that is over waits for its keeper to notice.
const settleTime = 200 * time.Millisecond

// A Session is a command in flight and a connection to the guest for it.
type Session struct {
	Conn net.Conn
	hold *net.UnixConn

	mu   sync.Mutex
	more []*Session // guarded by mu; opened on the way
}

// Close ends the session; the connections to the guest with it.
func (s *Session) Close() error {
	s.mu.Lock()
	more := s.more
	s.more = nil
	s.mu.Unlock()
	errs := []error{s.Conn.Close()}
	// The keeper hangs up when it has counted the command as over: whoever
	// asks for the state after that must not find it busy.
	if s.hold.CloseWrite() == nil {
		_ = s.hold.SetReadDeadline(time.Now().Add(settleTime))
		_, _ = s.hold.Read(make([]byte, 1))
	}
	errs = append(errs, s.hold.Close())
	for _, m := range more {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// Dialer returns a Dial whose first connection is the session's own; later ones
// are asked of the keeper c and end with the session.
func (s *Session) Dialer(c Client) Dial {
	used := false
	return func(ctx context.Context) (net.Conn, error) {
		s.mu.Lock()
		first := !used
		used = true
		s.mu.Unlock()
		if first {
			return s.Conn, nil
		}
		m, err := c.Dial(ctx, true)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.more = append(s.more, m)
		return m.Conn, nil
	}
}
