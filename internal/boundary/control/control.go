// Package control makes and runs the boundary of one sandbox: the only place
// that its network interface leads to.
//
// The sandbox's eth0 is one end of a veth pair. The other end is in a network
// namespace that holds nothing but the boundary's listeners and a filter that
// hands them every TCP connection and every DNS question, and rejects the
// rest. Nothing is forwarded and there is no route out; what policy allows is
// dialled from the namespace of the process, by package proxy. The namespace
// lives as long as the descriptors of the process: if it dies, nothing flows.
//
// Decisions are made in package egress, names in dns, bytes in proxy.
package control

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/datagram"
	"github.com/kitbox-dev/kitbox/internal/boundary/dns"
	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/boundary/intercept"
	"github.com/kitbox-dev/kitbox/internal/boundary/proxy"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// Interface is the name of the sandbox's side of the link.
const Interface = "eth0"

// The two ends of the link. They are the same for every sandbox: no packet
// with one of them leaves the two namespaces.
var (
	Gateway4 = dns.Entry{Index: 1}.Addr4() // the boundary; also the resolver
	Gateway6 = dns.Entry{Index: 1}.Addr6()
	Guest4   = dns.Entry{Index: 2}.Addr4() // the sandbox
	Guest6   = dns.Entry{Index: 2}.Addr6()
)

// ResolvConf returns the sandbox's /etc/resolv.conf. It lists one resolver,
// which answers for both families, so there is none that could be dead.
func ResolvConf() string {
	return fmt.Sprintf("nameserver %s\noptions timeout:2 attempts:2\n", Gateway4)
}

// Hosts returns the sandbox's /etc/hosts.
func Hosts(hostname string) string {
	s := "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
	if hostname != "" && hostname != "localhost" {
		s += fmt.Sprintf("%s\t%s\n%s\t%s\n", Guest4, hostname, Guest6, hostname)
	}
	return s
}

// Limits bound what one sandbox can make the boundary hold or do. A zero field
// means its default, which is stated where the field leads.
type Limits struct {
	// Flows is how many connections there are at a time. Zero means that of
	// [proxy.Proxy.MaxFlows], or less if the process may not open as many
	// descriptors.
	Flows        int
	Inspected    int           // of them, that are looked into; see [proxy.Proxy.MaxInspected]
	Names        int           // synthetic names; see [dns.NewTable]
	DNSPerSecond int           // see [dns.Server.PerSecond]
	DialTimeout  time.Duration // see [proxy.Proxy.DialTimeout]
	HelloTimeout time.Duration // see [proxy.Proxy.HelloTimeout]
	Idle         time.Duration // see [proxy.Proxy.Idle]
}

// A Config says what to guard and how.
type Config struct {
	// Sandbox is the name that decisions are logged under.
	Sandbox string

	// GuestNetNS is the network namespace of the sandbox. Required; it is
	// used by Start only and the caller closes it.
	GuestNetNS *os.File

	// Phase, Policy and Routes are what is in force from the first packet.
	// A nil policy lets nothing out. Its services stay those of the
	// boundary: a later policy can take some away and add none.
	Phase  plan.Phase
	Policy *egress.Policy
	Routes []plan.Route

	// Log is told of every decision, concurrently, and of those that were made
	// together at once; it must not change them, nor call the Boundary. Nil discards; see [audit.Log.Write].
	Log func(...audit.Decision)

	// Failing says why decisions cannot be logged now; see [proxy.Proxy.Failing].
	// Nil: they always can.
	Failing func() error

	// Names is what [Boundary.Names] returned in an earlier life, so that
	// addresses a client still holds go on meaning the same.
	Names []dns.Entry

	// OnName is told of each name that gets an address, before the address
	// is given out. It must be quick and must not call the Boundary. Nil
	// ignores.
	OnName func(dns.Entry)

	// Lookup and Dial replace the host's resolver and TCP; nil uses them.
	// Both must heed ctx. Addresses are judged between the two all the same.
	Lookup func(ctx context.Context, name string) ([]netip.Addr, error)
	Dial   func(ctx context.Context, to netip.AddrPort) (net.Conn, error)

	// Upstream says through which proxy of the host's network a destination
	// is reached; see [proxy.Proxy.Upstream]. Nil: none.
	Upstream func(host string, port uint16) proxy.Way

	// Service connects to a service that is none of the host's loopback.
	// Nil: there are none.
	Service func(ctx context.Context, s egress.Service) (net.Conn, error)

	// Leaf returns a certificate, which the sandbox trusts, for exactly one
	// host; connections that must be looked into are ended with it. Nil
	// refuses such connections.
	Leaf func(host string) (*tls.Certificate, error)

	// Roots are who may sign the certificates of hosts whose connections
	// are looked into. Nil: the system's.
	Roots *x509.CertPool

	// Presenter puts proof into requests of the sandbox, for which it needs
	// Leaf. Nil puts in none.
	Presenter proxy.Presenter

	Limits Limits

	// Stage is what [Prepare] made ahead of time; Start takes it over if it
	// gets as far as using it. Nil makes one.
	Stage *Stage
}

