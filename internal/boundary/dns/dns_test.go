package dns

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// resolver makes a server with a few rules and a log.
func resolver(t testing.TB) (*Server, *[]audit.Decision) {
	t.Helper()
	p, err := egress.New([]plan.EgressRule{
		{Phase: plan.Runtime, Pattern: "a.example:443", Allow: true, Source: "kit a"},
		{Phase: plan.Runtime, Pattern: "*.wild.example", Allow: true, Source: "kit a"},
		{Phase: plan.Runtime, Pattern: "bad.wild.example", Source: "operator"},
		{Phase: plan.Install, Pattern: "pkg.example", Allow: true, Source: "kit a"},
	})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	log := new([]audit.Decision)
	return &Server{
		Rules: func() (plan.Phase, *egress.Policy) { return plan.Runtime, p },
		Names: NewTable(0, nil),
		Log:   func(ds ...audit.Decision) { mu.Lock(); *log = append(*log, ds...); mu.Unlock() },
	}, log
}

// ask puts one question to s.
func ask(t testing.TB, s *Server, name string, qtype uint16, edit ...func(*dns.Msg)) *dns.Msg {
	t.Helper()
	q := new(dns.Msg)
	q.SetQuestion(dns.Fqdn(name), qtype)
	for _, f := range edit {
		f(q)
	}
	b, err := q.Pack()
	if err != nil {
		t.Fatal(err)
	}
	out := s.Answer(b, nil)
	if out == nil {
		t.Fatalf("no answer for %s", name)
	}
	r := new(dns.Msg)
	if err := r.Unpack(out); err != nil {
		t.Fatalf("answer for %s: %v", name, err)
	}
	if r.Id != q.Id || !r.Response || len(r.Question) != len(q.Question) {
		t.Fatalf("answer for %s does not fit: %v", name, r)
	}
	return r
}

func edns(m *dns.Msg) { m.SetEdns0(4096, true) }

func TestAnswers(t *testing.T) {
	s, log := resolver(t)
	const nx, ok = dns.RcodeNameError, dns.RcodeSuccess
	for _, tt := range []struct {
		name  string
		qtype uint16
		rcode int
		want  string // of the only answer
	}{
		{"a.example", dns.TypeA, ok, "198.18.1.0"},
		{"a.example", dns.TypeAAAA, ok, "fd6b:6974:626f:7800::100"},
		{"A.Example", dns.TypeA, ok, "198.18.1.0"},
		{"x.wild.example", dns.TypeA, ok, "198.18.1.1"},
		{"y.x.wild.example", dns.TypeA, nx, ""},
		{"bad.wild.example", dns.TypeA, nx, ""},
		{"wild.example", dns.TypeA, nx, ""},
		{"pkg.example", dns.TypeA, nx, ""},
		{"other.example", dns.TypeTXT, nx, ""},
		{"a.example", dns.TypeHTTPS, ok, ""},
		{"a.example", dns.TypeSVCB, ok, ""},
		{"a.example", dns.TypeMX, ok, ""},
		{"a.example", dns.TypeTXT, ok, ""},
		{"a.example", dns.TypeANY, ok, ""},
		{"a.example", dns.TypeDNSKEY, ok, ""},
		{"localhost", dns.TypeA, ok, "127.0.0.1"},
		{"x.localhost", dns.TypeAAAA, ok, "::1"},
		{"localhost", dns.TypeMX, ok, ""},
		{".", dns.TypeNS, nx, ""},
		{"10.0.0.1", dns.TypeA, nx, ""},
		{"_dns.resolver.arpa", dns.TypeSVCB, nx, ""},
		{"1.0.0.127.in-addr.arpa", dns.TypePTR, ok, "localhost."},
		{"0.1.18.198.in-addr.arpa", dns.TypePTR, ok, "a.example."},
		{"9.9.18.198.in-addr.arpa", dns.TypePTR, nx, ""},
		{"8.8.8.8.in-addr.arpa", dns.TypePTR, nx, ""},
		{"x.8.8.in-addr.arpa", dns.TypePTR, nx, ""},
		{"0.0.1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.7.f.6.2.6.4.7.9.6.b.6.d.f.ip6.arpa", dns.TypePTR, ok, "a.example."},
		{"1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.ip6.arpa", dns.TypePTR, ok, "localhost."},
		{"z.ip6.arpa", dns.TypePTR, nx, ""},
	} {
		r := ask(t, s, tt.name, tt.qtype)
		what := fmt.Sprintf("%s %s", tt.name, dns.TypeToString[tt.qtype])
		if r.Rcode != tt.rcode {
			t.Errorf("%s: %s, want %s", what, dns.RcodeToString[r.Rcode], dns.RcodeToString[tt.rcode])
			continue
		}
		got := ""
		if len(r.Answer) > 0 {
			switch rr := r.Answer[0].(type) {
			case *dns.A:
				got = rr.A.String()
			case *dns.AAAA:
				got = rr.AAAA.String()
			case *dns.PTR:
				got = rr.Ptr
			}
			if h := r.Answer[0].Header(); h.Ttl > 60 || h.Name != dns.Fqdn(tt.name) {
				t.Errorf("%s: header %v", what, h)
			}
		} else if len(r.Ns) != 1 || r.Ns[0].Header().Rrtype != dns.TypeSOA {
			t.Errorf("%s: an empty answer without SOA", what)
		}
		if got != tt.want || len(r.Answer) > 1 {
			t.Errorf("%s: %v, want %q", what, r.Answer, tt.want)
		}
	}
	i := slices.IndexFunc(*log, func(d audit.Decision) bool { return d.Host == "bad.wild.example" })
	if i < 0 {
		t.Fatal("a refusal is not logged")
	}
	if d := (*log)[i]; d.Verdict != audit.Deny || d.Kind != audit.DNS || d.Rule != "bad.wild.example" || d.Source != "operator" {
		t.Errorf("logged %+v", d)
	}
	for host, why := range map[string]string{"8.8.8.8": "no name here", "198.18.9.9": "no name here", "x.8.8.in-addr.arpa": "no address", "z.ip6.arpa": "no address"} {
		if !slices.ContainsFunc(*log, func(d audit.Decision) bool {
			return d.Host == host && d.Kind == audit.DNS && d.Verdict == audit.Deny && strings.Contains(d.Why, why)
		}) {
			t.Errorf("a refused question for the name of %s is not logged", host)
		}
	}
	// Programs ask for the names of the ends of the link all the time.
	before := len(*log)
	if r := ask(t, s, "2.0.18.198.in-addr.arpa", dns.TypePTR); r.Rcode != nx || len(*log) != before {
		t.Errorf("the sandbox's own address: %v, logged %v", r, (*log)[before:])
	}
	for _, d := range *log {
		if d.Host == "a.example" || strings.Contains(d.Host, "localhost") {
			t.Errorf("logged an answer: %+v", d)
		}
	}
}

