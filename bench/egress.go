package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/boundary/control"
	policy "github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// connectsPerRound is how many connections make one sample of a latency.
const connectsPerRound = 20

const bulkName = "bulk.example"

// egress moves bytes from a network namespace behind a boundary to a server on
// this machine's loopback, and the same without a boundary between. Client,
// boundary and server are this process, so what more it costs is the boundary.
func egress(ctx context.Context, o options, _ *fixture, r *report) (err error) {
	size := int64(256 << 20)
	if o.quick {
		size = 8 << 20
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	go serveBulk(l, size)
	g, err := newGuest(ctx, plan.EgressRule{Phase: plan.Runtime, Pattern: bulkName}, l.Addr().String(), control.Config{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	direct := func() (net.Conn, error) { return net.Dial("tcp4", l.Addr().String()) }
	through := func() (net.Conn, error) { return dialIn(ctx, g.ns, "tcp4", g.at(80)) }
	w, err := newStopwatch()
	if err != nil {
		return err
	}

	kinds := []struct {
		what string
		op   func(c net.Conn) error
	}{
		{"up", func(c net.Conn) error { return upload(c, size) }},
		{"down", func(c net.Conn) error { return download(c, size) }},
	}
	rates := func(s series) string {
		return fmt.Sprintf("%.1f Gbit/s", float64(size)*8/1e9/median(s.walls()).Seconds())
	}
	ours, theirs := make([]series, len(kinds)), make([]series, len(kinds))
	var ourConnect, theirConnect series
	for range o.rounds {
		for i, k := range kinds {
			for _, side := range []struct {
				dial func() (net.Conn, error)
				to   *series
			}{{direct, &theirs[i]}, {through, &ours[i]}} {
				c, err := side.dial()
				if err != nil {
					return err
				}
				s, err := w.time(func() error { return k.op(c) })
				c.Close()
				if err != nil {
					return fmt.Errorf("%s: %w", k.what, err)
				}
				*side.to = append(*side.to, s)
			}
		}
		for _, side := range []struct {
			in   *os.File
			addr string
			to   *series
		}{{nil, l.Addr().String(), &theirConnect}, {g.ns, g.at(80), &ourConnect}} {
			s, err := connects(side.in, side.addr)
			if err != nil {
				return err
			}
			*side.to = append(*side.to, s)
		}
	}
	for i, k := range kinds {
		ln := compared(fmt.Sprintf("egress through the boundary, %s, %d MiB", k.what, size>>20), "plain loopback", ours[i], theirs[i], 2, 0)
		ln.ours, ln.theirs = rates(ours[i]), rates(theirs[i])
		r.add(ln)
	}
	r.add(compared("connect through the boundary and one byte back", "plain loopback", ourConnect, theirConnect, 0, 0))
	return nil
}

// connects returns the middle of several connections, made in the namespace
// unless it is nil.
func connects(in *os.File, addr string) (sample, error) {
	var s series
	err := onThread(in, func() error {
		for range connectsPerRound {
			t := time.Now()
			c, err := net.DialTimeout("tcp4", addr, 5*time.Second)
			if err != nil {
				return err
			}
			err = download(c, 1)
			s = append(s, sample{wall: time.Since(t)})
			c.Close()
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return sample{}, err
	}
	return s.middle(), nil
}

// serveBulk answers "u" by reading size bytes and saying so, "d" by sending
// them, "1" by sending one.
func serveBulk(l net.Listener, size int64) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			// What cannot be written is missed by the client.
			var want [1]byte
			if _, err := io.ReadFull(c, want[:]); err != nil {
				return
			}
			switch want[0] {
			case 'u':
				if drain(c, size) == nil {
					_, _ = c.Write(want[:]) // the client sees what is missing
				}
			case 'd':
				_ = pour(c, size)
			case '1':
				_, _ = c.Write(want[:])
			}
		}()
	}
}

func upload(c net.Conn, size int64) error {
	if _, err := c.Write([]byte("u")); err != nil {
		return err
	}
	if err := pour(c, size); err != nil {
		return err
	}
	return drain(c, 1)
}

func download(c net.Conn, size int64) error {
	ask := "d"
	if size == 1 {
		ask = "1"
	}
	if _, err := io.WriteString(c, ask); err != nil {
		return err
	}
	return drain(c, size)
}

func pour(w io.Writer, size int64) error {
	buf := make([]byte, 256<<10)
	for size > 0 {
		n, err := w.Write(buf[:min(size, int64(len(buf)))])
		if err != nil {
			return err
		}
		size -= int64(n)
	}
	return nil
}

func drain(r io.Reader, size int64) error {
	buf := make([]byte, 256<<10)
	for size > 0 {
		n, err := r.Read(buf[:min(size, int64(len(buf)))])
		if size -= int64(n); size > 0 && err != nil {
			return fmt.Errorf("%d bytes short: %w", size, err)
		}
	}
	return nil
}

// A guest is a network namespace behind a boundary, as a sandbox has one.
type guest struct {
	ns       *os.File
	boundary *control.Boundary
	addr     netip.Addr // of the one name that it reaches
}

// newGuest starts a boundary that lets through what rule matches, the pattern of which
// is a name, and dials to for it; and what more matches, for which c has routes. c holds
// what else it is to have.
func newGuest(ctx context.Context, rule plan.EgressRule, to string, c control.Config, more ...plan.EgressRule) (*guest, error) {
	ns, err := newNetNS()
	if err != nil {
		return nil, fmt.Errorf("a network namespace: %w", err)
	}
	g := &guest{ns: ns}
	if err := g.start(ctx, rule, to, c, more); err != nil {
		return nil, errors.Join(err, g.close())
	}
	return g, nil
}

func (g *guest) start(ctx context.Context, rule plan.EgressRule, to string, c control.Config, more []plan.EgressRule) (err error) {
	rules := append([]plan.EgressRule{rule}, more...)
	for i := range rules {
		rules[i].Allow, rules[i].Source = true, "bench"
	}
	if c.Policy, err = policy.New(rules); err != nil {
		return err
	}
	c.Sandbox, c.GuestNetNS, c.Phase, c.Routes = "bench", g.ns, rule.Phase, append(c.Routes, plan.Route{Name: rule.Pattern, Addr: to})
	if g.boundary, err = control.Start(ctx, c); err != nil {
		return err
	}
	g.addr, err = resolveIn(ctx, g.ns, rule.Pattern)
	return err
}

// at is where the name is reached in the namespace.
func (g *guest) at(port uint16) string { return netip.AddrPortFrom(g.addr, port).String() }

func (g *guest) close() error {
	var err error
	if g.boundary != nil {
		err = g.boundary.Close()
	}
	return errors.Join(err, g.ns.Close())
}

// newNetNS makes a network namespace that lives as long as its file.
func newNetNS() (ns *os.File, err error) {
	err = onThread(nil, func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		ns, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	return ns, err
}

// onThread runs f on a thread of its own, in the network namespace in unless it
// is nil. Sockets that f makes stay there.
func onThread(in *os.File, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good
		if unix.Gettid() == unix.Getpid() {
			// The process's first thread cannot end, and what it is in
			// is what /proc/self says of us all.
			done <- onThread(in, f)
			runtime.UnlockOSThread()
			return
		}
		if in != nil {
			if err := unix.Setns(int(in.Fd()), unix.CLONE_NEWNET); err != nil {
				done <- err
				return
			}
		}
		done <- f()
	}()
	return <-done
}

func dialIn(ctx context.Context, ns *os.File, network, addr string) (c net.Conn, err error) {
	err = onThread(ns, func() (err error) {
		d := net.Dialer{Timeout: 5 * time.Second}
		c, err = d.DialContext(ctx, network, addr)
		return err
	})
	return c, err
}

// resolveIn asks the boundary for the address of name.
func resolveIn(ctx context.Context, ns *os.File, name string) (netip.Addr, error) {
	res := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return dialIn(ctx, ns, network, net.JoinHostPort(control.Gateway4.String(), "53"))
	}}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	as, err := res.LookupNetIP(ctx, "ip4", name+".")
	if err != nil {
		return netip.Addr{}, err
	}
	return as[0].Unmap(), nil
}
