package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/ownthread"
	"github.com/kitbox-dev/kitbox/kiterr"
)

const (
	hostEnd = "kitbox0" // the boundary's side of the link

	// mtu is that of loopback: no frame leaves the machine, and large ones
	// cost less per byte.
	mtu = 65535

	tproxyPort  = 15001 // of the transparent listeners, on the boundary's loopback
	tproxyMark  = 1     // on packets that are for a transparent listener
	tproxyTable = 100   // routes everything with the mark to loopback
)

// A link is the kernel's part of a boundary: the namespace, its sockets and
// the veth pair. Nothing but the sockets holds the namespace, and no more than
// the process holds them.
type link struct {
	tcp    []net.Listener // transparent: every TCP connection of the sandbox
	dnsTCP []net.Listener
	dnsUDP []*net.UDPConn
	udp    []aliasUDP // of services

	routes *netlink.Handle
	filter *filter
	ns     *os.File // the namespace
	v6     bool     // the kernel has IPv6
	guest6 bool     // and the sandbox has not turned it off
}

// newLink makes a boundary namespace that leads nowhere yet.
func newLink() (*link, error) {
	l := new(link)
	if err := ownthread.Run(l.build); err != nil {
		l.closeListeners()
		l.close()
		return nil, err
	}
	return l, nil
}

// build runs on a thread of its own. What belongs to a namespace is made from
// inside it, and is usable from everywhere afterwards.
func (l *link) build() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("new network namespace: %w: %w", kiterr.ErrUnavailable, err)
	}
	if err := quieten(); err != nil {
		return err
	}
	var err error
	if l.ns, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return err
	}
	l.v6 = hasIPv6()
	if l.filter, err = newFilter(l.v6); err != nil {
		return err
	}
	if l.routes, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return err
	}
	if err := l.loopback(); err != nil {
		return err
	}
	if err := l.listenTCP(); err != nil {
		return err
	}
	return l.listenDNS()
}

// attach links the boundary to the sandbox.
func (l *link) attach(guest *os.File) error {
	if err := notOurs(guest); err != nil {
		return err
	}
	var inside *netlink.Handle
	err := ownthread.Run(func() (err error) {
		if err := unix.Setns(int(guest.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("entering the sandbox's network namespace: %w", err)
		}
		l.guest6 = l.v6 && hasIPv6() && !sysctlIs("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1") &&
			!sysctlIs("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1")
		inside, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return err
	}
	defer inside.Close()
	return l.join(inside, guest)
}

// notOurs refuses the namespace of this very process. Its interfaces are the
// host's, and replacing eth0 there would cut the host off.
func notOurs(guest *os.File) error {
	var own, given unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &own); err != nil {
		return fmt.Errorf("own network namespace: %w", err)
	}
	if err := unix.Fstat(int(guest.Fd()), &given); err != nil {
		return fmt.Errorf("the sandbox's network namespace: %w", err)
	}
	if own.Dev == given.Dev && own.Ino == given.Ino {
		return errors.New("the sandbox has no network namespace of its own; it was given the host's")
	}
	return nil
}

// sysctls are what a new namespace may inherit from a host that routes, runs
// containers or a VPN, and the value that a boundary needs.
var sysctls = []struct{ path, value string }{
	{"/proc/sys/net/ipv4/ip_forward", "0"},
	{"/proc/sys/net/ipv6/conf/all/forwarding", "0"},
	{"/proc/sys/net/ipv4/conf/all/route_localnet", "0"},
	{"/proc/sys/net/ipv4/conf/default/route_localnet", "0"},
	// With it on, the reverse path of a marked packet would be looked up by
	// the mark, which leads to loopback, and all would be dropped.
	{"/proc/sys/net/ipv4/conf/all/src_valid_mark", "0"},
	{"/proc/sys/net/ipv4/conf/default/src_valid_mark", "0"},
	{"/proc/sys/net/ipv6/conf/all/disable_ipv6", "0"},
	{"/proc/sys/net/ipv6/conf/default/disable_ipv6", "0"},
	// Every refusal is to be told, or clients wait for a timeout. The
	// sandbox can only flood itself.
	{"/proc/sys/net/ipv4/icmp_ratelimit", "0"},
	{"/proc/sys/net/ipv6/icmp/ratelimit", "0"},
}

// quieten sets the sysctls of the namespace of the calling thread. Where /proc
// is read-only they stay as they are: the filter closes forwarding too, and
// there is nowhere to forward to.
func quieten() error {
	for _, s := range sysctls {
		err := setSysctl(s.path, s.value)
		switch {
		case err == nil, errors.Is(err, unix.ENOENT), errors.Is(err, unix.EROFS), errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		default:
			return fmt.Errorf("setting %s: %w", s.path, err)
		}
	}
	return nil
}

func setSysctl(path, value string) error {
	if sysctlIs(path, value) {
		return nil
	}
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte(value))
	return err
}

