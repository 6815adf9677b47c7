// Package datagram carries the UDP datagrams of one sandbox to the services that
// it was granted, and back. Each sender gets a connected socket of its own on the
// host, so that answers find their way and nobody else's come in.
//
// It is for services alone: nothing in a datagram says which host was meant, so
// no rule can allow one. Which sockets it is handed is decided in package control,
// TCP is in package proxy.
package datagram

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

const (
	maxDatagram = 64 << 10 // bytes; more cannot be sent
	dialTime    = 5 * time.Second
)

// A Server carries the datagrams of one sandbox. Set its fields before the first
// call and leave them alone afterwards; its methods can then be called
// concurrently.
type Server struct {
	// Rules returns the phase and the policy of this moment. After a change,
	// call [Server.Rejudge]. Required.
	Rules func() (plan.Phase, *egress.Policy)

	// Dial returns a socket that is connected to a service. Required.
	Dial func(ctx context.Context, s egress.Service) (net.Conn, error)

	// Log is told of every decision. Required.
	Log func(...audit.Decision)

	// MaxFlows is how many senders there are at a time; the datagrams of
	// more are dropped. Zero means 256.
	MaxFlows int

	// Idle forgets a sender of whom and to whom nothing came for so long.
	// Zero means a minute.
	Idle time.Duration

	mu    sync.Mutex
	flows map[key]*flow // guarded by mu
}

// A key is a sender at one of the sockets.
type key struct {
	socket *net.UDPConn
	from   netip.AddrPort
}

// A flow is what one sender says to one service.
type flow struct {
	req  egress.Request // its phase is of no account
	done chan struct{}  // closed when nothing of it is left

	mu  sync.Mutex
	up  net.Conn // guarded by mu; nil before it is dialled
	cut bool     // guarded by mu
}

// Serve carries what arrives on pc, which stands for name host at the port that
// it is bound to, until pc is closed. Then nothing of what it carried is left.
func (s *Server) Serve(pc *net.UDPConn, host string) {
	at := pc.LocalAddr().(*net.UDPAddr).AddrPort()
	req := egress.Request{Host: host, Port: at.Port(), Protocol: egress.UDP, V6: at.Addr().Unmap().Is6()}
	defer s.forget(pc)
	buf := make([]byte, maxDatagram)
	for {
		n, from, err := pc.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // the report of an answer that the sender did not take
		}
		if up := s.upstream(key{pc, from}, req); up != nil {
			_ = up.SetReadDeadline(time.Now().Add(s.idle()))
			_, _ = up.Write(buf[:n]) // datagrams may be lost
		}
	}
}

// upstream is the socket of a sender, made if it may be; nil if it may not.
func (s *Server) upstream(k key, req egress.Request) net.Conn {
	max := s.MaxFlows
	if max <= 0 {
		max = 256
	}
	s.mu.Lock()
	f := s.flows[k]
	if f != nil {
		s.mu.Unlock()
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.up
	}
	full := len(s.flows) >= max
	if !full {
		// Known before the rules are read: a change between the two either
		// finds the flow or is seen by it.
		f = &flow{req: req, done: make(chan struct{})}
		if s.flows == nil {
			s.flows = map[key]*flow{}
		}
		s.flows[k] = f
	}
	s.mu.Unlock()
	phase, policy := s.Rules()
	d := audit.Decision{Phase: phase, Kind: audit.Connect, Host: req.Host, Port: req.Port, Protocol: "udp"}
	if full {
		d.Verdict, d.Why = audit.Deny, fmt.Sprintf("%d senders of datagrams are open, the most there may be", max)
		s.Log(d)
		return nil
	}
	req.Phase = phase
	v := policy.Decide(req)
	d.Rule, d.Source, d.Why = v.Rule, v.Source, v.Why
	if !v.Allow || v.Service == nil {
		d.Verdict = audit.Deny
		s.Log(d)
		s.end(k, f)
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), dialTime)
	defer cancel()
	up, err := s.Dial(ctx, *v.Service)
	if err != nil {
		d.Verdict, d.Why = audit.Failed, err.Error()
		s.Log(d)
		s.end(k, f)
		return nil
	}
	d.Verdict, d.Dialled = audit.Allow, up.RemoteAddr().String()
	f.mu.Lock()
	if f.cut {
		f.mu.Unlock()
		up.Close()
		s.end(k, f)
		return nil
	}
	f.up = up
	f.mu.Unlock()
	s.Log(d)
	go s.answer(k, f, d)
	return up
}

// answer carries datagrams back until none has come or gone for a while.
func (s *Server) answer(k key, f *flow, d audit.Decision) {
	defer s.end(k, f)
	buf := make([]byte, maxDatagram)
	told := false
	for {
		n, err := f.up.Read(buf)
		switch {
		case err == nil:
			_ = f.up.SetReadDeadline(time.Now().Add(s.idle()))
			_, _ = k.socket.WriteToUDPAddrPort(buf[:n], k.from)
		case errors.Is(err, unix.ECONNREFUSED):
			if !told {
				told = true
				d.Verdict, d.Why = audit.Failed, "nobody listens there"
				s.Log(d)
			}
		default:
			return
		}
	}
}

// end drops a flow.
func (s *Server) end(k key, f *flow) {
	s.mu.Lock()
	delete(s.flows, k)
	s.mu.Unlock()
	f.close()
	close(f.done)
}

// close ends what is under way. Only the call that did it returns true.
func (f *flow) close() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.up != nil {
		f.up.Close()
	}
	was := f.cut
	f.cut = true
	return !was
}

// forget ends the flows of a socket that is closed.
func (s *Server) forget(pc *net.UDPConn) {
	for k, f := range s.live() {
		if k.socket == pc {
			f.close()
			<-f.done
		}
	}
}

func (s *Server) live() map[key]*flow {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := make(map[key]*flow, len(s.flows))
	for k, f := range s.flows {
		m[k] = f
	}
	return m
}

// Rejudge puts every sender to the rules in force and drops those that they do
// not allow. When it returns, no datagram of these is carried any more.
func (s *Server) Rejudge() {
	phase, policy := s.Rules()
	for _, f := range s.live() {
		req := f.req
		req.Phase = phase
		v := policy.Decide(req)
		if v.Allow || !f.close() {
			continue
		}
		<-f.done
		s.Log(audit.Decision{Phase: phase, Kind: audit.Cut, Verdict: audit.Deny, Host: req.Host, Port: req.Port, Protocol: "udp",
			Rule: v.Rule, Source: v.Source, Why: v.Why})
	}
}

func (s *Server) idle() time.Duration {
	if s.Idle > 0 {
		return s.Idle
	}
	return time.Minute
}