// A Stage is a boundary namespace that is not linked to a sandbox yet.
type Stage struct {
	mu   sync.Mutex
	link *link // nil once taken or closed; guarded by mu
}

// Prepare makes what a boundary needs before there is a sandbox to link it to,
// which is most of the work, so that it can be done while the sandbox starts.
func Prepare() (*Stage, error) {
	l, err := newLink()
	if err != nil {
		return nil, fmt.Errorf("network boundary: %w", err)
	}
	return &Stage{link: l}, nil
}

func (s *Stage) take() (*link, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.link
	s.link = nil
	if l == nil {
		return nil, errors.New("network boundary: the prepared stage has been used or closed")
	}
	return l, nil
}

// Close gives up a stage. Closing one that is in use or closed does nothing.
func (s *Stage) Close() {
	if l, err := s.take(); err == nil {
		l.closeListeners()
		l.close()
	}
}

// A Boundary is the running boundary of one sandbox. Its methods can be called
// concurrently.
type Boundary struct {
	rules atomic.Pointer[proxy.Rules]
	proxy *proxy.Proxy
	udp   *datagram.Server
	names *dns.Table
	log   func(...audit.Decision)

	inspect *intercept.Server // nil without Leaf

	link   *link
	cancel context.CancelFunc
	done   sync.WaitGroup // the listeners and the packet log

	mu     sync.Mutex
	closed bool // guarded by mu, which also orders changes of the rules
}

