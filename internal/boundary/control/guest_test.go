package control_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/control"
	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// A guest is a network namespace with nothing but loopback, as a driver hands
// one out, and the means to act in it.
type guest struct {
	t  testing.TB
	ns *os.File
}

// needNamespaces skips where the kernel lets nobody make a network namespace.
// The effective user decides, so that the same test runs as root and as root
// of a user namespace.
func needNamespaces(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, or root of a user namespace; TestRootless covers the latter")
	}
}

func newGuest(t testing.TB) *guest {
	t.Helper()
	needNamespaces(t)
	g := &guest{t: t}
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		ns, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			return err
		}
		g.ns = ns
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		return h.LinkSetUp(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: 1}})
	})
	if err != nil {
		t.Fatalf("making a network namespace: %v", err)
	}
	t.Cleanup(func() { g.ns.Close() })
	return g
}

// onThread runs f on a thread that ends with it.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			done <- onThread(f)
			runtime.UnlockOSThread()
			return
		}
		done <- f()
	}()
	return <-done
}

// do runs f in the namespace. Sockets that f makes stay there.
func (g *guest) do(f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(g.ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		return f()
	})
}

// dial connects from inside the guest to an address.
func (g *guest) dial(network, addr string) (c net.Conn, err error) {
	err = g.do(func() (err error) {
		d := net.Dialer{Timeout: 5 * time.Second}
		c, err = d.Dial(network, addr)
		return err
	})
	return c, err
}

// resolve asks the boundary's resolver for the address of name in a family.
func (g *guest) resolve(name, network string) (netip.Addr, error) {
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, proto, _ string) (net.Conn, error) {
		return g.dial(proto, net.JoinHostPort(control.Gateway4.String(), "53"))
	}}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	as, err := r.LookupNetIP(ctx, network, name+".")
	if err != nil {
		return netip.Addr{}, err
	}
	return as[0].Unmap(), nil
}

// dialName connects from inside the guest to a name, by IPv4 or IPv6.
func (g *guest) dialName(network, name string, port int) (net.Conn, error) {
	a, err := g.resolve(name, network)
	if err != nil {
		return nil, err
	}
	return g.dial("tcp", netip.AddrPortFrom(a, uint16(port)).String())
}

// run executes a command in the guest, with the sandbox's resolv.conf.
func (g *guest) run(args ...string) (string, error) {
	dir := g.t.TempDir()
	conf := filepath.Join(dir, "resolv.conf")
	if err := os.WriteFile(conf, []byte(control.ResolvConf()), 0o644); err != nil {
		g.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", `mount --bind "$0" /etc/resolv.conf && exec "$@"`, conf}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	done := make(chan error, 1)
	// The child is waited for on its parent's thread, or Pdeathsig would end
	// it with that thread.
	go func() { done <- g.do(cmd.Run) }()
	err := <-done
	return out.String(), err
}

// read reads all that c sends, or returns the error that ends it.
func read(c net.Conn) (string, error) {
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	var b bytes.Buffer
	_, err := b.ReadFrom(c)
	return b.String(), err
}

// decisions gathers what a boundary logs.
type decisions struct {
	mu   sync.Mutex
	all  []audit.Decision // guarded by mu
	more chan struct{}
}

func newDecisions() *decisions { return &decisions{more: make(chan struct{}, 1)} }

func (d *decisions) log(xs ...audit.Decision) {
	d.mu.Lock()
	d.all = append(d.all, xs...)
	d.mu.Unlock()
	select {
	case d.more <- struct{}{}:
	default:
	}
}

// wait returns the first decision that ok accepts, waiting for it if need be.
func (d *decisions) wait(t testing.TB, what string, ok func(audit.Decision) bool) audit.Decision {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		d.mu.Lock()
		for _, x := range d.all {
			if ok(x) {
				d.mu.Unlock()
				return x
			}
		}
		got := fmt.Sprint(d.all)
		d.mu.Unlock()
		select {
		case <-d.more:
		case <-deadline:
			t.Fatalf("no decision logged about %s; logged: %s", what, got)
		}
	}
}

// policyOf makes a policy of lines like "runtime allow *.example.com", with an
// origin behind where it matters. It panics on a bad one.
func policyOf(lines ...string) *egress.Policy {
	var rules []plan.EgressRule
	for _, l := range lines {
		f := append(strings.Fields(l), "kit test")
		rules = append(rules, plan.EgressRule{Phase: plan.Phase(f[0]), Allow: f[1] == "allow", Pattern: f[2], Source: f[3]})
	}
	p, err := egress.New(rules)
	if err != nil {
		panic(err)
	}
	return p
}

func policy(t testing.TB, lines ...string) *egress.Policy {
	t.Helper()
	return policyOf(lines...)
}

// start puts a boundary around g for the length of the test.
func start(t testing.TB, g *guest, c control.Config) *control.Boundary {
	t.Helper()
	c.GuestNetNS = g.ns
	if c.Phase == "" {
		c.Phase = plan.Runtime
	}
	b, err := control.Start(context.Background(), c)
	if err != nil {
		t.Fatalf("Start: %v", err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return b
}

// serve runs handle for each connection to a listener on the host's loopback.
func serve(t testing.TB, network string, handle func(net.Conn)) netip.AddrPort {
	t.Helper()
	addr := "127.0.0.1:0"
	if network == "tcp6" {
		addr = "[::1]:0"
	}
	ln, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				handle(c)
			})
		}
	})
	t.Cleanup(func() { ln.Close(); wg.Wait() })
	return ln.Addr().(*net.TCPAddr).AddrPort()
}

// route makes name dial to, whatever the port.
func route(name string, to netip.AddrPort) plan.Route {
	return plan.Route{Name: name, Addr: to.String()}
}
