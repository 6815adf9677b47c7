package control

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/kiterr"
)

const (
	logGroup = 1  // of nfnetlink_log, in the boundary's namespace
	logRate  = 20 // packets a second that are looked at; the rest is counted
	logBurst = 50
	logBytes = 64 // of a packet: both headers and the ports

	// countEvery is how often packets that were too many to be looked at are
	// added up.
	countEvery = 15 * time.Second
)

// A filter is the rule set of a boundary namespace and the log of what it
// refused. Its sockets stay in the namespace whatever thread uses them.
type filter struct {
	nft   *nftables.Conn
	table *nftables.Table
	chain *nftables.Chain
	log   *netlink.Conn // nil where the kernel has no nfnetlink_log
	told  uint64        // packets reported one way or the other
}

// newFilter installs the rules in the namespace of the calling thread, in one
// transaction.
func newFilter(v6 bool) (*filter, error) {
	f := new(filter)
	var err error
	if f.nft, err = nftables.New(nftables.AsLasting()); err != nil {
		return nil, fmt.Errorf("nftables: %w: %w", kiterr.ErrUnavailable, err)
	}
	if f.log, err = openLog(); err != nil {
		f.log = nil
	}
	f.rules(v6)
	err = f.nft.Flush()
	if err != nil && f.log != nil {
		// The log is the likeliest part to be missing from a kernel; counters
		// tell the same with less detail.
		f.log.Close()
		f.log = nil
		f.rules(v6)
		err = f.nft.Flush()
	}
	if err != nil {
		f.close()
		return nil, fmt.Errorf("nftables rules (modules nft_tproxy and nft_reject_inet are needed): %w: %w", kiterr.ErrUnavailable, err)
	}
	return f, nil
}

// rules queues the rule set. The chain before routing decides about every
// packet from the sandbox: for the resolver, for a transparent listener, or
// rejected; and forwarding is closed besides.
func (f *filter) rules(v6 bool) {
	drop := nftables.ChainPolicyDrop
	f.table = f.nft.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "kitbox"})
	f.nft.AddChain(&nftables.Chain{
		Table: f.table, Name: "forward", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: &drop,
	})
	f.chain = f.nft.AddChain(&nftables.Chain{
		Table: f.table, Name: "from-sandbox", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityMangle, Policy: &drop,
	})
	add := func(parts ...[]expr.Any) {
		var es []expr.Any
		for _, p := range parts {
			es = append(es, p...)
		}
		f.nft.AddRule(&nftables.Rule{Table: f.table, Chain: f.chain, Exprs: es})
	}
	accept := []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
	discard := []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}

	// By interface, not by address: the sandbox can write any address.
	add(meta(expr.MetaKeyIIF, binaryutil.NativeEndian.PutUint32(1)), accept)

	for _, gw := range families(v6, Gateway4, Gateway6) {
		for _, proto := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
			add(family(gw), destination(gw), transport(proto), port(53), accept)
		}
	}
	for _, lo := range families(v6, netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()) {
		fam := byte(unix.NFPROTO_IPV4)
		if lo.Is6() {
			fam = unix.NFPROTO_IPV6
		}
		add(family(lo), transport(unix.IPPROTO_TCP), []expr.Any{
			&expr.Immediate{Register: 1, Data: lo.AsSlice()},
			&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(tproxyPort)},
			&expr.TProxy{Family: fam, TableFamily: byte(nftables.TableFamilyINet), RegAddr: 1, RegPort: 2},
			&expr.Immediate{Register: 1, Data: binaryutil.NativeEndian.PutUint32(tproxyMark)},
			&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1},
		}, accept)
	}
	// Noise that every interface makes: broadcast and multicast go nowhere,
	// and nobody wants to read of them.
	add(family(Gateway4), field(expr.PayloadBaseNetworkHeader, 16, 1, expr.CmpOpGte, []byte{224}), discard)
	if v6 {
		// Neighbour discovery is what ARP is for IPv4.
		add(family(Gateway6), transport(unix.IPPROTO_ICMPV6),
			field(expr.PayloadBaseTransportHeader, 0, 1, expr.CmpOpGte, []byte{135}),
			field(expr.PayloadBaseTransportHeader, 0, 1, expr.CmpOpLte, []byte{136}), accept)
		add(family(Gateway6), field(expr.PayloadBaseNetworkHeader, 24, 1, expr.CmpOpEq, []byte{0xff}), discard)
	}
	if f.log != nil {
		add([]expr.Any{
			&expr.Limit{Type: expr.LimitTypePkts, Rate: logRate, Unit: expr.LimitTimeSecond, Burst: logBurst},
			&expr.Log{
				Key:   1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_SNAPLEN | 1<<unix.NFTA_LOG_QTHRESHOLD,
				Group: logGroup, Snaplen: logBytes, QThreshold: 1,
			},
		})
	}
	// Rejected rather than dropped, or a client that tries QUIC first waits
	// for its timeout.
	add([]expr.Any{
		&expr.Counter{},
		&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED},
	})
}

