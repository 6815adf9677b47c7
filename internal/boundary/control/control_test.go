package control_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/control"
	"github.com/kitbox-dev/kitbox/internal/boundary/dns"
	"github.com/kitbox-dev/kitbox/internal/needs"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// echo sends back what it gets and passes half a close on.
func echo(c net.Conn) { io.Copy(c, c); c.(*net.TCPConn).CloseWrite() }

func TestAllowedNameReachesItsRoute(t *testing.T) {
	g := newGuest(t)
	at := serve(t, "tcp4", echo)
	log := newDecisions()
	start(t, g, control.Config{
		Sandbox: "one", Log: log.log,
		Policy: policy(t, "runtime allow echo.example:7"),
		Routes: []plan.Route{route("echo.example", at)},
	})
	for _, network := range []string{"ip4", "ip6"} {
		c, err := g.dialName(network, "echo.example", 7)
		if err != nil {
			t.Fatalf("%s: %v", network, err)
		}
		defer c.Close()
		io.WriteString(c, "hello")
		c.(*net.TCPConn).CloseWrite()
		if got, err := read(c); got != "hello" || err != nil {
			t.Errorf("%s: echo = %q, %v", network, got, err)
		}
	}
	d := log.wait(t, "the connection", func(d audit.Decision) bool { return d.Kind == audit.Connect })
	if d.Verdict != audit.Allow || d.Host != "echo.example" || d.Rule != "echo.example:7" || d.Sandbox != "one" || !strings.HasPrefix(d.Dialled, "127.0.0.1:") {
		t.Errorf("logged %+v", d)
	}

	// The same name on another port is refused, and says which port is open.
	if err := refused(g.dialName("ip4", "echo.example", 8)); err != nil {
		t.Error(err)
	}
	d = log.wait(t, "port 8", func(d audit.Decision) bool { return d.Port == 8 })
	if d.Verdict != audit.Deny || !strings.Contains(d.Why, "only port 7") {
		t.Errorf("logged %+v", d)
	}
}

// refused returns an error unless the connection was refused or is reset
// before a byte comes back.
func refused(c net.Conn, err error) error {
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) && op.Timeout() {
			return fmt.Errorf("refused by silence: %w", err)
		}
		return nil
	}
	defer c.Close()
	got, err := read(c)
	if !errors.Is(err, unix.ECONNRESET) {
		return fmt.Errorf("%s carried %q, %v; want a reset", c.RemoteAddr(), got, err)
	}
	return nil
}

