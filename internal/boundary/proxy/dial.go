package proxy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// stagger is how long one address may take before the next is tried beside it
// (RFC 8305, connection attempt delay).
const stagger = 250 * time.Millisecond

// maxAddrs bounds how many addresses of a name are looked at: a resolver that
// lies must not make the host dial a whole network.
const maxAddrs = 16

// hostLookup asks the host's resolver. The name is absolute, so that no search
// domain turns it into another name than the one that was judged.
func hostLookup(ctx context.Context, name string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", name+".")
}

func hostDial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", to.String())
}

// race dials addrs, families in turn, and returns the first connection.
func race(ctx context.Context, addrs []netip.AddrPort, dial func(context.Context, netip.AddrPort) (net.Conn, error)) (net.Conn, netip.AddrPort, error) {
	if len(addrs) == 1 {
		c, err := dial(ctx, addrs[0])
		return c, addrs[0], err
	}
	type result struct {
		c   net.Conn
		to  netip.AddrPort
		err error
	}
	ctx, cancel := context.WithCancel(ctx)
	results := make(chan result)
	var errs []error
	next, pending := 0, 0
	start := func() {
		to := addrs[next]
		next++
		pending++
		go func() {
			c, err := dial(ctx, to)
			results <- result{c, to, err}
		}()
	}
	// Whatever loses is waited for and closed, also after the winner is back.
	defer func() {
		cancel()
		go func() {
			for ; pending > 0; pending-- {
				if r := <-results; r.c != nil {
					r.c.Close()
				}
			}
		}()
	}()
	start()
	timer := time.NewTimer(stagger)
	defer timer.Stop()
	for pending > 0 {
		select {
		case <-timer.C:
		case r := <-results:
			pending--
			if r.err == nil {
				return r.c, r.to, nil
			}
			errs = append(errs, r.err)
		}
		if next < len(addrs) && ctx.Err() == nil {
			start()
			timer.Reset(stagger)
		}
	}
	return nil, netip.AddrPort{}, errors.Join(errs...)
}

// interleave puts the families in turn, beginning with that of the first, which
// the resolver thinks best.
func interleave(addrs []netip.Addr) []netip.Addr {
	if len(addrs) == 0 {
		return nil
	}
	var same, other []netip.Addr
	for _, a := range addrs {
		if a.Is4() == addrs[0].Is4() {
			same = append(same, a)
		} else {
			other = append(other, a)
		}
	}
	out := make([]netip.Addr, 0, len(addrs))
	for i := range max(len(same), len(other)) {
		if i < len(same) {
			out = append(out, same[i])
		}
		if i < len(other) {
			out = append(out, other[i])
		}
	}
	return out
}

// ownAddrs knows the addresses of the host's interfaces. They are read again
// when they are older than a few seconds: hosts move between networks.
type ownAddrs struct {
	mu    sync.Mutex
	at    time.Time    // guarded by mu
	addrs []netip.Addr // guarded by mu
	err   error        // guarded by mu
}

const ownAge = 5 * time.Second

// has reports whether a is one of them. If they cannot be read it says yes:
// refusing is the safe answer.
func (o *ownAddrs) has(a netip.Addr) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.at.IsZero() || time.Since(o.at) > ownAge {
		o.addrs, o.err = interfaceAddrs()
		o.at = time.Now()
	}
	return o.err != nil || slices.Contains(o.addrs, a)
}

func interfaceAddrs() ([]netip.Addr, error) {
	nets, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var as []netip.Addr
	for _, n := range nets {
		if in, ok := n.(*net.IPNet); ok {
			if a, ok := netip.AddrFromSlice(in.IP); ok {
				as = append(as, a.Unmap())
			}
		}
	}
	return as, nil
}