func meta(key expr.MetaKey, value []byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: value}}
}

func family(a netip.Addr) []expr.Any {
	if a.Is4() {
		return meta(expr.MetaKeyNFPROTO, []byte{unix.NFPROTO_IPV4})
	}
	return meta(expr.MetaKeyNFPROTO, []byte{unix.NFPROTO_IPV6})
}

func transport(proto byte) []expr.Any { return meta(expr.MetaKeyL4PROTO, []byte{proto}) }

func destination(a netip.Addr) []expr.Any {
	offset := uint32(16)
	if a.Is6() {
		offset = 24
	}
	b := a.AsSlice()
	return field(expr.PayloadBaseNetworkHeader, offset, uint32(len(b)), expr.CmpOpEq, b)
}

func port(p uint16) []expr.Any {
	return field(expr.PayloadBaseTransportHeader, 2, 2, expr.CmpOpEq, binaryutil.BigEndian.PutUint16(p))
}

func field(base expr.PayloadBase, offset, length uint32, op expr.CmpOp, value []byte) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: base, Offset: offset, Len: length},
		&expr.Cmp{Op: op, Register: 1, Data: value},
	}
}

// Numbers of linux/netfilter/nfnetlink_log.h.
const (
	ulogPacket     = unix.NFNL_SUBSYS_ULOG << 8
	ulogConfig     = unix.NFNL_SUBSYS_ULOG<<8 | 1
	cfgCmd         = 1 // NFULA_CFG_CMD
	cfgMode        = 2 // NFULA_CFG_MODE
	cfgQThresh     = 5 // NFULA_CFG_QTHRESH
	cmdBind        = 1 // NFULNL_CFG_CMD_BIND
	copyPacket     = 2 // NFULNL_COPY_PACKET
	attrPayload    = 9 // NFULA_PAYLOAD
	nfgenmsgLength = 4
)

