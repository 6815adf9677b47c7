package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/guest/protocol"
)

// A HalfCloser is a connection whose two directions end on their own.
type HalfCloser interface {
	net.Conn
	CloseWrite() error
}

// DialTCP connects to port on the machine's loopback, 127.0.0.1 or with v6
// ::1. The connection outlives ctx, which bounds the dialling only. A port
// that nobody listens on is [ErrConnRefused].
func (cl *Client) DialTCP(ctx context.Context, port uint16, v6 bool) (HalfCloser, error) {
	raw, err := cl.Dial(ctx)
	if err != nil {
		return nil, err
	}
	c := protocol.NewConn(raw)
	stop := context.AfterFunc(ctx, func() { raw.SetDeadline(time.Unix(1, 0)) })
	conn, err := dial(c, port, v6)
	if !stop() && err == nil { // ctx ended at the last moment
		conn.Close()
		err = ctx.Err()
	}
	if err != nil {
		c.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, err
	}
	return conn, nil
}

func dial(c *protocol.Conn, port uint16, v6 bool) (HalfCloser, error) {
	pass := c.CanPass()
	if pass {
		c.AcceptFDs(1)
	}
	a, err := begin(c, protocol.Request{Op: protocol.OpDial, Dial: &protocol.Dial{Port: port, V6: v6, Pass: pass}})
	fds := c.TakeFDs()
	c.AcceptFDs(0)
	if err == nil && a.Passed {
		defer c.Close()
		if len(fds) != 1 {
			err = fmt.Errorf("%w: the connection did not come along", protocol.ErrProtocol)
		} else {
			return adopt(fds[0])
		}
	}
	for _, f := range fds {
		f.Close()
	}
	if err != nil {
		return nil, err
	}
	return join(c)
}

// adopt makes a connection of a passed descriptor, if it is one: a guest could
// pass anything it has open.
func adopt(f *os.File) (HalfCloser, error) {
	defer f.Close()
	fd := int(f.Fd())
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err == nil && domain != unix.AF_INET && domain != unix.AF_INET6 {
		err = errors.New("not an internet socket")
	}
	if err == nil {
		var p int
		p, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
		if err == nil && p != unix.IPPROTO_TCP {
			err = errors.New("not a TCP socket")
		}
	}
	if err == nil {
		// A listener is a TCP socket too, and reading from it is not to be
		// tried.
		_, err = unix.Getpeername(fd)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: passed descriptor: %v", protocol.ErrProtocol, err)
	}
	nc, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("%w: passed descriptor: %v", protocol.ErrProtocol, err)
	}
	tc, ok := nc.(*net.TCPConn)
	if !ok {
		nc.Close()
		return nil, fmt.Errorf("%w: passed descriptor: not a connection", protocol.ErrProtocol)
	}
	return tc, nil
}

// join returns one end of a local pair of sockets whose other end is relayed
// over c, so that the caller has a real connection with deadlines and halves.
func join(c *protocol.Conn) (HalfCloser, error) {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range p {
		f := os.NewFile(uintptr(fd), "relay")
		nc, ferr := net.FileConn(f)
		f.Close()
		if ferr != nil {
			err = ferr
			continue
		}
		ends[i] = nc.(*net.UnixConn)
	}
	if err != nil {
		for _, e := range ends {
			if e != nil {
				e.Close()
			}
		}
		return nil, err
	}
	go relay(c, ends[1])
	return ends[0], nil
}

// relay ends when both directions have, when the caller closes its end, or
// when the guest goes.
func relay(c *protocol.Conn, u *net.UnixConn) {
	defer c.Close()
	defer u.Close()
	in, b := protocol.NewInbox(), protocol.NewBudget()
	go func() {
		in.Fail(protocol.Receive(c, protocol.KindOut, in, b))
		b.Close()
		// What has arrived is still being written; only reading from the
		// caller ends at once.
		u.CloseRead()
	}()
	var both sync.WaitGroup
	both.Go(func() {
		if protocol.Send(c, protocol.KindIn, u, b) != nil {
			c.Raw().SetDeadline(time.Unix(1, 0))
		}
	})
	both.Go(func() {
		err := in.Drain(c, protocol.KindOut, u)
		u.CloseWrite()
		if err != nil {
			c.Raw().SetDeadline(time.Unix(1, 0))
			u.CloseRead()
		}
	})
	both.Wait()
}
