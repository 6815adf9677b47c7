package proxy

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
)

// urge sends b with its last byte marked as urgent.
func urge(t *testing.T, c *net.TCPConn, b string) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var sent error
	if err := raw.Control(func(fd uintptr) { sent = unix.Sendto(int(fd), []byte(b), unix.MSG_OOB, nil) }); err != nil || sent != nil {
		t.Fatal(err, sent)
	}
}

// TestUrgentBytesArePassedOn has marks at the beginning, in the middle, one behind
// another, and at the end: splice alone never gets past one. FTP and Telnet interrupt
// what they do by them, and the byte that is marked is one of a command.
func TestUrgentBytesArePassedOn(t *testing.T) {
	for _, way := range []string{"up", "down"} {
		t.Run(way, func(t *testing.T) {
			client, sandbox := pair(t)
			up, host := pair(t)
			f := &flow{client: client, cancel: func() {}, ended: make(chan struct{})}
			p := &Proxy{}
			f.attach(up, route{})
			done := make(chan struct{})
			go func() { defer close(done); p.relay(f, up, audit.Decision{}, false) }()
			from, to := sandbox, host
			if way == "down" {
				from, to = host, sandbox
			}
			to.SetReadDeadline(time.Now().Add(10 * time.Second))
			expect := func(want string) {
				t.Helper()
				got := make([]byte, len(want))
				if n, err := io.ReadFull(to, got); err != nil || string(got) != want {
					t.Fatalf("%d bytes arrived, %.20q, %v; want %d, %.20q", n, got[:n], err, len(want), want)
				}
			}
			urge(t, from, "!")
			expect("!")
			from.Write([]byte("one"))
			expect("one")
			from.Write([]byte("\xff\xf4\xff"))
			urge(t, from, "\xf2")
			from.Write([]byte("ABOR\r\n"))
			expect("\xff\xf4\xff\xf2ABOR\r\n")
			urge(t, from, "a")
			urge(t, from, "b")
			from.Write([]byte("c"))
			expect("abc")
			big := bytes.Repeat([]byte("much "), 100_000)
			go func() {
				from.Write(big)
				urge(t, from, "?")
				from.CloseWrite()
			}()
			expect(string(big) + "?")
			if n, err := io.Copy(io.Discard, to); n != 0 || err != nil {
				t.Errorf("then %d bytes, %v", n, err)
			}
			to.Close()
			<-done
			p.over()
		})
	}
}