func TestNothingElseIsReachable(t *testing.T) {
	g := newGuest(t)
	var canary sync.Map // what got through
	touched := func(name string) func(net.Conn) { return func(net.Conn) { canary.Store(name, true) } }
	c4 := serve(t, "tcp4", touched("127.0.0.1"))
	c6 := serve(t, "tcp6", touched("::1"))
	log := newDecisions()
	lookup := func(_ context.Context, name string) ([]netip.Addr, error) {
		switch name {
		case "loop.example":
			return []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}, nil
		case "mapped.example":
			return []netip.Addr{netip.MustParseAddr("::ffff:127.0.0.1")}, nil
		case "metadata.example":
			return []netip.Addr{netip.MustParseAddr("169.254.169.254")}, nil
		}
		return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	}
	start(t, g, control.Config{Log: log.log, Lookup: lookup, Policy: policy(t, "runtime allow *", "runtime allow 127.0.0.1")})

	p4, p6 := c4.Port(), c6.Port()
	for _, addr := range []string{
		"192.0.2.1:80", "8.8.8.8:53", "10.0.0.1:22", "169.254.169.254:80", "100.64.0.1:80", "198.19.255.254:80",
		"[2001:db8::1]:80", "[2001:4860:4860::8888]:53", "[fd00:ec2::254]:80", "[fe80::1]:80", "[::ffff:10.0.0.1]:80",
		netip.AddrPortFrom(control.Gateway4, p4).String(), netip.AddrPortFrom(control.Gateway4, 15001).String(),
		netip.AddrPortFrom(control.Gateway6, p6).String(),
		fmt.Sprintf("127.0.0.1:%d", p4), fmt.Sprintf("[::1]:%d", p6), // the sandbox's own loopback
		fmt.Sprintf("127.0.0.2:%d", p4),
	} {
		if err := refused(g.dial("tcp", addr)); err != nil {
			t.Errorf("%s: %v", addr, err)
		}
	}
	for _, name := range []string{"loop.example", "mapped.example"} {
		for _, p := range []uint16{p4, p6} {
			if err := refused(g.dialName("ip4", name, int(p))); err != nil {
				t.Errorf("%s:%d: %v", name, p, err)
			}
		}
	}
	if err := refused(g.dialName("ip6", "metadata.example", 80)); err != nil {
		t.Error(err)
	}
	canary.Range(func(k, _ any) bool { t.Errorf("a connection reached the host's listener at %s", k); return true })

	d := log.wait(t, "the loopback answer", func(d audit.Decision) bool { return d.Host == "loop.example" })
	if d.Verdict != audit.Deny || !strings.Contains(d.Why, "127.0.0.1") && !strings.Contains(d.Why, "::1") {
		t.Errorf("logged %+v", d)
	}
	d = log.wait(t, "the raw address", func(d audit.Decision) bool { return d.Host == "192.0.2.1" })
	if d.Verdict != audit.Deny || d.Why == "" {
		t.Errorf("logged %+v", d)
	}
	// The positive control: the canaries do answer, from the host.
	for _, at := range []netip.AddrPort{c4, c6} {
		c, err := net.Dial("tcp", at.String())
		if err != nil {
			t.Fatal(err)
		}
		read(c)
		c.Close()
	}
	if _, ok := canary.Load("127.0.0.1"); !ok {
		t.Error("the canary does not sing")
	}
}

func TestOtherPacketsAreRejectedAtOnceAndLogged(t *testing.T) {
	g := newGuest(t)
	log := newDecisions()
	start(t, g, control.Config{Log: log.log, Policy: policy(t, "runtime allow quic.example")})
	quic, err := g.resolve("quic.example", "ip4")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ addr, host string }{
		{"8.8.8.8:53", "8.8.8.8"},
		{"[2001:4860:4860::8888]:53", "2001:4860:4860::8888"},
		{netip.AddrPortFrom(quic, 443).String(), "quic.example"},
		{netip.AddrPortFrom(control.Gateway4, 123).String(), control.Gateway4.String()},
	} {
		c, err := g.dial("udp", tt.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		// The kernel may report the rejection at the second write.
		c.SetDeadline(time.Now().Add(5 * time.Second))
		_, err = c.Write([]byte("x"))
		if err == nil {
			_, err = c.Read(make([]byte, 1))
		}
		if !errors.Is(err, unix.EHOSTUNREACH) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("udp to %s: %v; want it rejected", tt.addr, err)
		}
		d := log.wait(t, tt.addr, func(d audit.Decision) bool { return d.Kind == audit.Packet && d.Host == tt.host })
		if d.Verdict != audit.Deny || d.Protocol != "udp" {
			t.Errorf("logged %+v", d)
		}
	}
	// A raw socket sends what it likes; nothing answers.
	err = g.do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		ping := []byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0}
		for _, to := range [][4]byte{{1, 1, 1, 1}, {169, 254, 169, 254}, control.Gateway4.As4()} {
			if err := unix.Sendto(fd, ping, 0, &unix.SockaddrInet4{Addr: to}); err != nil {
				return fmt.Errorf("ping %v: %w", to, err)
			}
		}
		tv := unix.NsecToTimeval(int64(200 * time.Millisecond))
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
		buf := make([]byte, 256)
		for {
			n, _, err := unix.Recvfrom(fd, buf, 0)
			if err != nil {
				return nil
			}
			if n > 20 && buf[20] == 0 {
				return fmt.Errorf("an echo reply came back: % x", buf[:n])
			}
		}
	})
	if err != nil {
		t.Error(err)
	}
	log.wait(t, "the ping", func(d audit.Decision) bool { return d.Protocol == "icmp" && d.Host == "169.254.169.254" })
}

