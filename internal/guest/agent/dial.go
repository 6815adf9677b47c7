package agent

import (
	"errors"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/kitbox-dev/kitbox/internal/guest/protocol"
)

// dialTimeout bounds a connect on loopback, which only a full backlog delays.
const dialTimeout = 10 * time.Second

// dial connects a stream to a port on the machine's loopback.
func (a *Agent) dial(c *protocol.Conn, r *protocol.Dial) {
	host := "127.0.0.1"
	if r.V6 {
		host = "::1"
	}
	addr := net.JoinHostPort(host, strconv.Itoa(int(r.Port)))
	nc, err := net.DialTimeout("tcp", addr, dialTimeout)
	if err != nil {
		code := protocol.FaultFailed
		if errors.Is(err, syscall.ECONNREFUSED) {
			code = protocol.FaultRefused
		}
		a.fail(c, protocol.Faultf(code, "%v", err))
		return
	}
	defer nc.Close()
	tc := nc.(*net.TCPConn)
	if r.Pass && c.CanPass() {
		f, err := tc.File()
		if err != nil {
			a.fail(c, protocol.Faultf(protocol.FaultFailed, "passing the connection: %v", err))
			return
		}
		defer f.Close()
		_ = a.answer(c, protocol.Answer{Passed: true}, f)
		return
	}
	if a.answer(c, protocol.Answer{}) != nil {
		return
	}
	relay(c, tc)
}

// relay moves bytes both ways until both sides have ended theirs, or one of the
// two connections breaks.
func relay(c *protocol.Conn, tc *net.TCPConn) {
	in, b := protocol.NewInbox(), protocol.NewBudget()
	var both sync.WaitGroup
	both.Go(func() {
		if protocol.Send(c, protocol.KindOut, tc, b) != nil {
			tc.Close() // reset rather than a clean end: the other way breaks too
		}
	})
	both.Go(func() {
		if in.Drain(c, protocol.KindIn, tc) != nil {
			tc.Close()
			return
		}
		tc.CloseWrite()
	})
	go func() { // ends with c, which serve closes
		in.Fail(protocol.Receive(c, protocol.KindIn, in, b))
		b.Close()
		tc.Close()
	}()
	both.Wait()
}
