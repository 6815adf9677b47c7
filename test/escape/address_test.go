package escape

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func contains(b []byte, text string) bool { return bytes.Contains(b, []byte(text)) }

func splitLines(b []byte) iter.Seq[string] { return strings.Lines(string(b)) }

// literal is a request to an address that no rule spells.
func literal(in place, name, tries, addr string, port int) attempt {
	return on(in, name, tries, func(w *world) error { return fetch(addr, port, "/"+w.Mark) })
}

// addresses are attempts to connect past the names, most of them with the
// sandbox's own network turned inside out.
func addresses() []attempt {
	list := []attempt{
		literal(plain, "public", "a public address", publicAddr, 80),
		literal(plain, "public6", "a public address of IPv6", public6, 80),
		literal(plain, "mapped", "an IPv4 address in the clothes of IPv6", "::ffff:"+publicAddr, 80),
		literal(plain, "nat64", "an address that a translator of IPv4 has", "64:ff9b::5db8:d822", 80),
		literal(plain, "six-to-four", "an address that carries IPv4 inside", "2002:5db8:d822::1", 80),
		literal(plain, "metadata", "the metadata service of clouds", "169.254.169.254", 80),
		literal(plain, "metadata6", "the same by IPv6", "fd00:ec2::254", 80),
		literal(plain, "private-ten", "a private network", "10.0.0.1", 80),
		literal(plain, "private-docker", "the address that a container engine gives its host", "172.17.0.1", 80),
		literal(plain, "private-home", "a home router", "192.168.1.1", 80),
		literal(plain, "carrier", "a carrier's shared network", "100.64.0.1", 80),
		literal(plain, "uplink", "the host's own address", uplink, 80),
		literal(plain, "host-loopback", "a service on the host's loopback", "127.0.0.1", loopPort),
		literal(plain, "host-loopback6", "the same by IPv6", "::1", loopPort),
		literal(plain, "boundary-address", "that service by the boundary's address", "198.18.0.1", 8080),
		literal(plain, "unassigned", "an address of the boundary's that stands for no name", "198.18.77.77", 80),
		literal(plain, "unassigned6", "the same by IPv6", "fd6b:6974:626f:7800::4d4d", 80),
		literal(strong, "any-address", "the address that means this host", "0.0.0.0", loopPort),
		on(strong, "boundary-listener", "the port that the boundary itself listens on", func(w *world) error {
			if uplinkInterface() == "lo" {
				return fetch(publicAddr, 80, "/"+w.Mark)
			}
			return fetch("198.18.0.1", 15001, "/"+w.Mark)
		}),
		on(strong, "loopback-over-the-link", "the boundary's loopback, bound to the link", func(w *world) error {
			return over(uplinkInterface(), "127.0.0.1", loopPort, w.Mark)
		}),
		on(plain, "fast-open", "data in the first packet of a connection", func(w *world) error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			if err := unix.Sendto(fd, []byte(get("x", "/"+w.Mark)), unix.MSG_FASTOPEN, &unix.SockaddrInet4{Addr: target.As4(), Port: 80}); err != nil {
				return err
			}
			return readFD(fd)
		}),
		on(plain, "multipath", "a connection of multipath TCP", func(w *world) error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_MPTCP)
			if errors.Is(err, unix.EPROTONOSUPPORT) {
				return fmt.Errorf("%w: %w", errMissing, err)
			}
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: target.As4(), Port: 80}); err != nil {
				return err
			}
			if _, err := unix.Write(fd, []byte(get("x", "/"+w.Mark))); err != nil {
				return err
			}
			return readFD(fd)
		}),
		on(strong, "firewall-mark", "the mark that the boundary's own packets carry", func(w *world) error {
			return send("tcp4", at(80), get("x", "/"+w.Mark), setsockopt(unix.SOL_SOCKET, unix.SO_MARK, 1))
		}),
		on(strong, "transparent", "a socket that stands for an address which is not its own", func(w *world) error {
			return send("tcp4", at(80), get("x", "/"+w.Mark), setsockopt(unix.SOL_IP, unix.IP_TRANSPARENT, 1), setsockopt(unix.SOL_IP, unix.IP_FREEBIND, 1))
		}),
		{name: "link-local", tries: "the link's other end by a link-local address", in: strong, at: strong,
			attack: func(*world) error {
				_, err := dialer.Dial("tcp", "[fe80::1%eth0]:80")
				return err
			},
			control: func(*world) error { _, err := dial(openName, 80); return err }},
		{name: "neighbour-by-address", tries: "another sandbox's server by the address it has inside", in: plain, at: neighbour,
			attack: func(w *world) error { return hears(w, "198.18.0.2", "127.0.0.1", "::1", "198.18.0.1", "0.0.0.0") }},
		{name: "neighbour-by-name", tries: "another sandbox's server by its name", in: plain, at: neighbour,
			attack: func(w *world) error { return hears(w, "neighbour", "neighbour.local") }},
		{name: "abstract-socket", tries: "an abstract socket of the host", in: plain, at: host,
			attack: func(w *world) error { return dialUnix(w.Abstract) }},
		{name: "abstract-socket-strong", tries: "the same with every capability", in: strong, at: host,
			attack: func(w *world) error { return dialUnix(w.Abstract) }},
	}
	return append(list, turned()...)
}