// TestRootInsideChangesNothing does what only root in the sandbox can: it
// rearranges the sandbox's own network and writes packets by hand.
func TestRootInsideChangesNothing(t *testing.T) {
	g := newGuest(t)
	touched := make(chan string, 16)
	canary := serve(t, "tcp4", func(c net.Conn) { touched <- c.RemoteAddr().String() })
	udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	log := newDecisions()
	start(t, g, control.Config{Log: log.log, Policy: policy(t, "runtime allow *")})
	err = g.do(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		i, err := h.LinkByName(control.Interface)
		if err != nil {
			return err
		}
		// Loopback addresses go out by eth0 now.
		for _, local := range []string{"127.0.0.0/8", "127.0.0.1/32"} {
			_, dst, _ := net.ParseCIDR(local)
			if err := h.RouteDel(&netlink.Route{Dst: dst, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, LinkIndex: 1, Scope: netlink.SCOPE_HOST}); err != nil {
				return fmt.Errorf("deleting the local route of %s: %w", local, err)
			}
		}
		_, dst, _ := net.ParseCIDR("127.0.0.0/8")
		if err := h.RouteAdd(&netlink.Route{Dst: dst, LinkIndex: i.Attrs().Index, Gw: control.Gateway4.AsSlice()}); err != nil {
			return fmt.Errorf("routing loopback out: %w", err)
		}
		os.WriteFile("/proc/sys/net/ipv4/conf/all/route_localnet", []byte("1"), 0)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	err = g.do(func() error {
		d := net.Dialer{Timeout: 300 * time.Millisecond, LocalAddr: &net.TCPAddr{IP: control.Guest4.AsSlice()}}
		if c, err := d.Dial("tcp", canary.String()); err == nil {
			read(c)
			c.Close()
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		send := func(src, dst netip.Addr, proto byte, id, offset uint16, payload []byte) error {
			b := []byte{0x45, 0, 0, byte(20 + len(payload)), byte(id >> 8), byte(id), byte(offset >> 8), byte(offset), 64, proto, 0, 0}
			b = append(append(append(b, src.AsSlice()...), dst.AsSlice()...), payload...)
			return unix.Sendto(fd, b, 0, &unix.SockaddrInet4{Addr: dst.As4()})
		}
		port := func(p uint16) []byte { return []byte{byte(p >> 8), byte(p)} }
		lo := netip.AddrFrom4([4]byte{127, 0, 0, 1})
		to := uint16(udp.LocalAddr().(*net.UDPAddr).Port)
		datagram := append(append([]byte{0x30, 0x39}, port(to)...), 0, 16, 0, 0, 'e', 's', 'c', 'a', 'p', 'e', 'e', 'e')
		for _, src := range []netip.Addr{control.Guest4, control.Gateway4, lo, netip.MustParseAddr("10.0.0.1")} {
			for _, dst := range []netip.Addr{lo, control.Gateway4, netip.MustParseAddr("192.0.2.1")} {
				if err := send(src, dst, unix.IPPROTO_UDP, 0, 0, datagram); err != nil && !errors.Is(err, unix.EINVAL) {
					return fmt.Errorf("from %s to %s: %w", src, dst, err)
				}
			}
		}
		// A question to another resolver in two fragments, the first without
		// the ports' worth of data.
		query := append(append([]byte{0x30, 0x39}, port(53)...), 0, 24, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16)
		dns := netip.MustParseAddr("9.9.9.9")
		if err := send(control.Guest4, dns, unix.IPPROTO_UDP, 77, 0x2000, query[:8]); err != nil {
			return err
		}
		return send(control.Guest4, dns, unix.IPPROTO_UDP, 77, 1, query[8:])
	})
	if err != nil {
		t.Fatal(err)
	}
	d := log.wait(t, "the fragments", func(d audit.Decision) bool { return d.Host == "9.9.9.9" })
	if d.Kind != audit.Packet || d.Verdict != audit.Deny || d.Port != 53 {
		t.Errorf("logged %+v", d)
	}
	udp.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, from, err := udp.ReadFrom(make([]byte, 64)); err == nil {
		t.Errorf("%d bytes from %s reached the host's loopback", n, from)
	}
	select {
	case from := <-touched:
		t.Errorf("%s reached the host's loopback", from)
	default:
	}
}

func TestFloodOfPacketsIsCounted(t *testing.T) {
	g := newGuest(t)
	log := newDecisions()
	b := start(t, g, control.Config{Log: log.log})
	const n = 500
	c, err := g.dial("udp", "192.0.2.1:9")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sent := 0
	for range n {
		if _, err := c.Write([]byte("x")); err == nil {
			sent++
		}
	}
	b.Close()
	log.mu.Lock()
	defer log.mu.Unlock()
	total := 0
	for _, d := range log.all {
		total += d.Count
	}
	// A write that reports the error of an earlier one has sent nothing.
	if total != sent || len(log.all) > n/2 {
		t.Errorf("%d packets refused, the log counts %d in %d records", sent, total, len(log.all))
	}
}

func TestPhaseAndPolicyCutWhatTheyDoNotAllow(t *testing.T) {
	g := newGuest(t)
	at := serve(t, "tcp4", echo)
	log := newDecisions()
	b := start(t, g, control.Config{
		Phase: plan.Install, Log: log.log,
		Policy: policy(t, "install allow packages.example", "install allow both.example", "runtime allow both.example"),
		Routes: []plan.Route{route("packages.example", at), route("both.example", at)},
	})
	open := func(name string) net.Conn {
		t.Helper()
		c, err := g.dialName("ip4", name, 80)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		speak(t, c)
		return c
	}
	closing, staying := open("packages.example"), open("both.example")

	began := time.Now()
	b.SetPhase(plan.Runtime)
	took := time.Since(began)
	t.Logf("closing the install phase took %v", took)

	if _, err := read(closing); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("connection of the closed phase: %v, want a reset", err)
	}
	speak(t, staying)
	if _, err := g.resolve("packages.example", "ip4"); !notFound(err) {
		t.Errorf("name of the closed phase: %v, want not found", err)
	}
	log.wait(t, "the cut", func(d audit.Decision) bool { return d.Kind == audit.Cut && d.Host == "packages.example" })
	if b.Phase() != plan.Runtime {
		t.Errorf("Phase = %s", b.Phase())
	}

	b.SetPolicy(policy(t, "runtime allow both.example", "runtime deny both.example operator"))
	if _, err := read(staying); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("connection of a revoked host: %v, want a reset", err)
	}
	b.SetPolicy(nil)
	if _, err := g.resolve("both.example", "ip4"); !notFound(err) {
		t.Errorf("without a policy: %v, want not found", err)
	}
}

