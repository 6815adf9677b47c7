// Package dns is the resolver of one sandbox. It answers from policy and from
// nothing else: a name that some rule of the current phase could allow gets a
// synthetic address of its own, every other name does not exist, and no
// question ever leaves the host. The real lookup happens in package proxy, at
// the moment of dialling.
package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/time/rate"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

const (
	// ttl is in seconds. It bounds how long a client keeps an address after
	// the phase that allowed it has closed; such an address leads nowhere.
	ttl = 60

	// negativeTTL is short so that a name that was just allowed is found.
	negativeTTL = 2

	// udpSize is what answers announce and never come near.
	udpSize = 1232

	// maxQuery bounds a question. A name of 255 bytes with EDNS options fits.
	maxQuery = 4096

	maxTCP     = 32               // connections at a time
	tcpIdle    = 10 * time.Second // for a whole question
	tcpQueries = 256              // per connection
)

// A Server answers the questions of one sandbox. Set its fields before use and
// leave them alone afterwards; its methods can then be called concurrently.
type Server struct {
	// Rules returns the phase and the policy of this moment. Required.
	Rules func() (plan.Phase, *egress.Policy)

	// Names gives out the addresses. Required.
	Names *Table

	// Log is told of every refusal. Required.
	Log func(...audit.Decision)

	// PerSecond is how many questions are answered in a second, with a burst
	// of twice as many; the rest is refused. Zero means 1000.
	PerSecond int

	// Only4 says that the sandbox has no IPv6, so that no name has an IPv6
	// address either.
	Only4 bool

	once  sync.Once
	limit *rate.Limiter
	conns atomic.Int32
}

func (s *Server) init() {
	s.once.Do(func() {
		n := s.PerSecond
		if n <= 0 {
			n = 1000
		}
		s.limit = rate.NewLimiter(rate.Limit(n), 2*n)
	})
}

// ServeUDP answers what arrives on pc until pc is closed, and returns nil
// then. One question is answered at a time: an answer takes microseconds, and
// a flood costs no memory.
func (s *Server) ServeUDP(pc *net.UDPConn) error {
	buf := make([]byte, maxQuery)
	var out []byte
	for {
		n, from, err := pc.ReadFromUDPAddrPort(buf)
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			time.Sleep(time.Millisecond) // an ICMP error about an earlier answer, most likely
			continue
		}
		if out = s.Answer(buf[:n], out[:0]); out != nil {
			_, _ = pc.WriteToUDPAddrPort(out, from) // a client that is gone asks again
		}
	}
}