func TestOnly4(t *testing.T) {
	s, _ := resolver(t)
	s.Only4 = true
	if r := ask(t, s, "a.example", dns.TypeAAAA); r.Rcode != dns.RcodeSuccess || len(r.Answer) > 0 {
		t.Errorf("AAAA: %v", r)
	}
	if r := ask(t, s, "a.example", dns.TypeA); len(r.Answer) != 1 {
		t.Errorf("A: %v", r)
	}
}

func TestEDNS(t *testing.T) {
	s, _ := resolver(t)
	r := ask(t, s, "no.example", dns.TypeA, edns)
	o := r.IsEdns0()
	if o == nil || o.UDPSize() > 1232 || len(o.Option) != 1 {
		t.Fatalf("OPT = %v", o)
	}
	if e, ok := o.Option[0].(*dns.EDNS0_EDE); !ok || e.InfoCode != dns.ExtendedErrorCodeBlocked || !strings.Contains(e.ExtraText, "no.example") {
		t.Errorf("extended error = %v", o.Option[0])
	}
	if r := ask(t, s, "a.example", dns.TypeA); r.IsEdns0() != nil {
		t.Error("EDNS in the answer to a question without")
	}
	r = ask(t, s, "a.example", dns.TypeA, edns, func(m *dns.Msg) { m.IsEdns0().SetVersion(3) })
	if r.Rcode != dns.RcodeBadVers || len(r.Answer) > 0 {
		t.Errorf("version 3: %v", r)
	}
	if r := ask(t, s, "a.example", dns.TypeA, func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }); r.Rcode != dns.RcodeRefused {
		t.Errorf("class CHAOS: %v", r)
	}
	if r := ask(t, s, "a.example", dns.TypeSOA, func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate }); r.Rcode != dns.RcodeNotImplemented {
		t.Errorf("UPDATE: %v", r)
	}
}