// openLog binds to the log group in the namespace of the calling thread.
func openLog() (*netlink.Conn, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, err
	}
	mode := binary.BigEndian.AppendUint32(nil, logBytes)
	mode = append(mode, copyPacket, 0)
	attrs, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: cfgCmd, Data: []byte{cmdBind}},
		{Type: cfgMode, Data: mode},
		{Type: cfgQThresh, Data: binary.BigEndian.AppendUint32(nil, 1)},
	})
	if err == nil {
		_, err = c.Execute(netlink.Message{
			Header: netlink.Header{Type: ulogConfig, Flags: netlink.Request | netlink.Acknowledge},
			Data:   append([]byte{unix.AF_UNSPEC, 0, logGroup >> 8, logGroup & 0xff}, attrs...),
		})
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// watch reports refused packets until ctx is done: one by one as far as the
// rate limit lets them through, the others by number.
func (l *link) watch(ctx context.Context, report func(protocol string, to netip.AddrPort, n int)) {
	f := l.filter
	seen := make(chan struct {
		protocol string
		to       netip.AddrPort
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.receive(func(protocol string, to netip.AddrPort) {
			seen <- struct {
				protocol string
				to       netip.AddrPort
			}{protocol, to}
		})
	}()
	count := func() {
		if total, err := f.refused(); err == nil && total > f.told {
			report("", netip.AddrPort{}, int(total-f.told))
			f.told = total
		}
	}
	tick := time.NewTicker(countEvery)
	defer tick.Stop()
	for {
		select {
		case p := <-seen:
			f.told++
			report(p.protocol, p.to, 1)
		case <-tick.C:
			count()
		case <-ctx.Done():
			f.stop()
			for {
				select {
				case p := <-seen:
					f.told++
					report(p.protocol, p.to, 1)
				case <-ended:
					count()
					return
				}
			}
		}
	}
}

// receive calls f for each logged packet until the log is closed.
func (f *filter) receive(each func(protocol string, to netip.AddrPort)) {
	if f.log == nil {
		return
	}
	for {
		ms, err := f.log.Receive()
		if errors.Is(err, unix.ENOBUFS) {
			continue // too many; the counter has them
		}
		if err != nil {
			return
		}
		for _, m := range ms {
			if m.Header.Type != ulogPacket || len(m.Data) < nfgenmsgLength {
				continue
			}
			as, err := netlink.UnmarshalAttributes(m.Data[nfgenmsgLength:])
			if err != nil {
				continue
			}
			for _, a := range as {
				if a.Type == attrPayload {
					each(parsePacket(a.Data))
				}
			}
		}
	}
}

// refused returns how many packets the filter has rejected so far.
func (f *filter) refused() (uint64, error) {
	rules, err := f.nft.GetRules(f.table, f.chain)
	if err != nil {
		return 0, err
	}
	for _, r := range rules {
		for _, e := range r.Exprs {
			if c, ok := e.(*expr.Counter); ok {
				return c.Packets, nil
			}
		}
	}
	return 0, errors.New("the filter has no counter")
}

// stop ends receive. It can be called again.
func (f *filter) stop() {
	if f.log != nil {
		f.log.Close()
	}
}

func (f *filter) close() {
	f.stop()
	_ = f.nft.CloseLasting()
}

// parsePacket reads the destination of an IP packet that may be cut short.
func parsePacket(b []byte) (protocol string, to netip.AddrPort) {
	var proto byte
	var addr netip.Addr
	var rest []byte
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		proto = b[9]
		addr = netip.AddrFrom4([4]byte(b[16:20]))
		if head := int(b[0]&15) * 4; head <= len(b) && binary.BigEndian.Uint16(b[6:])&0x1fff == 0 {
			rest = b[head:]
		}
	case len(b) >= 40 && b[0]>>4 == 6:
		proto = b[6]
		addr = netip.AddrFrom16([16]byte(b[24:40]))
		rest = b[40:]
	default:
		return "unknown", netip.AddrPort{}
	}
	var p uint16
	switch proto {
	case unix.IPPROTO_UDP:
		protocol = "udp"
	case unix.IPPROTO_TCP:
		protocol = "tcp"
	case unix.IPPROTO_SCTP:
		protocol = "sctp"
	case unix.IPPROTO_DCCP:
		protocol = "dccp"
	case unix.IPPROTO_ICMP:
		return "icmp", netip.AddrPortFrom(addr, 0)
	case unix.IPPROTO_ICMPV6:
		return "icmpv6", netip.AddrPortFrom(addr, 0)
	default:
		return fmt.Sprintf("ip protocol %d", proto), netip.AddrPortFrom(addr, 0)
	}
	if len(rest) >= 4 {
		p = binary.BigEndian.Uint16(rest[2:])
	}
	return protocol, netip.AddrPortFrom(addr, p)
}
