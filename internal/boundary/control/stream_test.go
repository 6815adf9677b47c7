package control_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/control"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// certificate makes a self-signed certificate for names.
func certificate(t testing.TB, names ...string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: names, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, pool
}

func TestTLSPassesByNameOnly(t *testing.T) {
	g := newGuest(t)
	cert, pool := certificate(t, "good.example", "other.example")
	conf := &tls.Config{Certificates: []tls.Certificate{cert}}
	at := serve(t, "tcp4", func(c net.Conn) { io.WriteString(tls.Server(c, conf), "secret") })
	log := newDecisions()
	start(t, g, control.Config{
		Log: log.log, Policy: policy(t, "runtime allow good.example:443"),
		Routes: []plan.Route{route("good.example", at)},
	})
	handshake := func(sni string) (string, error) {
		c, err := g.dialName("ip4", "good.example", 443)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return read(tls.Client(c, &tls.Config{ServerName: sni, RootCAs: pool, InsecureSkipVerify: sni == ""}))
	}
	for _, sni := range []string{"good.example", "GOOD.example"} {
		if got, err := handshake(sni); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) || got != "secret" {
			t.Errorf("server name %q: %q, %v", sni, got, err)
		}
	}
	if got, err := handshake("other.example"); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("another server name: %q, %v; want a reset", got, err)
	}
	d := log.wait(t, "the server name", func(d audit.Decision) bool { return d.Protocol == "tls" })
	if d.Verdict != audit.Deny || !strings.Contains(d.Why, "other.example") || d.Host != "good.example" {
		t.Errorf("logged %+v", d)
	}

	// Without a server name it could be for any host that is served at the address.
	if got, err := handshake(""); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("no server name: %q, %v; want a reset", got, err)
	}
	log.wait(t, "no server name", func(d audit.Decision) bool {
		return d.Protocol == "tls" && d.Verdict == audit.Deny && strings.Contains(d.Why, "names no server")
	})

	// What looks like a ClientHello and cannot be read is refused too: the
	// server might read another name in it.
	c, err := g.dialName("ip4", "good.example", 443)
	if err != nil {
		t.Fatal(err)
	}
	c.Write([]byte("\x16\x03\x01\x00\x08\x01\x00\x00\x04\xff\xff\xff\xff"))
	if err := refused(c, nil); err != nil {
		t.Error(err)
	}
}

func TestServerMaySpeakFirst(t *testing.T) {
	g := newGuest(t)
	at := serve(t, "tcp4", func(c net.Conn) {
		io.WriteString(c, "220 ready\n")
		io.Copy(c, c)
		c.(*net.TCPConn).CloseWrite()
	})
	start(t, g, control.Config{Policy: policy(t, "runtime allow ssh.example"), Routes: []plan.Route{route("ssh.example", at)}})
	c, err := g.dialName("ip4", "ssh.example", 22)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	banner := make([]byte, 10)
	c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.ReadFull(c, banner); err != nil {
		t.Fatalf("banner: %v", err)
	}
	// One byte that could begin a TLS record, then the end: passed on.
	c.Write([]byte{0x16})
	c.(*net.TCPConn).CloseWrite()
	if got, err := read(c); got != "\x16" || err != nil {
		t.Errorf("echo = %q, %v", got, err)
	}
}

func TestHalfCloseAndResetArePassedOn(t *testing.T) {
	g := newGuest(t)
	half := serve(t, "tcp4", func(c net.Conn) {
		got, err := io.ReadAll(c)
		fmt.Fprintf(c, "%d %v", len(got), err)
	})
	broken := serve(t, "tcp4", func(c net.Conn) {
		io.WriteString(c, "half of the bo")
		io.ReadFull(c, make([]byte, 1))
		c.(*net.TCPConn).SetLinger(0)
	})
	gave := make(chan error, 1)
	given := serve(t, "tcp4", func(c net.Conn) {
		_, err := io.ReadAll(c)
		gave <- err
	})
	start(t, g, control.Config{
		Policy: policy(t, "runtime allow *.example"),
		Routes: []plan.Route{route("half.example", half), route("broken.example", broken), route("given.example", given)},
	})
	c, err := g.dialName("ip4", "half.example", 80)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write(make([]byte, 3<<20)); err != nil {
		t.Fatal(err)
	}
	c.(*net.TCPConn).CloseWrite()
	if got, err := read(c); got != fmt.Sprintf("%d <nil>", 3<<20) || err != nil {
		t.Errorf("after half a close: %q, %v", got, err)
	}

	c, err = g.dialName("ip4", "broken.example", 80)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.ReadFull(c, make([]byte, 14)); err != nil {
		t.Fatal(err)
	}
	c.Write([]byte{1})
	if _, err := read(c); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("a server that breaks off: %v; a truncated answer must not look whole", err)
	}

	c, err = g.dialName("ip4", "given.example", 80)
	if err != nil {
		t.Fatal(err)
	}
	c.Write([]byte("half of the bo"))
	c.(*net.TCPConn).SetLinger(0)
	c.Close()
	select {
	case err := <-gave:
		if !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("a client that breaks off: %v at the server, want a reset", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the server never heard that the client broke off")
	}
}