func TestHostilePackets(t *testing.T) {
	s, _ := resolver(t)
	q := new(dns.Msg)
	q.SetQuestion("a.example.", dns.TypeA)
	good, err := q.Pack()
	if err != nil {
		t.Fatal(err)
	}
	edit := func(at int, b ...byte) []byte {
		p := slices.Clone(good)
		copy(p[at:], b)
		return p
	}
	for name, p := range map[string][]byte{
		"empty":          nil,
		"short header":   good[:11],
		"a response":     edit(2, 0x80),
		"short response": {0, 0, 0x80},
	} {
		if out := s.Answer(p, nil); out != nil {
			t.Errorf("%s is answered: % x", name, out)
		}
	}
	for name, p := range map[string][]byte{
		"no question":           edit(4, 0, 0),
		"two questions, one in": edit(4, 0, 2),
		"cut off":               good[:20],
		"pointer to itself":     edit(12, 0xc0, 12),
		"pointer outside":       edit(12, 0xff, 0xff),
	} {
		out := s.Answer(p, nil)
		if len(out) < 12 || out[0] != p[0] || out[1] != p[1] || out[3]&0xf != dns.RcodeFormatError {
			t.Errorf("%s: % x, want a format error", name, out)
		}
	}
	// The answer goes behind what is there.
	if out := s.Answer(good, []byte{1, 2}); out[0] != 1 || out[1] != 2 || binary.BigEndian.Uint16(out[2:]) != q.Id {
		t.Errorf("answer after a prefix: % x", out)
	}
	if r := ask(t, s, strings.Repeat("a", 63)+".wild.example", dns.TypeA); r.Rcode != dns.RcodeSuccess {
		t.Errorf("a label of 63 bytes: %v", r)
	}
	if r := ask(t, s, `a\000b.wild.example`, dns.TypeA); r.Rcode != dns.RcodeNameError {
		t.Errorf("a zero byte in a label: %v", r)
	}
}

func TestQuestionsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log := resolver(t)
		s.PerSecond = 10
		refused := 0
		for range 100 {
			if ask(t, s, "a.example", dns.TypeA).Rcode == dns.RcodeRefused {
				refused++
			}
		}
		if refused != 80 || len(*log) != 80 {
			t.Errorf("%d of 100 questions are refused, %d logged, want 80", refused, len(*log))
		}
		time.Sleep(time.Second)
		if r := ask(t, s, "a.example", dns.TypeA); r.Rcode != dns.RcodeSuccess {
			t.Errorf("a second later: %v", r)
		}
	})
}

func TestServeUDPAndTCP(t *testing.T) {
	s, _ := resolver(t)
	pc, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.ServeUDP(pc); err != nil {
			t.Error(err)
		}
	})
	wg.Go(func() {
		if err := s.ServeTCP(ctx, ln); err != nil {
			t.Error(err)
		}
	})

	q := new(dns.Msg)
	q.SetQuestion("a.example.", dns.TypeA)
	for network, addr := range map[string]string{"udp": pc.LocalAddr().String(), "tcp": ln.Addr().String()} {
		c, err := dns.DialTimeout(network, addr, 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 { // several on one connection
			c.SetDeadline(time.Now().Add(5 * time.Second))
			if err := c.WriteMsg(q); err != nil {
				t.Fatal(err)
			}
			r, err := c.ReadMsg()
			if err != nil || len(r.Answer) != 1 {
				t.Fatalf("%s: %v, %v", network, r, err)
			}
		}
		c.Close()
	}

	// More connections than are allowed: the extra ones are closed, those
	// that were there go on, and the end of ctx ends them.
	conns := make([]net.Conn, maxTCP+1)
	for i := range conns {
		if conns[i], err = net.Dial("tcp", ln.Addr().String()); err != nil {
			t.Fatal(err)
		}
		defer conns[i].Close()
		b, _ := q.Pack()
		conns[i].Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...))
		conns[i].SetDeadline(time.Now().Add(5 * time.Second))
		_, err := io.ReadFull(conns[i], make([]byte, 2))
		if (err == nil) != (i < maxTCP) {
			t.Errorf("connection %d: %v", i+1, err)
		}
	}
	if _, err := conns[0].Write([]byte{0xff, 0xff}); err != nil { // a question of 64 KiB
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, conns[0]); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("a question that is too long: %v, want the connection closed", err)
	}
	cancel()
	pc.Close()
	wg.Wait()
}

