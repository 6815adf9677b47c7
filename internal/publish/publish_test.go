package publish_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/guest/client"
	"github.com/kitbox-dev/kitbox/internal/needs"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/publish"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// machine stands for the loopback of a machine: ports lead to servers of the
// test, one per family.
type machine struct{ v4, v6 map[uint16]string }

func (m machine) dialer() publish.Dialer {
	addr := func(port uint16, v6 bool) string {
		a := m.v4[port]
		if v6 {
			a = m.v6[port]
		}
		if a == "" {
			a = "127.0.0.1:1"
		}
		return a
	}
	return publish.Dialer{
		TCP: func(_ context.Context, port uint16, v6 bool) (client.HalfCloser, error) {
			c, err := net.Dial("tcp", addr(port, v6))
			if err != nil {
				return nil, err
			}
			return c.(*net.TCPConn), nil
		},
		UDP: func(_ context.Context, port uint16, v6 bool) (net.Conn, error) {
			return net.Dial("udp", addr(port, v6))
		},
	}
}

func open(t *testing.T, dir string, declared []plan.Port, m machine) *publish.Publisher {
	t.Helper()
	p, problems := publish.Open(dir, declared, m.dialer(), slog.New(slog.DiscardHandler))
	t.Cleanup(p.Close)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return p
}

// echoTCP answers everything it got when the client has said all.
func echoTCP(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				b, _ := io.ReadAll(c)
				c.Write(append([]byte("echo "), b...))
			}()
		}
	}()
	return l.Addr().String()
}

func echoUDP(t *testing.T, addr string) string {
	t.Helper()
	c, err := net.ListenPacket("udp", addr)
	if err != nil {
		needs.Lacks(t, "no UDP on %s: %v", addr, err)
	}
	t.Cleanup(func() { c.Close() })
	go func() {
		b := make([]byte, 2048)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			c.WriteTo(append([]byte("echo "), b[:n]...), from)
		}
	}()
	return c.LocalAddr().String()
}

func say(t *testing.T, network, addr, text string) (string, error) {
	t.Helper()
	c, err := net.Dial(network, addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(c, text); err != nil {
		return "", err
	}
	if tc, ok := c.(*net.TCPConn); ok {
		tc.CloseWrite()
		b, err := io.ReadAll(c)
		return string(b), err
	}
	b := make([]byte, 2048)
	n, err := c.Read(b)
	return string(b[:n]), err
}

func at(ip string, port uint16) string { return net.JoinHostPort(ip, strconv.Itoa(int(port))) }

func TestPortsAreCarriedInBothFamilies(t *testing.T) {
	m := machine{v4: map[uint16]string{3000: echoTCP(t), 53: echoUDP(t, "127.0.0.1:0")}, v6: map[uint16]string{4000: echoTCP(t), 54: echoUDP(t, "127.0.0.1:0")}}
	p := open(t, t.TempDir(), []plan.Port{
		{Container: 3000, Transport: "tcp", Kits: []string{"a"}}, {Container: 53, Transport: "udp"},
		{Container: 4000, Transport: "tcp"}, {Container: 54, Transport: "udp"}, {Container: 9, Transport: "tcp"}}, m)
	for _, port := range p.List() {
		ips := []string{"127.0.0.1", "::1"}
		if port.V4Only {
			if l, err := net.Listen("tcp6", "[::1]:0"); err == nil {
				l.Close()
				t.Errorf("%s is not published at ::1, which this machine has", port.Key())
			}
			ips = ips[:1]
		}
		for _, ip := range ips {
			got, err := say(t, port.Transport, at(ip, port.Host), "hello")
			if port.Container == 9 {
				if err == nil && got != "" {
					t.Errorf("a port without a server answered %q", got)
				}
				continue
			}
			if err != nil || got != "echo hello" {
				t.Errorf("%s through %s: %q, %v", port.Key(), ip, got, err)
			}
		}
	}
}

func TestNothingListensElsewhere(t *testing.T) {
	p := open(t, t.TempDir(), []plan.Port{{Container: 3000, Transport: "tcp"}, {Container: 3000, Transport: "udp"}}, machine{})
	for _, port := range p.List() {
		for _, file := range []string{port.Transport, port.Transport + "6"} {
			b, err := os.ReadFile("/proc/net/" + file)
			if err != nil {
				t.Fatal(err)
			}
			suffix := ":" + strings.ToUpper(strconv.FormatUint(uint64(port.Host)|0x10000, 16)[1:])
			for line := range strings.Lines(string(b)) {
				f := strings.Fields(line)
				if len(f) < 2 || !strings.HasSuffix(f[1], suffix) {
					continue
				}
				if ip := strings.TrimSuffix(f[1], suffix); ip != "0100007F" && ip != "00000000000000000000000001000000" {
					t.Errorf("%s listens on %s", port.Key(), f[1])
				}
			}
		}
	}
}

func TestARestartKeepsNumbersAndWhatTheUserSaid(t *testing.T) {
	dir := t.TempDir()
	m := machine{v4: map[uint16]string{80: echoTCP(t)}}
	declared := []plan.Port{{Container: 3000, Transport: "tcp", Kits: []string{"a"}}, {Container: 3001, Transport: "tcp", Kits: []string{"a"}}}
	p := open(t, dir, declared, m)
	if err := p.Unpublish("3001/tcp"); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Publish(publish.Port{Container: 80, Transport: "tcp", Source: publish.Operator}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Publish(publish.Port{Container: 80, Transport: "tcp"}); !errors.Is(err, kiterr.ErrExists) {
		t.Errorf("twice: %v", err)
	}
	if err := p.Unpublish("9/udp"); !errors.Is(err, kiterr.ErrNotFound) {
		t.Errorf("unknown: %v", err)
	}
	before := p.List()
	p.Close()
	if _, err := say(t, "tcp", at("127.0.0.1", before[1].Host), "x"); err == nil {
		t.Error("a closed publisher still listens")
	}
	p = open(t, dir, declared, m)
	after := p.List()
	if len(after) != 2 || after[0].Host != before[0].Host || after[1].Host != before[1].Host || after[1].Container != 80 {
		t.Errorf("before %+v, after %+v", before, after)
	}
	if got, err := say(t, "tcp", at("127.0.0.1", after[1].Host), "x"); got != "echo x" {
		t.Errorf("after a restart: %q, %v", got, err)
	}
	p.Close()

	// One that somebody else has by now is replaced; one that the user chose
	// is not.
	taken, err := net.Listen("tcp", at("127.0.0.1", after[0].Host))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	p = open(t, dir, declared, m)
	if got := p.List()[0].Host; got == after[0].Host || got == 0 {
		t.Errorf("a taken port is %d again", got)
	}
	if _, err := p.Publish(publish.Port{Container: 81, Transport: "tcp", Host: after[0].Host, Pinned: true}); err == nil {
		t.Error("a taken port was published")
	}
	if len(p.List()) != 2 {
		t.Errorf("a failed publication is left: %+v", p.List())
	}
}

func TestUnpublishingEndsConnections(t *testing.T) {
	hang, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer hang.Close()
	p := open(t, t.TempDir(), []plan.Port{{Container: 80, Transport: "tcp"}}, machine{v4: map[uint16]string{80: hang.Addr().String()}})
	c, err := net.Dial("tcp", at("127.0.0.1", p.List()[0].Host))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	inner, err := hang.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer inner.Close()
	if err := p.Unpublish("80/tcp"); err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(5 * time.Second))
	var b [1]byte
	if _, err := c.Read(b[:]); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection outlived its port: %v", err)
	}
}