// ServeTCP answers on the connections of ln until ctx is done or ln is
// closed, and returns once all of them have ended.
func (s *Server) ServeTCP(ctx context.Context, ln net.Listener) error {
	stop := context.AfterFunc(ctx, func() { ln.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for {
		c, err := ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			select { // out of descriptors: the next accept would fail at once too
			case <-ctx.Done():
				return nil
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		if s.conns.Add(1) > maxTCP {
			s.conns.Add(-1)
			c.Close()
			continue
		}
		wg.Go(func() {
			defer s.conns.Add(-1)
			defer c.Close()
			defer context.AfterFunc(ctx, func() { c.Close() })()
			s.serveConn(c)
		})
	}
}

func (s *Server) serveConn(c net.Conn) {
	var size [2]byte
	buf := make([]byte, maxQuery)
	for range tcpQueries {
		c.SetDeadline(time.Now().Add(tcpIdle))
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint16(size[:]))
		if n > maxQuery {
			return
		}
		if _, err := io.ReadFull(c, buf[:n]); err != nil {
			return
		}
		out := s.Answer(buf[:n], make([]byte, 2, 512))
		if out == nil {
			return
		}
		binary.BigEndian.PutUint16(out, uint16(len(out)-2))
		if _, err := c.Write(out); err != nil {
			return
		}
	}
}

// Answer appends the answer to question q to out. It returns nil when q
// deserves none: it is no question, or too broken to tell whose it is.
func (s *Server) Answer(q, out []byte) []byte {
	s.init()
	if len(q) < 12 || q[2]&0x80 != 0 { // a response is never answered: two servers would talk forever
		return nil
	}
	var m dns.Msg
	if err := m.Unpack(q); err != nil {
		return failure(q, out, dns.RcodeFormatError)
	}
	r := new(dns.Msg)
	r.SetReply(&m)
	r.RecursionAvailable = true
	opt := m.IsEdns0()
	switch {
	case m.Opcode != dns.OpcodeQuery:
		r.Rcode = dns.RcodeNotImplemented
	case len(m.Question) != 1:
		return failure(q, out, dns.RcodeFormatError)
	case !s.limit.Allow():
		r.Rcode = dns.RcodeRefused
		phase, _ := s.Rules()
		s.Log(audit.Decision{Phase: phase, Kind: audit.DNS, Verdict: audit.Deny, Host: "*", Protocol: "dns", Why: "too many questions in a second"})
	case opt != nil && opt.Version() != 0:
		r.Rcode = dns.RcodeBadVers
	case m.Question[0].Qclass != dns.ClassINET && m.Question[0].Qclass != dns.ClassANY:
		r.Rcode = dns.RcodeRefused
		phase, _ := s.Rules()
		s.Log(audit.Decision{Phase: phase, Kind: audit.DNS, Verdict: audit.Deny, Host: strings.TrimSuffix(m.Question[0].Name, "."), Protocol: "dns",
			Why: "only questions about the internet (class IN) are answered"})
	default:
		why := s.answer(m.Question[0], r)
		if why != "" && opt != nil {
			o := reply(r)
			o.Option = append(o.Option, &dns.EDNS0_EDE{InfoCode: dns.ExtendedErrorCodeBlocked, ExtraText: why})
		}
	}
	if opt != nil {
		reply(r)
		if r.Rcode == dns.RcodeBadVers {
			r.SetRcode(&m, dns.RcodeBadVers)
		}
	}
	start := len(out)
	buf := append(out, make([]byte, 1024)...)
	b, err := r.PackBuffer(buf[start:])
	if err != nil {
		return failure(q, out, dns.RcodeServerFailure)
	}
	return append(out, b...)
}

// reply returns the OPT record of r, adding it if there is none.
func reply(r *dns.Msg) *dns.OPT {
	if o := r.IsEdns0(); o != nil {
		return o
	}
	r.SetEdns0(udpSize, false)
	return r.IsEdns0()
}

// failure is the header of q turned into an answer without content.
func failure(q, out []byte, rcode int) []byte {
	h := [12]byte{q[0], q[1], 0x80 | q[2]&0x79, 0x80 | byte(rcode)}
	return append(out, h[:]...)
}

// answer fills r for question q. When q is refused it returns why.
func (s *Server) answer(q dns.Question, r *dns.Msg) (why string) {
	phase, policy := s.Rules()
	lower := strings.ToLower(q.Name)
	if strings.HasSuffix(lower, ".in-addr.arpa.") || strings.HasSuffix(lower, ".ip6.arpa.") {
		return s.reverse(q, lower, phase, policy, r)
	}
	h, err := egress.ParseHost(q.Name)
	if err != nil || h.Addr.IsValid() {
		why = q.Name + " is an address, not a name"
		if err != nil {
			why = err.Error()
		}
		return s.refuse(phase, q, q.Name, egress.Verdict{Why: why}, r)
	}
	if h.Name == "localhost" || strings.HasSuffix(h.Name, ".localhost") {
		addresses(q, netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback(), r)
		return ""
	}
	if v := policy.CouldAllow(phase, h.Name); !v.Allow {
		return s.refuse(phase, q, h.Name, v, r)
	}
	if q.Qtype != dns.TypeA && q.Qtype != dns.TypeAAAA {
		// No HTTPS or SVCB record in particular: it could carry addresses
		// and keys that take the name out of the boundary's sight.
		empty(r)
		return ""
	}
	if q.Qtype == dns.TypeAAAA && s.Only4 {
		empty(r)
		return ""
	}
	e, ok := s.Names.Assign(h.Name)
	if !ok {
		return s.refuse(phase, q, h.Name, egress.Verdict{Why: "the sandbox has too many names in use"}, r)
	}
	addresses(q, e.Addr4(), e.Addr6(), r)
	return ""
}

// addresses answers q with the address of its family.
func addresses(q dns.Question, a4, a6 netip.Addr, r *dns.Msg) {
	switch h := (dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: dns.ClassINET, Ttl: ttl}); q.Qtype {
	case dns.TypeA:
		r.Answer = []dns.RR{&dns.A{Hdr: h, A: a4.AsSlice()}}
	case dns.TypeAAAA:
		r.Answer = []dns.RR{&dns.AAAA{Hdr: h, AAAA: a6.AsSlice()}}
	default:
		empty(r)
	}
}

// refuse answers that the name does not exist. REFUSED would make resolvers
// ask again and again.
func (s *Server) refuse(phase plan.Phase, q dns.Question, host string, v egress.Verdict, r *dns.Msg) string {
	r.Rcode = dns.RcodeNameError
	empty(r)
	host = strings.TrimSuffix(host, ".")
	s.Log(audit.Decision{Phase: phase, Kind: audit.DNS, Verdict: audit.Deny, Host: host, Protocol: "dns", Rule: v.Rule, Source: v.Source, Why: v.Why})
	return v.Why
}

// empty adds the SOA record that lets a resolver keep a negative answer, for a
// short while.
func empty(r *dns.Msg) {
	r.Ns = []dns.RR{&dns.SOA{
		Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: negativeTTL},
		Ns:  "kitbox.invalid.", Mbox: "nobody.invalid.", Serial: 1, Refresh: 3600, Retry: 600, Expire: 86400, Minttl: negativeTTL,
	}}
}