func TestTableKeepsAddresses(t *testing.T) {
	var told []Entry
	tab := NewTable(0, func(e Entry) { told = append(told, e) })
	a, _ := tab.Assign("a.example")
	b, _ := tab.Assign("b.example")
	again, ok := tab.Assign("a.example")
	if !ok || a == b || a != again || len(told) != 2 {
		t.Fatalf("a %v, b %v, again %v, told %v", a, b, again, told)
	}
	if !Range4.Contains(a.Addr4()) || !Range6.Contains(a.Addr6()) {
		t.Errorf("addresses %s and %s are out of range", a.Addr4(), a.Addr6())
	}
	for _, addr := range []netip.Addr{a.Addr4(), a.Addr6(), netip.AddrFrom16(a.Addr4().As16())} {
		if n, ok := tab.Name(addr); !ok || n != "a.example" {
			t.Errorf("Name(%s) = %q, %v", addr, n, ok)
		}
	}
	for _, addr := range []string{"198.18.0.1", "198.18.99.1", "8.8.8.8", "::1"} {
		if n, ok := tab.Name(netip.MustParseAddr(addr)); ok {
			t.Errorf("Name(%s) = %q", addr, n)
		}
	}
	if !Synthetic(netip.MustParseAddr("198.19.255.255")) || Synthetic(netip.MustParseAddr("198.20.0.0")) {
		t.Error("Synthetic does not know its range")
	}

	other := NewTable(0, nil)
	if err := other.Restore(tab.Snapshot()); err != nil {
		t.Fatal(err)
	}
	c, _ := other.Assign("c.example")
	for _, e := range []Entry{a, b} {
		if got, _ := other.Assign(e.Name); got != e || c.Index == e.Index {
			t.Errorf("after Restore %v, was %v; c is %v", got, e, c)
		}
	}
}

func TestTableRestoreIsStrict(t *testing.T) {
	for _, e := range []Entry{{"", 256}, {"A.example", 300}, {"10.0.0.1", 300}, {"a.example", 255}, {"a.example", 1 << 17}} {
		if err := NewTable(0, nil).Restore([]Entry{e}); err == nil {
			t.Errorf("entry %v is accepted", e)
		}
	}
	tab := NewTable(2, nil)
	if err := tab.Restore([]Entry{{"old.example", 300}, {"a.example", 256}, {"b.example", 257}, {"c.example", 257}, {"a.example", lastIndex}}); err != nil {
		t.Fatal(err)
	}
	if got := tab.Snapshot(); !slices.Equal(got, []Entry{{"c.example", 257}, {"a.example", lastIndex}}) {
		t.Errorf("Snapshot = %v; later entries count", got)
	}
	if err := tab.Restore(nil); err == nil {
		t.Error("Restore into a table in use succeeded")
	}
}

func TestFullTableGivesAwayOnlyWhatIsIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tab := NewTable(2, nil)
		a, _ := tab.Assign("a.example")
		time.Sleep(time.Second)
		b, _ := tab.Assign("b.example")
		if _, ok := tab.Assign("c.example"); ok {
			t.Fatal("a full table of names in use gave out an address")
		}
		time.Sleep(keep - time.Second)
		tab.Name(a.Addr6()) // in use
		if _, ok := tab.Assign("c.example"); ok {
			t.Fatal("b was given away too early")
		}
		time.Sleep(time.Second)
		c, ok := tab.Assign("c.example")
		if !ok || c.Index != b.Index {
			t.Fatalf("c = %v, %v; want the place of b, which was idle longest", c, ok)
		}
		if n, _ := tab.Name(b.Addr4()); n != "c.example" {
			t.Errorf("the place of b stands for %q", n)
		}
		if _, ok := tab.Assign("b.example"); ok {
			t.Error("b came back although nothing is idle")
		}
	})
}

func FuzzAnswer(f *testing.F) {
	for _, name := range []string{"a.example.", "x.wild.example.", "denied.example.", "1.0.0.127.in-addr.arpa.", "localhost."} {
		q := new(dns.Msg)
		q.SetQuestion(name, dns.TypeA)
		q.SetEdns0(4096, true)
		b, err := q.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	s, _ := resolver(f)
	s.PerSecond = 1 << 30
	s.Log = func(...audit.Decision) {}
	f.Fuzz(func(t *testing.T, q []byte) {
		out := s.Answer(q, nil)
		if out == nil {
			return
		}
		if len(out) > 1232 {
			t.Fatalf("an answer of %d bytes", len(out))
		}
		var r dns.Msg
		if err := r.Unpack(out); err != nil {
			t.Fatalf("the answer to % x cannot be read: %v", q, err)
		}
		if !r.Response || out[0] != q[0] || out[1] != q[1] {
			t.Fatalf("the answer to % x is none: % x", q, out)
		}
		for _, rr := range r.Answer {
			if a, ok := rr.(*dns.A); ok {
				if addr, _ := netip.AddrFromSlice(a.A); !Synthetic(addr) && !addr.IsLoopback() {
					t.Fatalf("% x is answered with %s", q, addr)
				}
			}
		}
	})
}

func BenchmarkAnswer(b *testing.B) {
	s, _ := resolver(b)
	s.PerSecond = 1 << 30
	q := new(dns.Msg)
	q.SetQuestion("a.example.", dns.TypeA)
	p, err := q.Pack()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	var out []byte
	for b.Loop() {
		out = s.Answer(p, out[:0])
	}
}