// over connects with the socket bound to an interface.
func over(iface, host string, port int, mark string) error {
	return send("tcp4", net.JoinHostPort(host, fmt.Sprint(port)), get("x", "/"+mark), func(fd int) error {
		return unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, iface)
	})
}

func readFD(fd int) error {
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		return err
	}
	n, err := unix.Read(fd, make([]byte, 100))
	if err == nil && n == 0 {
		err = io.EOF
	}
	return err
}

// hears returns nil when the neighbour's server speaks at one of hosts.
func hears(w *world, hosts ...string) error {
	var errs []error
	for _, h := range hosts {
		c, err := dial(h, 8000)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		b, err := io.ReadAll(io.LimitReader(c, 1<<10))
		c.Close()
		if strings.Contains(string(b), w.Neighbour) {
			return nil
		}
		errs = append(errs, fmt.Errorf("%s says %q, %w", h, b, err))
	}
	return errors.Join(errs...)
}

func dialUnix(addr string) error {
	c, err := dialer.Dial("unix", addr)
	if err != nil {
		return err
	}
	return c.Close()
}

// turned are attempts that change addresses, routes and rules first. They put
// back what they change.
func turned() []attempt {
	try := func(w *world) error { return fetch(publicAddr, 80, "/"+w.Mark) }
	change := func(name, tries string, do func(eth netlink.Link) (undo func(), err error)) attempt {
		return attempt{name: name, tries: tries, in: rough, at: host, arrives: true, control: try, attack: func(w *world) error {
			eth, err := netlink.LinkByName("eth0")
			if err != nil {
				return broken(err)
			}
			undo, err := do(eth)
			if err != nil {
				return fmt.Errorf("the change itself: %w", err)
			}
			defer undo()
			return errors.Join(try(w), send("udp4", at(udpPort), w.Mark))
		}}
	}
	must := func(s string) *netlink.Addr {
		a, err := netlink.ParseAddr(s)
		if err != nil {
			panic(err)
		}
		return a
	}
	ip := net.ParseIP(publicAddr)
	return []attempt{
		change("take-the-hosts-address", "the host's own address on the sandbox's interface", func(eth netlink.Link) (func(), error) {
			a := must(uplink + "/24")
			return func() { _ = netlink.AddrDel(eth, a) }, netlink.AddrAdd(eth, a)
		}),
		change("take-the-boundarys-address", "the boundary's address on the sandbox's interface", func(eth netlink.Link) (func(), error) {
			a := must("198.18.0.1/32")
			return func() { _ = netlink.AddrDel(eth, a) }, netlink.AddrAdd(eth, a)
		}),
		change("route-on-link", "a route that takes the address for a neighbour on the link", func(eth netlink.Link) (func(), error) {
			r := &netlink.Route{LinkIndex: eth.Attrs().Index, Dst: &net.IPNet{IP: ip, Mask: net.CIDRMask(32, 32)}, Scope: netlink.SCOPE_LINK}
			n := &netlink.Neigh{LinkIndex: eth.Attrs().Index, IP: ip, HardwareAddr: gatewayMAC(), State: netlink.NUD_PERMANENT}
			return func() { _ = netlink.RouteDel(r); _ = netlink.NeighDel(n) }, errors.Join(netlink.RouteAdd(r), netlink.NeighSet(n))
		}),
		change("other-gateway", "another gateway than the boundary", func(eth netlink.Link) (func(), error) {
			r := &netlink.Route{LinkIndex: eth.Attrs().Index, Dst: &net.IPNet{IP: ip, Mask: net.CIDRMask(32, 32)}, Gw: net.ParseIP("192.0.2.1"), Flags: int(netlink.FLAG_ONLINK)}
			n := &netlink.Neigh{LinkIndex: eth.Attrs().Index, IP: r.Gw, HardwareAddr: gatewayMAC(), State: netlink.NUD_PERMANENT}
			return func() { _ = netlink.RouteDel(r); _ = netlink.NeighDel(n) }, errors.Join(netlink.RouteAdd(r), netlink.NeighSet(n))
		}),
		change("gratuitous-arp", "telling the link that the boundary's address is elsewhere", func(netlink.Link) (func(), error) {
			mac := gatewayMAC()
			arp := append([]byte{0, 1, 8, 0, 6, 4, 0, 2}, mac...)
			arp = append(append(arp, 198, 18, 0, 1), append(mac, 198, 18, 0, 1)...)
			return func() {}, frame("eth0", net.HardwareAddr{255, 255, 255, 255, 255, 255}, unix.ETH_P_ARP, arp)
		}),
		change("macvlan", "a second interface on the link with an address of its own", func(eth netlink.Link) (func(), error) {
			return stacked(&netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: "esc0", ParentIndex: eth.Attrs().Index}, Mode: netlink.MACVLAN_MODE_BRIDGE}, must("192.0.2.77/24"), ip)
		}),
		change("vlan", "an interface for a tagged network on the link", func(eth netlink.Link) (func(), error) {
			return stacked(&netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: "esc0", ParentIndex: eth.Attrs().Index}, VlanId: 5}, must("192.0.2.77/24"), ip)
		}),
		change("tunnel", "a tunnel of GRE to the outside", func(netlink.Link) (func(), error) {
			return stacked(&netlink.Gretun{LinkAttrs: netlink.LinkAttrs{Name: "esc0"}, Local: net.ParseIP("198.18.0.2"), Remote: net.ParseIP("93.184.216.35")}, must("192.0.2.77/24"), ip)
		}),
		change("flush-rules", "taking away every filter rule that root finds", func(netlink.Link) (func(), error) {
			c, err := nftables.New()
			if err != nil {
				return nil, err
			}
			c.FlushRuleset()
			return func() {}, c.Flush()
		}),
		change("forwarding", "turning forwarding and foreign addresses on", func(eth netlink.Link) (func(), error) {
			r := &netlink.Route{LinkIndex: 1, Dst: &net.IPNet{IP: ip, Mask: net.CIDRMask(32, 32)}, Type: unix.RTN_LOCAL, Table: 77}
			rule := netlink.NewRule()
			rule.Table, rule.Family = 77, unix.AF_INET
			return func() { _ = netlink.RuleDel(rule); _ = netlink.RouteDel(r) }, errors.Join(netlink.RouteAdd(r), netlink.RuleAdd(rule))
		}),
		{name: "new-namespace", tries: "a fresh network namespace, which may have more", in: strong, at: host, arrives: true, control: try,
			attack: func(w *world) error { return inNewNet(func() error { return try(w) }) }},
		{name: "link-to-the-init-namespace", tries: "a link whose other end is in the namespace of the first process", in: strong, at: strong,
			attack: func(*world) error {
				before, err := net.Interfaces()
				if err != nil {
					return broken(err)
				}
				veth := netlink.NewVeth(netlink.LinkAttrs{Name: "esc1"})
				veth.PeerName, veth.PeerNamespace = "esc2", netlink.NsPid(1)
				if err := netlink.LinkAdd(veth); err != nil {
					return err
				}
				defer func() { _ = netlink.LinkDel(veth) }()
				after, err := net.Interfaces()
				if err != nil {
					return broken(err)
				}
				if len(after) == len(before)+2 {
					return errors.New("the first process is in this very namespace")
				}
				return nil
			},
			control: func(*world) error {
				return inNewNet(func() error {
					veth := netlink.NewVeth(netlink.LinkAttrs{Name: "esc1"})
					veth.PeerName, veth.PeerNamespace = "esc3", netlink.NsPid(1)
					if err := netlink.LinkAdd(veth); err != nil {
						return err
					}
					return netlink.LinkDel(veth)
				})
			}},
		{name: "move-the-link", tries: "the interface in a namespace of one's own, with the host's address on it", in: rough, at: host, arrives: true,
			control: try, attack: func(w *world) error { return moved(func() error { return try(w) }) }},
	}
}

