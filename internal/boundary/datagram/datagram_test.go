package datagram

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// bench is a server between a socket for clients and an echo.
type bench struct {
	*Server
	at   net.Addr
	echo *net.UDPConn
	logs chan audit.Decision
}

func loopback(t *testing.T) *net.UDPConn {
	t.Helper()
	pc, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	return pc
}

func newBench(t *testing.T, s *Server) bench {
	t.Helper()
	b := bench{Server: s, echo: loopback(t), logs: make(chan audit.Decision, 100)}
	front := loopback(t)
	b.at = front.LocalAddr()
	port := b.at.(*net.UDPAddr).AddrPort().Port()
	policy := (*egress.Policy)(nil).WithServices([]egress.Service{{Hosts: []string{egress.HostAlias}, Port: port, Protocol: egress.UDP, Name: "s", Source: "kit k"}})
	if s.Rules == nil {
		s.Rules = func() (plan.Phase, *egress.Policy) { return plan.Runtime, policy }
	}
	s.Log = func(ds ...audit.Decision) {
		for _, d := range ds {
			b.logs <- d
		}
	}
	if s.Dial == nil {
		s.Dial = func(ctx context.Context, _ egress.Service) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "udp", b.echo.LocalAddr().String())
		}
	}
	var done sync.WaitGroup
	done.Go(func() { s.Serve(front, egress.HostAlias) })
	echo := b.echo
	done.Go(func() {
		buf := make([]byte, 2000)
		for {
			n, from, err := echo.ReadFrom(buf)
			if err != nil {
				return
			}
			echo.WriteTo(buf[:n], from)
		}
	})
	t.Cleanup(func() {
		front.Close()
		b.echo.Close()
		done.Wait()
		if n := len(s.live()); n != 0 {
			t.Errorf("%d flows are left of a socket that is closed", n)
		}
	})
	return b
}

func (b bench) client(t *testing.T) net.Conn {
	t.Helper()
	c, err := net.Dial("udp", b.at.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func ask(c net.Conn, text string, wait time.Duration) string {
	c.SetDeadline(time.Now().Add(wait))
	c.Write([]byte(text))
	b := make([]byte, 100)
	n, _ := c.Read(b)
	return string(b[:n])
}

func TestSendersAreBoundedAndForgotten(t *testing.T) {
	b := newBench(t, &Server{MaxFlows: 2, Idle: 200 * time.Millisecond})
	for range 2 {
		if got := ask(b.client(t), "one", 5*time.Second); got != "one" {
			t.Fatalf("answer %q", got)
		}
		if d := <-b.logs; d.Verdict != audit.Allow || d.Source != "kit k" || d.Dialled == "" {
			t.Errorf("logged %+v", d)
		}
	}
	third := b.client(t)
	if got := ask(third, "three", 50*time.Millisecond); got != "" {
		t.Errorf("a third sender got %q", got)
	}
	if d := <-b.logs; d.Verdict != audit.Deny || !strings.Contains(d.Why, "2 senders") {
		t.Errorf("logged %+v", d)
	}
	for deadline := time.Now().Add(5 * time.Second); ask(third, "three", 50*time.Millisecond) != "three"; {
		if time.Now().After(deadline) {
			t.Fatal("idle senders are not forgotten")
		}
	}
}

func TestAServiceThatDoesNotAnswerIsLoggedOnce(t *testing.T) {
	b := newBench(t, &Server{})
	b.echo.Close()
	c := b.client(t)
	for range 3 {
		ask(c, "x", 50*time.Millisecond)
	}
	if d := <-b.logs; d.Verdict != audit.Allow {
		t.Errorf("logged %+v", d)
	}
	if d := <-b.logs; d.Verdict != audit.Failed || d.Why != "nobody listens there" {
		t.Errorf("logged %+v", d)
	}
	if len(b.logs) != 0 {
		t.Errorf("logged as well: %+v", <-b.logs)
	}
}

func TestWhatIsDeniedWhileItIsDialledIsNotCarried(t *testing.T) {
	var mu sync.Mutex
	var policy *egress.Policy
	dialling, release := make(chan bool), make(chan bool)
	s := &Server{Rules: func() (plan.Phase, *egress.Policy) {
		mu.Lock()
		defer mu.Unlock()
		return plan.Runtime, policy
	}}
	s.Dial = func(context.Context, egress.Service) (net.Conn, error) {
		dialling <- true
		<-release
		a, z := net.Pipe()
		go func() { // whatever is written is a datagram that got through
			if _, err := z.Read(make([]byte, 10)); err == nil {
				panic("a datagram got through")
			}
		}()
		return pipe{a}, nil
	}
	b := newBench(t, s)
	port := b.at.(*net.UDPAddr).AddrPort().Port()
	mu.Lock()
	policy = (*egress.Policy)(nil).WithServices([]egress.Service{{Hosts: []string{egress.HostAlias}, Port: port, Protocol: egress.UDP}})
	mu.Unlock()
	c := b.client(t)
	c.Write([]byte("x"))
	<-dialling
	mu.Lock()
	policy = nil
	mu.Unlock()
	judged := make(chan bool)
	go func() { s.Rejudge(); close(judged) }()
	for f := range s.live() { // wait until it is marked
		fl := s.live()[f]
		for {
			fl.mu.Lock()
			cut := fl.cut
			fl.mu.Unlock()
			if cut {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
	release <- true
	<-judged
	if d := <-b.logs; d.Kind != audit.Cut {
		t.Errorf("logged %+v", d)
	}
}

// pipe is a connection with an address.
type pipe struct{ net.Conn }

func (pipe) RemoteAddr() net.Addr { return &net.UDPAddr{} }