func sysctlIs(path, value string) bool {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var b [16]byte
	n, err := unix.Read(fd, b[:])
	return err == nil && strings.TrimSpace(string(b[:n])) == value
}

func hasIPv6() bool {
	_, err := os.Stat("/proc/sys/net/ipv6")
	return err == nil
}

// loopback brings lo up and sends everything that carries the mark there.
func (l *link) loopback() error {
	const lo = 1 // always
	if err := l.routes.LinkSetUp(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: lo}}); err != nil {
		return fmt.Errorf("loopback up: %w", err)
	}
	for _, dst := range families(l.v6, netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")) {
		family := unix.AF_INET
		if dst.Addr().Is6() {
			family = unix.AF_INET6
		}
		rule := netlink.NewRule()
		rule.Family, rule.Mark, rule.Table = family, tproxyMark, tproxyTable
		if err := l.routes.RuleAdd(rule); err != nil {
			return fmt.Errorf("routing rule: %w", err)
		}
		if err := l.routes.RouteAdd(&netlink.Route{
			LinkIndex: lo, Dst: ipNet(dst), Table: tproxyTable, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST,
		}); err != nil {
			return fmt.Errorf("route to loopback: %w", err)
		}
	}
	return nil
}

// join makes the veth pair and gives both ends their addresses.
func (l *link) join(inside *netlink.Handle, guest *os.File) error {
	const index = 2 // the first after lo in a new namespace
	veth := netlink.NewVeth(netlink.LinkAttrs{Name: hostEnd, Index: index, MTU: mtu, TxQLen: -1})
	veth.PeerName, veth.PeerMTU, veth.PeerNamespace = Interface, mtu, netlink.NsFd(int(guest.Fd()))
	err := l.routes.LinkAdd(veth)
	// The end of an earlier boundary, live or dying: a namespace whose last
	// process was killed goes away a little later. Deleting one end deletes
	// the other.
	for range 3 {
		if !errors.Is(err, unix.EEXIST) {
			break
		}
		old, byName := inside.LinkByName(Interface)
		if byName == nil {
			if del := inside.LinkDel(old); del != nil && !errors.Is(del, unix.ENODEV) {
				return fmt.Errorf("removing the sandbox's old %s: %w", Interface, del)
			}
		}
		err = l.routes.LinkAdd(veth)
	}
	if err != nil {
		if errors.Is(err, unix.EOPNOTSUPP) {
			err = fmt.Errorf("%w: the kernel module veth is needed: %w", kiterr.ErrUnavailable, err)
		}
		return fmt.Errorf("veth pair: %w", err)
	}
	if err := raise(l.routes, veth, l.v6, prefix(Gateway4), prefix(Gateway6)); err != nil {
		return fmt.Errorf("%s: %w", hostEnd, err)
	}
	eth, err := inside.LinkByName(Interface)
	if err != nil {
		return fmt.Errorf("finding the sandbox's %s: %w", Interface, err)
	}
	if err := raise(inside, eth, l.guest6, prefix(Guest4), prefix(Guest6)); err != nil {
		return fmt.Errorf("%s: %w", Interface, err)
	}
	if err := errors.Join(settle(l.routes, index, l.v6, Gateway6), settle(inside, eth.Attrs().Index, l.guest6, Guest6)); err != nil {
		return err
	}
	for _, gw := range families(l.guest6, Gateway4, Gateway6) {
		if err := inside.RouteReplace(&netlink.Route{LinkIndex: eth.Attrs().Index, Gw: gw.AsSlice()}); err != nil {
			return fmt.Errorf("default route by %s: %w", gw, err)
		}
	}
	return nil
}

// settle waits until an interface that is up carries packets. The kernel is not
// done when it says so: the end that was raised first drops packets until the
// link watcher has seen that the other is up, and an IPv6 address is neither
// local nor found by its neighbour until a worker has been there. A client that
// comes too early waits a second for its first retry.
func settle(h *netlink.Handle, index int, v6 bool, addr netip.Addr) error {
	deadline := time.Now().Add(2 * time.Second)
	wait := func(what string, ready func() (bool, error)) error {
		for {
			if ok, err := ready(); ok || err != nil {
				return err
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("%s does not come up: %s", addr, what)
			}
			time.Sleep(50 * time.Microsecond)
		}
	}
	err := wait("the link carries nothing", func() (bool, error) {
		i, err := h.LinkByIndex(index)
		return err == nil && i.Attrs().OperState == netlink.OperUp, err
	})
	if err != nil || !v6 {
		return err
	}
	return wait("the address is not local", func() (bool, error) {
		rs, err := h.RouteGet(addr.AsSlice())
		if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
			return false, nil
		}
		return err == nil && len(rs) > 0 && rs[0].Type == unix.RTN_LOCAL, err
	})
}