// reverse answers for an address: a name only for what the boundary gave out
// and would give out now.
func (s *Server) reverse(q dns.Question, lower string, phase plan.Phase, policy *egress.Policy, r *dns.Msg) string {
	a, ok := fromArpa(lower)
	name := ""
	switch {
	case !ok:
	case a.IsLoopback():
		name = "localhost"
	default:
		if n, known := s.Names.Name(a); known && policy.CouldAllow(phase, n).Allow {
			name = n
		}
	}
	switch i, synthetic := indexOf(a); {
	case name != "":
	case ok && synthetic && i < firstIndex:
		// An end of the link. Programs ask for the name of their own address
		// whatever they do, and nobody has a rule about it.
		r.Rcode = dns.RcodeNameError
		empty(r)
		return ""
	case ok:
		return s.refuse(phase, q, a.String(), egress.Verdict{Why: "no name here has this address"}, r)
	default:
		return s.refuse(phase, q, q.Name, egress.Verdict{Why: "this is no address whose name could be asked for"}, r)
	}
	if q.Qtype != dns.TypePTR {
		empty(r)
		return ""
	}
	r.Answer = []dns.RR{&dns.PTR{
		Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypePTR, Class: dns.ClassINET, Ttl: negativeTTL}, Ptr: dns.Fqdn(name),
	}}
	return ""
}

// fromArpa reads the address out of a name below in-addr.arpa or ip6.arpa.
func fromArpa(name string) (netip.Addr, bool) {
	if s, ok := strings.CutSuffix(name, ".in-addr.arpa."); ok {
		p := strings.Split(s, ".")
		if len(p) != 4 {
			return netip.Addr{}, false
		}
		a, err := netip.ParseAddr(p[3] + "." + p[2] + "." + p[1] + "." + p[0])
		return a, err == nil
	}
	s := strings.TrimSuffix(name, ".ip6.arpa.")
	p := strings.Split(s, ".")
	if len(p) != 32 {
		return netip.Addr{}, false
	}
	var b strings.Builder
	for i := 31; i >= 0; i-- {
		if len(p[i]) != 1 {
			return netip.Addr{}, false
		}
		b.WriteString(p[i])
		if i%4 == 0 && i > 0 {
			b.WriteByte(':')
		}
	}
	a, err := netip.ParseAddr(b.String())
	return a, err == nil
}
