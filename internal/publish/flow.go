package publish

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/guest/client"
	"github.com/kitbox-dev/kitbox/internal/ownthread"
)

// A listener carries one port.
type listener struct {
	port    uint16 // in the machine
	sockets *sockets
	dial    Dialer
	log     *slog.Logger

	mu     sync.Mutex
	closed bool               // guarded by mu
	flows  map[io.Closer]bool // guarded by mu
}

func (l *listener) serve() {
	for _, s := range l.sockets.tcp {
		go l.accept(s)
	}
	for _, s := range l.sockets.udp {
		go l.receive(s)
	}
}

func (l *listener) close() {
	l.sockets.close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for c := range l.flows {
		c.Close()
	}
}

// hold makes c end with the listener. False means that it must not begin.
func (l *listener) hold(c io.Closer) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.flows) >= maxFlows {
		return false
	}
	l.flows[c] = true
	return true
}

func (l *listener) release(c io.Closer) {
	l.mu.Lock()
	delete(l.flows, c)
	l.mu.Unlock()
	c.Close()
}

func (l *listener) accept(s *net.TCPListener) {
	for {
		c, err := s.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			l.log.Error("accept failed", "port", l.port, "err", err)
			time.Sleep(acceptPause) // out of descriptors, most likely
			continue
		}
		if !l.hold(c) {
			c.SetLinger(0)
			c.Close()
			continue
		}
		go l.carry(c)
	}
}

// carry connects c with the port inside, 127.0.0.1 first.
func (l *listener) carry(c *net.TCPConn) {
	defer l.release(c)
	ctx, cancel := context.WithTimeout(context.Background(), dialTime)
	inner, err := l.dial.TCP(ctx, l.port, false)
	if err != nil {
		var v6 error
		if inner, v6 = l.dial.TCP(ctx, l.port, true); v6 != nil {
			cancel()
			l.log.Debug("nobody answers inside", "port", l.port, "err", err)
			c.SetLinger(0) // a reset, as from a port that nobody listens on
			return
		}
	}
	cancel()
	if !l.hold(inner) {
		inner.Close()
		return
	}
	defer l.release(inner)
	relay(c, inner)
}

// relay moves bytes both ways until both have ended.
func relay(a, b client.HalfCloser) {
	var both sync.WaitGroup
	one := func(to, from client.HalfCloser) {
		if _, err := io.Copy(to, from); err != nil {
			a.Close()
			b.Close()
			return
		}
		_ = to.CloseWrite()
	}
	both.Go(func() { one(a, b) })
	both.Go(func() { one(b, a) })
	both.Wait()
}

// A sender is whoever sends datagrams from one address of the host.
type sender struct {
	inner net.Conn

	mu   sync.Mutex
	last []byte // guarded by mu; what may have to be said again to ::1
}

// receive hands datagrams on, to a socket of its own for each sender.
func (l *listener) receive(s *net.UDPConn) {
	var mu sync.Mutex
	senders := map[netip.AddrPort]*sender{} // guarded by mu
	buf := make([]byte, 64<<10)
	for {
		n, from, err := s.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // the report of an answer that a sender did not take
		}
		mu.Lock()
		sn := senders[from]
		mu.Unlock()
		if sn == nil {
			inner, err := l.connectUDP(false)
			if err != nil {
				l.log.Debug("datagram dropped", "port", l.port, "err", err)
				continue
			}
			sn = &sender{inner: inner, last: append([]byte(nil), buf[:n]...)}
			mu.Lock()
			senders[from] = sn
			mu.Unlock()
			go func() {
				l.answer(s, from, sn)
				mu.Lock()
				delete(senders, from)
				mu.Unlock()
			}()
		}
		sn.mu.Lock()
		inner := sn.inner
		sn.mu.Unlock()
		inner.SetReadDeadline(time.Now().Add(udpIdle))
		_, _ = inner.Write(buf[:n])
	}
}

func (l *listener) connectUDP(v6 bool) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialTime)
	defer cancel()
	c, err := l.dial.UDP(ctx, l.port, v6)
	if err != nil {
		return nil, err
	}
	if !l.hold(c) {
		c.Close()
		return nil, errors.New("too many senders")
	}
	return c, nil
}

// answer carries datagrams back until nothing has come or gone for a while. When
// nobody listens on 127.0.0.1, the first datagram is sent to ::1.
func (l *listener) answer(s *net.UDPConn, to netip.AddrPort, sn *sender) {
	buf := make([]byte, 64<<10)
	conn, v6 := sn.inner, false
	defer func() { l.release(conn) }()
	for {
		n, err := conn.Read(buf)
		switch {
		case err == nil:
			sn.mu.Lock()
			sn.last = nil
			sn.mu.Unlock()
			conn.SetReadDeadline(time.Now().Add(udpIdle))
			_, _ = s.WriteToUDPAddrPort(buf[:n], to)
		case errors.Is(err, unix.ECONNREFUSED) && !v6:
			v6 = true
			other, err := l.connectUDP(true)
			if err != nil {
				return
			}
			sn.mu.Lock()
			again := sn.last
			sn.inner, sn.last = other, nil
			sn.mu.Unlock()
			l.release(conn)
			conn = other
			conn.SetReadDeadline(time.Now().Add(udpIdle))
			if again != nil {
				_, _ = conn.Write(again)
			}
		default:
			return
		}
	}
}

// DialUDP opens a datagram socket in the network namespace ns, connected to port
// on the loopback there.
func DialUDP(ns *os.File, port uint16, v6 bool) (net.Conn, error) {
	var c net.Conn
	err := ownthread.Run(func() error { // it ends in the namespace
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("setns", err)
		}
		ip, network := net.IPv4(127, 0, 0, 1), "udp4"
		if v6 {
			ip, network = net.IPv6loopback, "udp6"
		}
		u, err := net.DialUDP(network, nil, &net.UDPAddr{IP: ip, Port: int(port)})
		if err == nil {
			c = u
		}
		return err
	})
	return c, err
}
