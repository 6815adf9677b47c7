package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
)

// relay moves bytes both ways until both ends are done or one breaks. The
// server's bytes flow from the start: many protocols begin with the server.
// look says that the server name of a TLS client must be the name of the flow.
func (p *Proxy) relay(f *flow, up net.Conn, d audit.Decision, look bool) {
	client, host := f.side(f.client), f.side(up)
	client.inline()
	host.inline()
	down := make(chan struct{})
	go func() {
		defer close(down)
		p.pump(f, client, host)
	}()
	if !f.named || !look || p.opening(f, host, d) {
		p.pump(f, host, client)
	} else {
		f.end()
	}
	<-down
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mark() {
		// Both directions have ended in order: the kernel delivers what is
		// left.
		f.closed = true
		f.client.Close()
		up.Close()
	}
}

// pump moves what src sends to dst. The end of src is passed on as half a close; if
// either breaks, both are reset, so that a truncated stream never looks whole.
func (p *Proxy) pump(f *flow, dst, src *side) {
	err := p.move(dst, src)
	if err == nil {
		err = dst.CloseWrite()
	}
	if err == nil || errors.Is(err, unix.ENOTCONN) || errors.Is(err, errors.ErrUnsupported) {
		return
	}
	select {
	case <-f.ended: // stopped, or ended already
	default:
		f.drain(dst.Conn)
		f.end()
	}
}

// move moves bytes until src has no more.
func (p *Proxy) move(dst, src *side) error {
	if dst.raw != nil && src.raw != nil {
		if err := p.splice(dst, src); !errors.Is(err, errNoPipe) {
			return err
		}
	}
	_, err := io.Copy(struct{ io.Writer }{dst}, struct{ io.Reader }{src})
	return err
}

// drain waits until the kernel has delivered what was written to c. A reset
// discards the rest, and what src sent before it broke was sent: without the
// boundary it would have arrived. A flow that is cut does not wait.
func (f *flow) drain(c net.Conn) {
	t, ok := plain(c).(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return
	}
	for deadline := time.Now().Add(maxDrain); time.Now().Before(deadline); {
		left := 0
		err := raw.Control(func(fd uintptr) { left, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
		if err != nil || left == 0 {
			return
		}
		select {
		case <-f.ended:
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// opening passes on the first bytes of the client and reports whether the rest
// may follow. If they are a ClientHello, its server name is looked at first.
func (p *Proxy) opening(f *flow, up *side, d audit.Decision) bool {
	r := &recorder{Conn: f.client}
	for {
		yes, more := looksTLS(r.read)
		if !yes || !more {
			break
		}
		if len(r.read) > 0 {
			f.until(time.Now().Add(p.helloTimeout()))
		}
		if err := r.more(); err != nil {
			if !errors.Is(err, io.EOF) {
				return false
			}
			break // the client says no more; what it said is passed on
		}
	}
	if yes, more := looksTLS(r.read); yes && !more {
		f.until(time.Now().Add(p.helloTimeout()))
		sni, err := r.serverName()
		why := ""
		switch {
		case err != nil:
			why = fmt.Sprintf("unreadable ClientHello: %v", err)
		case sni == "":
			// Whatever else the server has at its address could be meant.
			why = "the TLS client names no server (SNI)"
		case !strings.EqualFold(sni, f.host):
			why = fmt.Sprintf("TLS server name %q is not the name that was asked for", sni)
		}
		if why != "" {
			d.Verdict, d.Protocol, d.Dialled, d.Why = audit.Deny, "tls", "", why
			p.Log(d)
			return false
		}
	}
	f.until(time.Time{})
	if len(r.read) == 0 {
		return true
	}
	_, err := up.Write(r.read)
	return err == nil
}

// reap ends connections on which nothing moved for the idle time. The kernel
// knows when that was, so carrying a byte costs no clock.
func (p *Proxy) reap(ctx context.Context) {
	idle := p.Idle
	if idle <= 0 {
		idle = 2 * time.Hour
	}
	tick := time.NewTicker(max(idle/8, 10*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		p.mu.Lock()
		var old []*flow
		for f := range p.flows {
			if quiet(f.client) > idle {
				old = append(old, f)
			}
		}
		p.mu.Unlock()
		for _, f := range old {
			f.end()
		}
	}
}

// quiet returns for how long c has neither sent nor received a byte.
func quiet(c *net.TCPConn) (d time.Duration) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			d = time.Duration(min(info.Last_data_sent, info.Last_data_recv)) * time.Millisecond
		}
	})
	return d
}

func (p *Proxy) helloTimeout() time.Duration {
	if p.HelloTimeout > 0 {
		return p.HelloTimeout
	}
	return 15 * time.Second
}
