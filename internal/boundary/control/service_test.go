package control_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/control"
	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// datagrams answers on the host's loopback with a greeting of its own.
func datagrams(t *testing.T, network, greeting string, got *atomic.Int64) uint16 {
	t.Helper()
	addr := "127.0.0.1:0"
	if network == "udp6" {
		addr = "[::1]:0"
	}
	pc, err := net.ListenPacket(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { pc.Close(); <-done })
	go func() {
		defer close(done)
		b := make([]byte, 64<<10)
		for {
			n, from, err := pc.ReadFrom(b)
			if err != nil {
				return
			}
			got.Add(1)
			pc.WriteTo(append([]byte(greeting+" "), b[:n]...), from)
		}
	}()
	return pc.LocalAddr().(*net.UDPAddr).AddrPort().Port()
}

func granted(port uint16, proto egress.Protocol, v6 bool) egress.Service {
	family := "4"
	if v6 {
		family = "6"
	}
	return egress.Service{Hosts: []string{egress.HostAlias, egress.HostAliasDocker}, Port: port, Protocol: proto, V6: v6,
		Name: fmt.Sprintf("host-port %s%s/%d", proto, family, port), Source: "kit test"}
}

// ask sends a datagram from the guest and returns the answer.
func (g *guest) ask(to netip.AddrPort, text string) (string, error) {
	c, err := g.dial("udp", to.String())
	if err != nil {
		return "", err
	}
	defer c.Close()
	return tell(c, text, 5*time.Second)
}

func tell(c net.Conn, text string, wait time.Duration) (string, error) {
	c.SetDeadline(time.Now().Add(wait))
	if _, err := io.WriteString(c, text); err != nil {
		return "", err
	}
	b := make([]byte, 64<<10)
	n, err := c.Read(b)
	return string(b[:n]), err
}