func TestWhatWasSentBeforeAResetArrives(t *testing.T) {
	const size = 1 << 20
	g := newGuest(t)
	broke := make(chan error, 1)
	at := serve(t, "tcp4", func(c net.Conn) {
		_, err := c.Write(make([]byte, size))
		// What the boundary has acknowledged is the boundary's to deliver.
		raw, _ := c.(*net.TCPConn).SyscallConn()
		for left := 1; err == nil && left > 0; runtime.Gosched() {
			err = raw.Control(func(fd uintptr) { left, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
		}
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
		broke <- err
	})
	start(t, g, control.Config{Policy: policy(t, "runtime allow rude.example"), Routes: []plan.Route{route("rude.example", at)}})
	c, err := g.dialName("ip4", "rude.example", 80)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := <-broke; err != nil {
		t.Fatal(err)
	}
	if got, err := read(c); len(got) != size || !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("%d bytes of %d, then %v; want all, then the reset", len(got), size, err)
	}
}

func TestSlowHelloAndIdleConnectionsEnd(t *testing.T) {
	g := newGuest(t)
	at := serve(t, "tcp4", func(c net.Conn) { io.Copy(io.Discard, c) })
	b := start(t, g, control.Config{
		Policy: policy(t, "runtime allow slow.example"), Routes: []plan.Route{route("slow.example", at)},
		Limits: control.Limits{HelloTimeout: 50 * time.Millisecond, Idle: 300 * time.Millisecond},
	})
	c, err := g.dialName("ip4", "slow.example", 443)
	if err != nil {
		t.Fatal(err)
	}
	c.Write([]byte("\x16\x03\x01\x40\x00\x01")) // and never the rest
	if err := refused(c, nil); err != nil {
		t.Errorf("a ClientHello without end: %v", err)
	}
	c, err = g.dialName("ip4", "slow.example", 443)
	if err != nil {
		t.Fatal(err)
	}
	if err := refused(c, nil); err != nil {
		t.Errorf("an idle connection: %v", err)
	}
	// The client may hear of the reset before the flow is forgotten.
	for deadline := time.Now().Add(5 * time.Second); b.Flows() != 0; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%d flows left", b.Flows())
		}
	}
}

func TestAnswersAreFilteredBeforeDialling(t *testing.T) {
	g := newGuest(t)
	public, backup := netip.MustParseAddr("93.184.216.34"), netip.MustParseAddr("2606:4700::1")
	var dialled = make(chan netip.AddrPort, 8)
	lookup := func(_ context.Context, name string) ([]netip.Addr, error) {
		if name != "mixed.example" {
			return nil, fmt.Errorf("asked for %s", name)
		}
		return []netip.Addr{netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("::1"), public, netip.MustParseAddr("64:ff9b::a00:1"), backup}, nil
	}
	at := serve(t, "tcp4", echo)
	dial := func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
		dialled <- to
		if to.Addr() == public {
			return nil, unix.ECONNREFUSED
		}
		var d net.Dialer
		return d.DialContext(ctx, "tcp", at.String())
	}
	log := newDecisions()
	start(t, g, control.Config{Policy: policy(t, "runtime allow mixed.example"), Lookup: lookup, Dial: dial, Log: log.log})
	c, err := g.dialName("ip4", "mixed.example", 80)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	speak(t, c)
	if one, two := <-dialled, <-dialled; one.Addr() != public || two.Addr() != backup {
		t.Errorf("dialled %s, then %s", one, two)
	}
	select {
	case to := <-dialled:
		t.Errorf("dialled %s too", to)
	default:
	}
	d := log.wait(t, "the connection", func(d audit.Decision) bool { return d.Kind == audit.Connect })
	if d.Dialled != netip.AddrPortFrom(backup, 80).String() {
		t.Errorf("logged %+v", d)
	}
}

