package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// servers listen on the loopback inside only, as development servers do.
const servers = `  - type: com.docker.sandbox/port@1
    config: {container: 3000, name: web}
  - type: com.docker.sandbox/port@1
    config: {container: 3001, transport: udp}
  - type: com.docker.sandbox/lifecycle@1
    config:
      startup:
        - background: true
          command: [perl, -MIO::Socket::INET, -e, 'for my $p (3000, 3002) { fork or do { my $s = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => $p, Listen => 9, ReuseAddr => 1) or die; while (my $c = $s->accept) { print $c "tcp $p\n"; close $c } exit } } wait; wait']
        - background: true
          command: [perl, -MIO::Socket::INET, -e, 'my $s = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => 3001, Proto => "udp") or die; while ($s->recv(my $b, 2000)) { $s->send("udp $b") }']
`

type port struct {
	Container, Host uint16
	Transport, Name string
	Addresses       []string
}

func portsOf(t *testing.T, name string) map[string]port {
	t.Helper()
	var ps []port
	if err := json.Unmarshal([]byte(ok(t, "ports", "--json", name)), &ps); err != nil {
		t.Fatal(err)
	}
	m := map[string]port{}
	for _, p := range ps {
		m[fmt.Sprintf("%d/%s", p.Container, p.Transport)] = p
	}
	return m
}

// hear asks until the server inside is up, within a bound.
func hear(t *testing.T, transport, addr string) string {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; {
		c, err := net.DialTimeout(transport, addr, time.Second)
		if errors.Is(err, syscall.ECONNRESET) && time.Now().Before(deadline) {
			continue // let in and turned away: nobody listens inside yet
		}
		if err != nil {
			return err.Error() // the host's side is there or it is not
		}
		c.SetDeadline(time.Now().Add(time.Second))
		b := make([]byte, 100)
		n := 0
		if transport == "udp" {
			io.WriteString(c, "ping")
			n, _ = c.Read(b)
		} else {
			n, _ = io.ReadFull(c, b)
		}
		c.Close()
		if n > 0 || time.Now().After(deadline) {
			return string(b[:n])
		}
	}
}

func TestPortsOfAServerOnTheLoopbackInside(t *testing.T) {
	create(t, "served", "-q", kit(t, servers))
	ps := portsOf(t, "served")
	web, dns := ps["3000/tcp"], ps["3001/udp"]
	if web.Name != "web" || len(web.Addresses) == 0 || len(dns.Addresses) == 0 {
		t.Fatalf("%+v", ps)
	}
	// localhost is both, and clients try the newer one first.
	families := []string{"127.0.0.1", "::1"}
	if l, err := net.Listen("tcp6", "[::1]:0"); err == nil {
		l.Close()
	} else {
		t.Logf("this machine has no ::1: %v", err)
		families = families[:1]
	}
	for _, p := range []port{web, dns} {
		var want []string
		for _, ip := range families {
			want = append(want, net.JoinHostPort(ip, strconv.Itoa(int(p.Host))))
		}
		if !slices.Equal(p.Addresses, want) {
			t.Errorf("%d/%s is at %v, want %v", p.Container, p.Transport, p.Addresses, want)
		}
	}
	for _, a := range web.Addresses {
		if got := hear(t, "tcp", a); got != "tcp 3000\n" {
			t.Errorf("%s: %q", a, got)
		}
	}
	for _, a := range dns.Addresses {
		if got := hear(t, "udp", a); got != "udp ping" {
			t.Errorf("%s: %q", a, got)
		}
	}
	// The control: a server that runs inside is not reached unasked.
	addr := ok(t, "ports", "publish", "served", "3002")
	if got := hear(t, "tcp", addr[:len(addr)-1]); got != "tcp 3002\n" {
		t.Errorf("published by hand: %q", got)
	}
	ok(t, "ports", "unpublish", "served", "3002")
	if c, err := net.Dial("tcp", addr[:len(addr)-1]); err == nil {
		c.Close()
		t.Error("a port that was taken back still answers")
	}
	if o := kitbox(t, "ports", "unpublish", "served", "3002"); o.Code != 1 {
		t.Errorf("taken back twice: %+v", o)
	}

	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	taken := strconv.Itoa(other.Addr().(*net.TCPAddr).Port)
	if o := kitbox(t, "ports", "publish", "served", taken+":3002"); o.Code != 1 || !strings.Contains(o.Stderr, "port "+taken+" of this machine is in use by another program; choose another") {
		t.Errorf("a port that is taken: %+v", o)
	}

	ok(t, "stop", "served")
	if c, err := net.Dial("tcp", web.Addresses[0]); err == nil {
		c.Close()
		t.Error("a stopped sandbox listens")
	}
	if p := portsOf(t, "served")["3000/tcp"]; p.Host != web.Host || len(p.Addresses) != 0 {
		t.Errorf("while it is stopped: %+v", p)
	}
	ok(t, "ports", "publish", "served", "3002")
	ok(t, "start", "served")
	after := portsOf(t, "served")
	if after["3000/tcp"].Host != web.Host || len(after["3002/tcp"].Addresses) == 0 {
		t.Errorf("after a restart: %+v", after)
	}
	if got := hear(t, "tcp", web.Addresses[0]); got != "tcp 3000\n" {
		t.Errorf("after a restart: %q", got)
	}
}