func TestGrantedServicesOfTheHostAnswerInsideAndNothingElse(t *testing.T) {
	g := newGuest(t)
	greet := func(s string) func(net.Conn) { return func(c net.Conn) { io.WriteString(c, s) } }
	four, six := serve(t, "tcp4", greet("tcp four")), serve(t, "tcp6", greet("tcp six"))
	canary := serve(t, "tcp4", greet("not for you"))
	var udp4, udp6, other atomic.Int64
	u4, u6 := datagrams(t, "udp4", "udp four", &udp4), datagrams(t, "udp6", "udp six", &udp6)
	closed := datagrams(t, "udp4", "not for you", &other)
	log := newDecisions()
	services := []egress.Service{granted(four.Port(), egress.TCP, false), granted(six.Port(), egress.TCP, true),
		granted(u4, egress.UDP, false), granted(u6, egress.UDP, true)}
	pol := policy(t, "runtime allow *", "runtime allow host.docker.internal").WithServices(services)
	b := start(t, g, control.Config{Log: log.log, Policy: pol})

	for _, name := range []string{egress.HostAlias, egress.HostAliasDocker} {
		for _, network := range []string{"ip4", "ip6"} {
			a, err := g.resolve(name, network)
			if err != nil {
				t.Fatal(err)
			}
			for port, want := range map[uint16]string{four.Port(): "tcp four", six.Port(): "tcp six"} {
				c, err := g.dial("tcp", netip.AddrPortFrom(a, port).String())
				if err != nil {
					t.Fatalf("%s by %s: %v", name, a, err)
				}
				if got, err := read(c); got != want || err != nil {
					t.Errorf("%s by %s: %q, %v; want %q", name, a, got, err, want)
				}
				c.Close()
			}
			for port, want := range map[uint16]string{u4: "udp four x", u6: "udp six x"} {
				if got, err := g.ask(netip.AddrPortFrom(a, port), "x"); got != want || err != nil {
					t.Errorf("udp %s by %s: %q, %v; want %q", name, a, got, err, want)
				}
			}
			// What was not granted: other ports, the other transport.
			for _, port := range []uint16{canary.Port(), u4, 22} {
				if err := refused(g.dial("tcp", netip.AddrPortFrom(a, port).String())); err != nil {
					t.Errorf("tcp/%d by %s: %v", port, a, err)
				}
			}
			for _, port := range []uint16{closed, four.Port()} {
				_, err := g.ask(netip.AddrPortFrom(a, port), "x")
				if !errors.Is(err, unix.EHOSTUNREACH) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.ECONNREFUSED) {
					t.Errorf("udp/%d by %s: %v, want it rejected at once", port, a, err)
				}
			}
		}
	}
	if n := other.Load(); n != 0 {
		t.Errorf("%d datagrams reached a service that was not granted", n)
	}
	d := log.wait(t, "the connection", func(d audit.Decision) bool {
		return d.Kind == audit.Connect && d.Verdict == audit.Allow && d.Protocol == "tcp"
	})
	if d.Rule != fmt.Sprintf("host-port tcp4/%d", d.Port) && d.Rule != fmt.Sprintf("host-port tcp6/%d", d.Port) || d.Source != "kit test" || d.Dialled == "" {
		t.Errorf("logged %+v", d)
	}
	d = log.wait(t, "the datagram", func(d audit.Decision) bool { return d.Verdict == audit.Allow && d.Protocol == "udp" })
	if d.Source != "kit test" || !strings.Contains(d.Dialled, fmt.Sprint(d.Port)) {
		t.Errorf("logged %+v", d)
	}
	d = log.wait(t, "the canary", func(d audit.Decision) bool { return d.Port == canary.Port() })
	if d.Verdict != audit.Deny || !strings.Contains(d.Why, "host-port") {
		t.Errorf("logged %+v", d)
	}
	d = log.wait(t, "the refused datagram", func(d audit.Decision) bool { return d.Port == closed })
	if d.Verdict != audit.Deny || d.Host == "" || !strings.Contains(d.Why, "not granted") {
		t.Errorf("logged %+v", d)
	}

	// A large datagram goes both ways, and the port is the sender's own.
	a, _ := g.resolve(egress.HostAlias, "ip4")
	big := strings.Repeat("b", 60000)
	if got, err := g.ask(netip.AddrPortFrom(a, u4), big); got != "udp four "+big || err != nil {
		t.Errorf("a large datagram: %d bytes, %v", len(got), err)
	}

	// Denied, a live connection is cut and a known sender is not heard.
	live, err := g.dial("udp", netip.AddrPortFrom(a, u4).String())
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	if _, err := tell(live, "x", 5*time.Second); err != nil {
		t.Fatal(err)
	}
	before := udp4.Load()
	b.SetPolicy(policy(t, "runtime deny "+egress.HostAlias).WithServices(services))
	if got, err := tell(live, "x", 200*time.Millisecond); err == nil {
		t.Errorf("after a denial: %q", got)
	}
	if udp4.Load() != before {
		t.Error("a datagram reached the service after it was denied")
	}
	if err := refused(g.dial("tcp", netip.AddrPortFrom(a, four.Port()).String())); err != nil {
		t.Error(err)
	}
	log.wait(t, "the cut", func(d audit.Decision) bool { return d.Kind == audit.Cut && d.Protocol == "udp" })
	log.wait(t, "the denied datagram", func(d audit.Decision) bool {
		return d.Kind == audit.Connect && d.Protocol == "udp" && d.Verdict == audit.Deny && d.Rule == egress.HostAlias
	})
}

func TestServicesOfTheBoundaryItself(t *testing.T) {
	g := newGuest(t)
	s := egress.Service{Hosts: []string{egress.RegistryAlias}, Port: 80, Protocol: egress.TCP, Name: "kit-registry", Source: "kit test"}
	log := newDecisions()
	dial := func(_ context.Context, s egress.Service) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() {
			defer ours.Close()
			b := make([]byte, 4)
			io.ReadFull(ours, b)
			io.WriteString(ours, s.Name+" "+string(b))
		}()
		return theirs, nil
	}
	start(t, g, control.Config{Log: log.log, Policy: policy(t).WithServices([]egress.Service{s}), Service: dial})
	c, err := g.dialName("ip4", egress.RegistryAlias, 80)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, "ping")
	var b bytes.Buffer
	c.SetReadDeadline(time.Now().Add(5 * time.Second))
	b.ReadFrom(c)
	if b.String() != "kit-registry ping" {
		t.Errorf("answer %q", b.String())
	}
	if err := refused(g.dialName("ip4", egress.RegistryAlias, 81)); err != nil {
		t.Error(err)
	}
	if _, err := g.resolve(egress.HostAlias, "ip4"); err == nil {
		t.Error("a name without a service resolves")
	}
	// An address of the boundary stands for its name, whether asked for or not.
	at := netip.MustParseAddr("198.18.0.4")
	if err := refused(g.dial("tcp", netip.AddrPortFrom(at, 22).String())); err != nil {
		t.Error(err)
	}
	d := log.wait(t, "the address", func(d audit.Decision) bool { return d.Port == 22 })
	if d.Host != egress.HostAlias || d.Phase != plan.Runtime {
		t.Errorf("logged %+v", d)
	}
}