// Start puts a boundary around the sandbox whose network namespace is given
// and returns once it works. Whatever an earlier boundary left there is
// replaced. ctx bounds Start alone. On error the sandbox has no way out and
// nothing of the attempt is left.
//
// The process needs CAP_NET_ADMIN and CAP_SYS_ADMIN in the user namespaces that
// own its own and the sandbox's network namespace: as root, or as root of a
// user namespace that made the sandbox.
func Start(ctx context.Context, c Config) (*Boundary, error) {
	if c.GuestNetNS == nil {
		return nil, errors.New("network boundary: no network namespace to guard")
	}
	routes, err := proxy.ParseRoutes(c.Routes)
	if err != nil {
		return nil, err
	}
	b := &Boundary{names: dns.NewTable(c.Limits.Names, c.OnName)}
	for _, a := range aliases {
		b.names.Reserve(a)
	}
	if err := b.names.Restore(c.Names); err != nil {
		return nil, err
	}
	b.log = func(ds ...audit.Decision) {
		if c.Log == nil {
			return
		}
		for i := range ds {
			ds[i].Sandbox = c.Sandbox
		}
		c.Log(ds...)
	}
	b.rules.Store(&proxy.Rules{Phase: c.Phase, Policy: c.Policy, Routes: routes})
	flows := c.Limits.Flows
	if flows == 0 {
		flows = affordable()
	}
	b.proxy = &proxy.Proxy{
		Rules: func() proxy.Rules { return *b.rules.Load() },
		Names: b.names, Log: b.log, Failing: c.Failing, Lookup: c.Lookup, Dial: c.Dial,
		MaxFlows: flows, MaxInspected: c.Limits.Inspected, DialTimeout: c.Limits.DialTimeout,
		HelloTimeout: c.Limits.HelloTimeout, Idle: c.Limits.Idle, Service: c.service, Upstream: c.Upstream, Presenter: c.Presenter,
	}
	b.udp = &datagram.Server{Rules: b.phaseAndPolicy, Dial: c.service, Log: b.log}
	if c.Leaf != nil {
		b.inspect = intercept.New(c.Leaf, c.Roots)
		b.proxy.Intercept = b.inspect.Serve
	}
	up := false
	defer func() {
		if !up && b.inspect != nil {
			b.inspect.Close()
		}
	}()
	resolver := &dns.Server{
		Rules: b.phaseAndPolicy,
		Names: b.names, Log: b.log, PerSecond: c.Limits.DNSPerSecond,
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	stage := c.Stage
	if stage == nil {
		if stage, err = Prepare(); err != nil {
			return nil, err
		}
	}
	if b.link, err = stage.take(); err != nil {
		return nil, err
	}
	err = b.link.openUDP(c.Policy.Services())
	if err == nil {
		err = b.link.attach(c.GuestNetNS)
	}
	if err != nil {
		b.link.closeListeners()
		b.link.close()
		return nil, fmt.Errorf("network boundary: %w", err)
	}
	resolver.Only4 = !b.link.guest6
	run, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	for _, ln := range b.link.tcp {
		b.done.Go(func() { _ = b.proxy.Serve(run, ln) })
	}
	for _, ln := range b.link.dnsTCP {
		b.done.Go(func() { _ = resolver.ServeTCP(run, ln) })
	}
	for _, pc := range b.link.dnsUDP {
		b.done.Go(func() { _ = resolver.ServeUDP(pc) })
	}
	for _, a := range b.link.udp {
		b.done.Go(func() { b.udp.Serve(a.conn, a.host) })
	}
	b.done.Go(func() { b.link.watch(run, b.refusedPacket) })
	up = true
	if err := ctx.Err(); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// affordable returns how many flows the descriptors of the process suffice for,
// or 0 for the default if that many. Out of descriptors, nothing could be
// accepted and refused any more.
func affordable() int {
	const perFlow, others, enough = 6, 256, 2048
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil || l.Cur >= enough*perFlow+others {
		return 0
	}
	return max(16, (int(l.Cur)-others)/perFlow)
}

// SetPhase moves the sandbox to another phase. When it returns, no connection
// is left that the new phase does not allow, and no name of the old phase
// resolves.
func (b *Boundary) SetPhase(phase plan.Phase) {
	b.change(func(r *proxy.Rules) { r.Phase = phase })
}

// SetPolicy replaces the policy, as [Boundary.SetPhase] does the phase. Nil
// lets nothing out.
func (b *Boundary) SetPolicy(p *egress.Policy) {
	b.change(func(r *proxy.Rules) { r.Policy = p })
}

// SetRoutes replaces the routes. Live connections stay where they are.
func (b *Boundary) SetRoutes(rs []plan.Route) error {
	routes, err := proxy.ParseRoutes(rs)
	if err != nil {
		return err
	}
	b.change(func(r *proxy.Rules) { r.Routes = routes })
	return nil
}

func (b *Boundary) change(f func(*proxy.Rules)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := *b.rules.Load()
	f(&r)
	b.rules.Store(&r)
	b.proxy.Rejudge()
	b.udp.Rejudge()
}

func (b *Boundary) phaseAndPolicy() (plan.Phase, *egress.Policy) {
	r := b.rules.Load()
	return r.Phase, r.Policy
}

// service connects to a service. One of the host is a port of its loopback and
// never anything else, whoever the loopback's addresses belong to inside.
func (c Config) service(ctx context.Context, s egress.Service) (net.Conn, error) {
	if !slices.Contains(s.Hosts, egress.HostAlias) {
		if c.Service == nil {
			return nil, fmt.Errorf("%s: %w here", s.Name, kiterr.ErrUnsupported)
		}
		return c.Service(ctx, s)
	}
	to := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if s.V6 {
		to = netip.IPv6Loopback()
	}
	var d net.Dialer
	return d.DialContext(ctx, string(s.Protocol), netip.AddrPortFrom(to, s.Port).String())
}

// Phase returns the phase in force.
func (b *Boundary) Phase() plan.Phase { return b.rules.Load().Phase }

// Policy returns the policy in force.
func (b *Boundary) Policy() *egress.Policy { return b.rules.Load().Policy }

// Flows returns how many connections are carried now.
func (b *Boundary) Flows() int { return b.proxy.Flows() }

// Names returns the synthetic names, for [Config.Names] of a later life.
func (b *Boundary) Names() []dns.Entry { return b.names.Snapshot() }

// Close takes the sandbox off the network. When it returns, no connection is
// left, nothing answers the sandbox any more, and every descriptor and
// goroutine of the boundary is gone; the kernel takes the namespace and both
// ends of the link away a moment later. Closing again does nothing. The error
// is always nil today.
func (b *Boundary) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	b.closed = true
	b.cancel()
	b.link.closeListeners()
	b.done.Wait()
	if b.inspect != nil {
		b.inspect.Close()
	}
	b.link.close()
	return nil
}

// refusedPacket logs n packets that were neither TCP nor a question to the
// resolver. A zero destination stands for packets that were only counted.
func (b *Boundary) refusedPacket(protocol string, to netip.AddrPort, n int) {
	r := b.rules.Load()
	d := audit.Decision{Phase: r.Phase, Kind: audit.Packet, Verdict: audit.Deny, Host: "*", Protocol: protocol, Count: n}
	switch {
	case !to.IsValid():
		d.Kind, d.Why = audit.Overflow, "packets that came too fast to be logged one by one"
	default:
		d.Host, d.Port = to.Addr().String(), to.Port()
		if name, ok := b.names.Name(to.Addr()); ok {
			d.Host = name
		}
		d.Why = protocol + " is not carried: only tcp, and dns to the sandbox's own resolver"
		if protocol == "udp" && egress.Reserved(d.Host) {
			d.Why = r.Policy.Decide(egress.Request{Phase: r.Phase, Host: d.Host, Port: d.Port, Protocol: egress.UDP}).Why
		}
		if protocol == "udp" && to.Port() == 53 {
			d.Why = "dns is answered by the sandbox's own resolver only"
		}
	}
	b.log(d)
}