// raise gives an interface its two addresses and brings it up.
func raise(h *netlink.Handle, i netlink.Link, v6 bool, addrs ...netip.Prefix) error {
	if v6 {
		// No link-local address: nothing needs it, and it would be one more
		// destination and a stream of router solicitations.
		const none = 1 // IN6_ADDR_GEN_MODE_NONE
		if err := h.LinkSetIP6AddrGenMode(i, none); err != nil {
			return fmt.Errorf("no link-local address: %w", err)
		}
	}
	if err := h.LinkSetUp(i); err != nil {
		return fmt.Errorf("up: %w", err)
	}
	for _, a := range families(v6, addrs[0], addrs[1]) {
		addr := &netlink.Addr{IPNet: ipNet(a), Flags: unix.IFA_F_NODAD | unix.IFA_F_PERMANENT}
		if err := h.AddrAdd(i, addr); err != nil {
			return fmt.Errorf("address %s: %w", a, err)
		}
	}
	return nil
}

// transparent lets a socket stand for addresses that its namespace does not
// have, or not yet.
func transparent(network, _ string, raw syscall.RawConn) error {
	level, option := unix.SOL_IP, unix.IP_TRANSPARENT
	if strings.HasSuffix(network, "6") {
		level, option = unix.SOL_IPV6, unix.IPV6_TRANSPARENT
	}
	var err error
	if ctl := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, 1) }); ctl != nil {
		return ctl
	}
	return err
}

// listenTCP opens the listeners that every TCP connection is handed to. It runs
// on the boundary's thread: a socket belongs to the namespace it is made in.
func (l *link) listenTCP() error {
	// Finds a peer that is gone without a word within ten minutes.
	alive := net.KeepAliveConfig{Enable: true, Idle: 5 * time.Minute, Interval: time.Minute, Count: 5}
	lc := net.ListenConfig{Control: transparent, KeepAliveConfig: alive}
	for _, a := range families(l.v6, netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()) {
		ln, err := lc.Listen(context.Background(), network("tcp", a), netip.AddrPortFrom(a, tproxyPort).String())
		if err != nil {
			return fmt.Errorf("transparent listener: %w", err)
		}
		l.tcp = append(l.tcp, ln)
	}
	return nil
}

// listenDNS opens the resolver's sockets, likewise.
func (l *link) listenDNS() error {
	lc := net.ListenConfig{Control: transparent}
	for _, a := range families(l.v6, Gateway4, Gateway6) {
		at := netip.AddrPortFrom(a, 53).String()
		ln, err := lc.Listen(context.Background(), network("tcp", a), at)
		if err != nil {
			return fmt.Errorf("resolver: %w", err)
		}
		l.dnsTCP = append(l.dnsTCP, ln)
		pc, err := lc.ListenPacket(context.Background(), network("udp", a), at)
		if err != nil {
			return fmt.Errorf("resolver: %w", err)
		}
		l.dnsUDP = append(l.dnsUDP, pc.(*net.UDPConn))
	}
	return nil
}

func (l *link) closeListeners() {
	for _, ln := range l.tcp {
		ln.Close()
	}
	for _, ln := range l.dnsTCP {
		ln.Close()
	}
	for _, pc := range l.dnsUDP {
		pc.Close()
	}
	for _, a := range l.udp {
		a.conn.Close()
	}
	if l.filter != nil {
		l.filter.stop()
	}
}

// close closes the last sockets, and with them the namespace. Deleting the link first
// would say the same to the kernel and wait 40 ms for it.
func (l *link) close() {
	if l.filter != nil {
		l.filter.close()
	}
	if l.routes != nil {
		l.routes.Close()
	}
	if l.ns != nil {
		l.ns.Close()
	}
}

// families returns what there is for IPv4 and, if it is on, for IPv6.
func families[T any](v6 bool, four, six T) []T {
	if v6 {
		return []T{four, six}
	}
	return []T{four}
}

func network(transport string, a netip.Addr) string {
	if a.Is4() {
		return transport + "4"
	}
	return transport + "6"
}

// prefix is the network of the two ends of the link.
func prefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()-2) }

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