// speak sends a line and waits for its echo.
func speak(t testing.TB, c net.Conn) {
	t.Helper()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	defer c.SetDeadline(time.Time{})
	if _, err := io.WriteString(c, "ping\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
}

func notFound(err error) bool {
	var e *net.DNSError
	return errors.As(err, &e) && e.IsNotFound
}

func TestSandboxesDoNotSeeEachOther(t *testing.T) {
	a, b := newGuest(t), newGuest(t)
	at := serve(t, "tcp4", echo)
	start(t, a, control.Config{Policy: policy(t, "runtime allow *"), Routes: []plan.Route{route("x.example", at)}})
	start(t, b, control.Config{Policy: policy(t, "runtime allow *")})
	var ln net.Listener
	if err := b.do(func() (err error) { ln, err = net.Listen("tcp", ":4000"); return err }); err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	reached := make(chan net.Addr, 1)
	go func() {
		if c, err := ln.Accept(); err == nil {
			reached <- c.RemoteAddr()
			c.Close()
		}
	}()
	for _, to := range []netip.Addr{control.Guest4, control.Guest6, control.Gateway4, control.Gateway6} {
		if err := refused(a.dial("tcp", netip.AddrPortFrom(to, 4000).String())); err != nil {
			t.Error(err)
		}
	}
	// The name of one sandbox means nothing to the other's boundary, though
	// the first address of both is the same.
	x, err := a.resolve("x.example", "ip4")
	if err != nil {
		t.Fatal(err)
	}
	if err := refused(b.dial("tcp", netip.AddrPortFrom(x, 80).String())); err != nil {
		t.Error(err)
	}
	select {
	case from := <-reached:
		t.Errorf("%s reached the other sandbox", from)
	default:
	}
}

func TestStartReplacesWhatADeadBoundaryLeft(t *testing.T) {
	g := newGuest(t)
	at := serve(t, "tcp4", echo)
	c := control.Config{Policy: policy(t, "runtime allow echo.example", "runtime allow other.example"), Routes: []plan.Route{route("echo.example", at)}}
	named := make(chan dns.Entry, 2)
	c.OnName = func(e dns.Entry) { named <- e }
	first := start(t, g, c)
	if _, err := g.resolve("other.example", "ip4"); err != nil {
		t.Fatal(err)
	}
	before, err := g.resolve("echo.example", "ip4")
	if err != nil {
		t.Fatal(err)
	}

	c.Names, c.OnName = []dns.Entry{<-named, <-named}, nil // as a keeper that was killed would have it
	second := start(t, g, c)                               // the first is still there: the worst case
	conn, err := g.dial("tcp", netip.AddrPortFrom(before, 80).String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	speak(t, conn)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	speak(t, conn)
	if got := second.Names(); len(got) != 2 {
		t.Errorf("Names = %v", got)
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	g := newGuest(t)
	at := serve(t, "tcp4", echo)
	config := control.Config{GuestNetNS: g.ns, Phase: plan.Runtime, Policy: policy(t, "runtime allow echo.example"), Routes: []plan.Route{route("echo.example", at)}}
	var updates = make(chan netlink.LinkUpdate, 64)
	stop := make(chan struct{})
	defer close(stop)
	if err := g.do(func() error { return netlink.LinkSubscribe(updates, stop) }); err != nil {
		t.Fatal(err)
	}
	cycle := func() {
		stage, err := control.Prepare()
		if err != nil {
			t.Fatal(err)
		}
		defer stage.Close()
		c := config
		c.Stage = stage
		b, err := control.Start(context.Background(), c)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := g.dialName("ip4", "echo.example", 80)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		speak(t, conn)
		if b.Flows() != 1 {
			t.Errorf("Flows = %d, want 1", b.Flows())
		}
		for range 2 {
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if b.Flows() != 0 {
			t.Errorf("Flows after Close = %d", b.Flows())
		}
		timeout := time.After(10 * time.Second)
		for gone := false; !gone; {
			select {
			case u := <-updates:
				gone = u.Header.Type == unix.RTM_DELLINK && u.Attrs().Name == control.Interface
			case <-timeout:
				t.Fatal("the sandbox's interface outlived the boundary")
			}
		}
	}
	cycle() // opens what stays open: the poller, a socket of the resolver
	fds, routines := openFiles(t), runtime.NumGoroutine()
	for range 5 {
		cycle()
	}
	// The server's side of the last connection ends a little later.
	deadline := time.Now().Add(10 * time.Second)
	for (runtime.NumGoroutine() > routines || openFiles(t) > fds) && time.Now().Before(deadline) {
		runtime.Gosched()
	}
	if n := openFiles(t); n > fds {
		t.Errorf("%d descriptors before, %d after", fds, n)
	}
	if n := runtime.NumGoroutine(); n > routines {
		t.Errorf("%d goroutines before, %d after", routines, n)
	}
	// No thread has been left in another namespace.
	want, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil || len(tasks) == 0 {
		t.Fatal(tasks, err)
	}
	for _, task := range tasks {
		for got := ""; ; runtime.Gosched() {
			// A thread that is on its way out may be caught in the act.
			if got, err = os.Readlink(task); err != nil || got == want {
				break
			}
			if time.Now().After(deadline) {
				t.Errorf("%s is %s, the process is in %s", task, got, want)
				break
			}
		}
	}
}

func openFiles(t *testing.T) int {
	es, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(es)
}

func TestFailedStartLeavesNothing(t *testing.T) {
	g := newGuest(t)
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	before := openFiles(t)
	if _, err := control.Start(context.Background(), control.Config{GuestNetNS: file}); err == nil {
		t.Error("Start on a file that is no namespace succeeded")
	}
	if _, err := control.Start(context.Background(), control.Config{GuestNetNS: g.ns, Routes: []plan.Route{{Name: "x", Addr: "nowhere"}}}); err == nil {
		t.Error("Start with a bad route succeeded")
	}
	own, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := control.Start(context.Background(), control.Config{GuestNetNS: own}); err == nil || !strings.Contains(err.Error(), "host's") {
		t.Errorf("Start on the host's namespace: %v", err)
	}
	own.Close()
	stage, err := control.Prepare()
	if err != nil {
		t.Fatal(err)
	}
	stage.Close()
	stage.Close()
	if _, err := control.Start(context.Background(), control.Config{GuestNetNS: g.ns, Stage: stage}); err == nil {
		t.Error("Start on a closed stage succeeded")
	}
	done, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := control.Start(done, control.Config{GuestNetNS: g.ns}); !errors.Is(err, context.Canceled) {
		t.Errorf("Start with a context that is done: %v", err)
	}
	if n := openFiles(t); n > before {
		t.Errorf("%d descriptors before, %d after", before, n)
	}
}

func TestManyFlowsAtOnce(t *testing.T) {
	const n = 500
	g := newGuest(t)
	at := serve(t, "tcp4", echo)
	log := newDecisions()
	b := start(t, g, control.Config{
		Policy: policy(t, "runtime allow echo.example"), Routes: []plan.Route{route("echo.example", at)},
		Limits: control.Limits{Flows: n}, Log: log.log,
	})
	a, err := g.resolve("echo.example", "ip4")
	if err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(a, 80).String()
	conns := make([]net.Conn, n)
	var wg sync.WaitGroup
	for w := range 10 {
		wg.Go(func() {
			g.do(func() error {
				for i := w; i < n; i += 10 {
					c, err := net.Dial("tcp", to)
					if err != nil {
						t.Error(err)
						return err
					}
					conns[i] = c
				}
				return nil
			})
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	for _, c := range conns {
		speak(t, c)
	}
	if b.Flows() != n {
		t.Errorf("Flows = %d, want %d", b.Flows(), n)
	}
	if err := refused(g.dial("tcp", to)); err != nil {
		t.Errorf("one more than the limit: %v", err)
	}
	log.wait(t, "the limit", func(d audit.Decision) bool { return strings.Contains(d.Why, "500 connections") })
	began := time.Now()
	b.SetPolicy(nil)
	t.Logf("cutting %d flows took %v", n, time.Since(began))
	for _, c := range conns {
		if _, err := read(c); !errors.Is(err, unix.ECONNRESET) {
			t.Fatalf("a flow of a revoked host: %v, want a reset", err)
		}
		c.Close()
	}
}

func TestManyBoundariesAtOnce(t *testing.T) {
	const n = 12
	at := serve(t, "tcp4", echo)
	var slow atomic.Int32
	var wg sync.WaitGroup
	for range n {
		g := newGuest(t)
		wg.Go(func() {
			b, err := control.Start(context.Background(), control.Config{
				GuestNetNS: g.ns, Phase: plan.Runtime, Policy: policyOf("runtime allow echo.example"), Routes: []plan.Route{route("echo.example", at)},
			})
			if err != nil {
				t.Error(err)
				return
			}
			defer b.Close()
			for _, network := range []string{"ip4", "ip6"} {
				began := time.Now()
				c, err := g.dialName(network, "echo.example", 80)
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				// A packet that is lost because the link is not ready costs
				// a second.
				if time.Since(began) > 900*time.Millisecond {
					slow.Add(1)
				}
				io.WriteString(c, "x")
				if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	// A busy machine may be slow a few times; a link that is not ready was in one
	// case of four.
	if slow.Load() > n/3 {
		t.Errorf("%d of %d first connections took a second", slow.Load(), 2*n)
	}
}

func TestFloodOfConnectionsIsBounded(t *testing.T) {
	const limit, n = 20, 2000
	g := newGuest(t)
	at := serve(t, "tcp4", func(c net.Conn) { io.Copy(io.Discard, c) })
	var b strings.Builder
	var mu sync.Mutex
	log := &audit.Log{W: writer(func(p []byte) { mu.Lock(); b.Write(p); mu.Unlock() }), Window: time.Hour}
	all := make(chan struct{})
	var logged atomic.Int32
	x := start(t, g, control.Config{
		Policy: policy(t, "runtime allow echo.example"), Routes: []plan.Route{route("echo.example", at)},
		Limits: control.Limits{Flows: limit},
		Log: func(ds ...audit.Decision) {
			log.Write(ds...)
			if logged.Add(int32(len(ds))) == n {
				close(all)
			}
		},
	})
	a, err := g.resolve("echo.example", "ip4")
	if err != nil {
		t.Fatal(err)
	}
	most := 0
	err = g.do(func() error {
		for range n {
			c, err := net.Dial("tcp", netip.AddrPortFrom(a, 80).String())
			if err == nil {
				defer c.Close()
			} else if !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.ECONNREFUSED) {
				return err
			}
			most = max(most, x.Flows())
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if most > limit {
		t.Errorf("%d connections at a time, the limit is %d", most, limit)
	}
	select {
	case <-all:
	case <-time.After(20 * time.Second):
		t.Errorf("only %d of %d connections were decided about", logged.Load(), n)
	}
	x.Close()
	log.Close()
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	total := 0
	for _, l := range lines {
		var d audit.Decision
		if err := json.Unmarshal([]byte(l), &d); err != nil {
			t.Fatalf("%q: %v", l, err)
		}
		total += d.Count
	}
	if total != n || len(lines) > 100 {
		t.Errorf("%d lines stand for %d connections, want %d", len(lines), total, n)
	}
}

type writer func([]byte)

func (w writer) Write(p []byte) (int, error) { w(p); return len(p), nil }

func TestSandboxWithoutIPv6(t *testing.T) {
	g := newGuest(t)
	at := serve(t, "tcp4", echo)
	err := g.do(func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0) })
	if err != nil {
		needs.Lacks(t, "no IPv6 here to turn off: %v", err)
	}
	start(t, g, control.Config{Policy: policy(t, "runtime allow echo.example"), Routes: []plan.Route{route("echo.example", at)}})
	c, err := g.dialName("ip4", "echo.example", 80)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	speak(t, c)
	if a, err := g.resolve("echo.example", "ip6"); err == nil {
		t.Errorf("a sandbox without IPv6 is told of %s", a)
	}
}

func TestHosts(t *testing.T) {
	fields := map[string][]string{}
	for _, l := range strings.Split(strings.TrimSpace(control.Hosts("box")), "\n") {
		f := strings.Fields(l)
		for _, name := range f[1:] {
			fields[name] = append(fields[name], f[0])
		}
	}
	for name, want := range map[string][]string{
		"localhost": {"127.0.0.1", "::1"},
		"box":       {control.Guest4.String(), control.Guest6.String()},
	} {
		if !slices.Equal(fields[name], want) {
			t.Errorf("%s is %v, want %v", name, fields[name], want)
		}
	}
	if s := control.Hosts(""); strings.Contains(s, control.Guest4.String()) {
		t.Errorf("Hosts without a name: %s", s)
	}
}