// TestChangeWhileDialling changes the rules at the moments when a connection has
// been judged but does not exist yet.
func TestChangeWhileDialling(t *testing.T) {
	g := newGuest(t)
	public := netip.MustParseAddr("93.184.216.34")
	at := serve(t, "tcp4", echo)
	inLookup, inDial := make(chan struct{}), make(chan struct{})
	dialOn := make(chan struct{})
	log := newDecisions()
	allow := []string{"runtime allow one.example", "runtime allow two.example"}
	b := start(t, g, control.Config{
		Log: log.log, Policy: policy(t, allow...),
		Lookup: func(ctx context.Context, name string) ([]netip.Addr, error) {
			if name == "one.example" {
				close(inLookup)
				<-ctx.Done() // until it is cut
				return nil, ctx.Err()
			}
			return []netip.Addr{public}, nil
		},
		Dial: func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			close(inDial)
			<-dialOn
			var d net.Dialer
			return d.DialContext(ctx, "tcp", at.String())
		},
	})
	c, err := g.dialName("ip4", "one.example", 80)
	if err != nil {
		t.Fatal(err)
	}
	<-inLookup
	b.SetPolicy(policy(t, append(allow, "runtime deny one.example")...))
	if err := refused(c, nil); err != nil {
		t.Errorf("revoked during the lookup: %v", err)
	}

	// The name stays allowed, but the address that is being dialled does not.
	c, err = g.dialName("ip4", "two.example", 80)
	if err != nil {
		t.Fatal(err)
	}
	<-inDial
	b.SetPolicy(policy(t, append(allow, "runtime deny 93.184.0.0/16 operator")...))
	c.Write([]byte("ping\n")) // a reset that came before would be told to it and not to who reads
	close(dialOn)
	if err := refused(c, nil); err != nil {
		t.Errorf("address revoked while it was dialled: %v", err)
	}
	d := log.wait(t, "the address", func(d audit.Decision) bool { return d.Kind == audit.Cut && d.Host == "two.example" })
	if d.Rule != "93.184.0.0/16" || d.Source != "operator" {
		t.Errorf("logged %+v", d)
	}
}

func TestUnreachableIsNotRefused(t *testing.T) {
	g := newGuest(t)
	at := serve(t, "tcp4", echo)
	log := newDecisions()
	start(t, g, control.Config{
		Log: log.log, Policy: policy(t, "runtime allow *"),
		Routes: []plan.Route{{Name: "down.example", Addr: netip.AddrPortFrom(at.Addr(), 1).String()}},
		Lookup: func(_ context.Context, name string) ([]netip.Addr, error) {
			return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
		},
	})
	for _, name := range []string{"down.example", "absent.example"} {
		if err := refused(g.dialName("ip4", name, 80)); err != nil {
			t.Error(err)
		}
		d := log.wait(t, name, func(d audit.Decision) bool { return d.Host == name })
		if d.Verdict != audit.Failed || d.Rule != "*" {
			t.Errorf("logged %+v", d)
		}
	}
}

// TestOrdinaryClients runs programs that know nothing of a boundary.
func TestOrdinaryClients(t *testing.T) {
	g := newGuest(t)
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "hello from %s", r.Host) })
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: mux}
	go srv.Serve(ln)
	defer srv.Close()
	at := ln.Addr().(*net.TCPAddr).AddrPort()
	log := newDecisions()
	start(t, g, control.Config{Log: log.log, Policy: policy(t, "runtime allow web.example"), Routes: []plan.Route{route("web.example", at)}})

	for _, family := range []string{"-4", "-6"} {
		if out, err := g.run("curl", "-sS", family, "--max-time", "5", "http://web.example/"); err != nil || out != "hello from web.example" {
			t.Errorf("curl %s = %q, %v", family, out, err)
		}
	}
	if out, err := g.run("curl", "-sS", "--max-time", "5", "http://denied.example/"); err == nil || !strings.Contains(out, "Could not resolve host") {
		t.Errorf("curl of a denied name = %q, %v", out, err)
	}
	log.wait(t, "the denied name", func(d audit.Decision) bool {
		return d.Kind == audit.DNS && d.Host == "denied.example" && d.Verdict == audit.Deny
	})
	if out, err := g.run("curl", "-sS", "--max-time", "5", "http://192.0.2.7/"); err == nil || strings.Contains(out, "timed out") {
		t.Errorf("curl of an address = %q, %v", out, err)
	}
	for _, tt := range []struct{ args, want string }{
		{"+short web.example", "198.18."},
		{"+short +tcp web.example AAAA", "fd6b:6974:626f:7800:"},
		{"web.example HTTPS", "status: NOERROR"},
		{"denied.example", "status: NXDOMAIN"},
		{"denied.example", "no runtime rule allows denied.example"}, // extended error
		{"+short -x 127.0.0.1", "localhost."},
		{"+tries=1 +timeout=3 @8.8.8.8 web.example", "no servers could be reached"},
	} {
		out, _ := g.run(append([]string{"dig"}, strings.Fields(tt.args)...)...)
		if !strings.Contains(out, tt.want) {
			t.Errorf("dig %s: %s\nwant %q", tt.args, out, tt.want)
		}
	}
}