// moved runs f in a new namespace that eth0 has been moved to, and moves it back.
func moved(f func() error) error {
	home, err := os.Open("/proc/self/ns/net")
	if err != nil {
		return broken(err)
	}
	defer home.Close()
	eth, err := netlink.LinkByName("eth0")
	if err != nil {
		return broken(err)
	}
	first, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return broken(err)
	}
	defer first.Close()
	settle := func(addr string) error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		a, err := netlink.ParseAddr(addr)
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetUp(l), netlink.AddrReplace(l, a),
			netlink.RouteReplace(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: net.ParseIP("198.18.0.1"), Flags: int(netlink.FLAG_ONLINK)}))
	}
	var tried error
	err = inNewNet(func() error {
		here, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			return err
		}
		defer here.Close()
		if err := first.LinkSetNsFd(eth, int(here.Fd())); err != nil {
			return err
		}
		if err := settle(uplink + "/24"); err != nil {
			return err
		}
		tried = f()
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.LinkSetNsFd(l, int(home.Fd()))
	})
	if err := errors.Join(err, settle("198.18.0.2/30")); err != nil {
		return broken(err)
	}
	return tried
}

// inNewNet runs f on a thread of its own in a new network namespace.
func inNewNet(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

// stacked brings an interface up with an address and a route over it.
func stacked(l netlink.Link, a *netlink.Addr, to net.IP) (func(), error) {
	if err := netlink.LinkAdd(l); err != nil {
		return nil, err
	}
	undo := func() { _ = netlink.LinkDel(l) }
	made, err := netlink.LinkByName(l.Attrs().Name)
	if err == nil {
		err = errors.Join(netlink.LinkSetUp(made), netlink.AddrAdd(made, a),
			netlink.RouteAdd(&netlink.Route{LinkIndex: made.Attrs().Index, Dst: &net.IPNet{IP: to, Mask: net.CIDRMask(32, 32)}, Scope: netlink.SCOPE_LINK}))
	}
	if err != nil {
		undo()
		return nil, err
	}
	time.Sleep(20 * time.Millisecond) // for the link to be up; what is sent earlier is lost, and that would be no attempt
	return undo, nil
}
