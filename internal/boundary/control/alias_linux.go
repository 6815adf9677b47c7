package control

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/boundary/dns"
	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/ownthread"
)

// The names of the boundary itself have addresses that never change. They are
// beyond the network of the two ends of the link, so that they are reached by
// the default route like all others.
var aliases = []dns.Entry{
	{Name: egress.HostAlias, Index: 4},
	{Name: egress.HostAliasDocker, Index: 5},
	{Name: egress.RegistryAlias, Index: 6},
}

// An aliasUDP is a socket that stands for one name at one port.
type aliasUDP struct {
	host string
	conn *net.UDPConn
}

// openUDP makes the boundary take datagrams to the services among ss: TCP is
// taken whatever its destination, but a datagram socket answers from the address
// it is bound to. All other datagrams are rejected as before.
func (l *link) openUDP(ss []egress.Service) error {
	type place struct {
		dns.Entry
		port uint16
	}
	var places []place
	for _, s := range ss {
		for _, a := range aliases {
			if p := (place{a, s.Port}); s.Protocol == egress.UDP && slices.Contains(s.Hosts, a.Name) && !slices.Contains(places, p) {
				places = append(places, p)
			}
		}
	}
	if len(places) == 0 {
		return nil
	}
	own := map[netip.Addr]bool{}
	for _, p := range places {
		for _, a := range families(l.v6, p.Addr4(), p.Addr6()) {
			if !own[a] {
				own[a] = true
				lo := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: 1}}
				addr := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(a, a.BitLen())), Flags: unix.IFA_F_NODAD | unix.IFA_F_PERMANENT}
				if err := l.routes.AddrAdd(lo, addr); err != nil {
					return fmt.Errorf("address of %s: %w", p.Name, err)
				}
			}
			l.filter.accept(a, unix.IPPROTO_UDP, p.port)
		}
	}
	if err := l.filter.nft.Flush(); err != nil {
		return fmt.Errorf("nftables rules for granted datagrams: %w", err)
	}
	return ownthread.Run(func() error {
		if err := unix.Setns(int(l.ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("entering the boundary's network namespace: %w", err)
		}
		lc := net.ListenConfig{Control: transparent}
		for _, p := range places {
			for _, a := range families(l.v6, p.Addr4(), p.Addr6()) {
				pc, err := lc.ListenPacket(context.Background(), network("udp", a), netip.AddrPortFrom(a, p.port).String())
				if err != nil {
					return fmt.Errorf("datagrams to %s: %w", p.Name, err)
				}
				l.udp = append(l.udp, aliasUDP{p.Name, pc.(*net.UDPConn)})
			}
		}
		return nil
	})
}

// accept queues a rule in front of all others.
func (f *filter) accept(to netip.Addr, proto byte, p uint16) {
	var es []expr.Any
	for _, part := range [][]expr.Any{family(to), destination(to), transport(proto), port(p), {&expr.Verdict{Kind: expr.VerdictAccept}}} {
		es = append(es, part...)
	}
	f.nft.InsertRule(&nftables.Rule{Table: f.table, Chain: f.chain, Exprs: es})
}
