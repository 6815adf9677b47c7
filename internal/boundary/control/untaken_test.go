package control_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/boundary/control"
	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// TestWhatIsNotTakenOfAnAnswerDoesNotComeLater asks by HTTP/2 for an answer that fits
// into what the boundary holds, takes nothing of it, and does once the phase is closed.
// The host is allowed in both phases, its credential is not.
func TestWhatIsNotTakenOfAnAnswerDoesNotComeLater(t *testing.T) {
	const length = 1500
	i, b, _ := keyedBoth(t, new(setter), func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(length))
		w.Write(make([]byte, length))
	})
	c, err := i.g.dialName("ip4", "key.example", 443)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s := tls.Client(c, &tls.Config{ServerName: "key.example", RootCAs: i.trusted, NextProtos: []string{"h2"}})
	s.SetDeadline(time.Now().Add(20 * time.Second))
	if err := s.Handshake(); err != nil {
		t.Fatal(err)
	}
	io.WriteString(s, http2.ClientPreface)
	f := http2.NewFramer(s, s)
	f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	ask := func(id uint32) {
		t.Helper()
		var head bytes.Buffer
		e := hpack.NewEncoder(&head)
		for _, h := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "key.example"}, {":path", "/small"}} {
			e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
		}
		if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: head.Bytes(), EndHeaders: true, EndStream: true}); err != nil {
			t.Fatal(err)
		}
		for {
			fr, err := f.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			if fr.Header().Type == http2.FrameHeaders {
				return
			}
		}
	}
	// take opens the window and returns how much came.
	take := func(id uint32) (n int) {
		t.Helper()
		f.WriteWindowUpdate(id, 1<<20)
		for {
			fr, err := f.ReadFrame()
			if err != nil {
				return n
			}
			switch fr := fr.(type) {
			case *http2.DataFrame:
				n += len(fr.Data())
				if fr.StreamEnded() {
					return n
				}
			case *http2.RSTStreamFrame:
				return n
			}
		}
	}
	ask(1)
	if n := take(1); n != length {
		t.Fatalf("%d bytes came while the phase was open", n)
	}
	ask(3)
	b.SetPhase(plan.Runtime)
	if n := take(3); n != 0 {
		t.Errorf("%d bytes of the answer came after the phase was closed", n)
	}
}

// TestWhatIsHeldBackOfAnAnswerDoesNotComeLater is the same of HTTP/1: one answer after
// another is asked for and none is read, until one does not fit. A part of it waits to
// be written when its request has been served.
func TestWhatIsHeldBackOfAnAnswerDoesNotComeLater(t *testing.T) {
	g := newGuest(t)
	var served atomic.Int64
	at := serve(t, "tcp4", func(c net.Conn) {
		r := bufio.NewReader(c)
		for {
			q, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			n := 2000 // less than what is written at once
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", n, strings.Repeat("\x01", n))
			q.Body.Close()
			served.Add(1)
		}
	})
	b := start(t, g, control.Config{Policy: onlySmall(t, "/small/**"), Leaf: noLeaf, Routes: []plan.Route{route("small.example", at)}})
	c, err := g.dialName("ip4", "small.example", 80)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go func() {
		for {
			if _, err := fmt.Fprintf(c, "GET /small/x HTTP/1.1\r\nHost: small.example\r\n\r\n"); err != nil {
				return
			}
		}
	}()
	for was := int64(0); was == 0 || was != served.Load(); time.Sleep(300 * time.Millisecond) {
		was = served.Load()
	}
	ours := ofPeer(t, c.LocalAddr().(*net.TCPAddr).AddrPort())
	b.SetPolicy(onlySmall(t, "/other/**"))
	fits := given(t, ours) // and came before, or may
	ours.Close()
	var late, came uint64
	chunk := make([]byte, 64<<10)
	for c.SetReadDeadline(time.Now().Add(10 * time.Second)); came < fits+1<<20; {
		n, err := c.Read(chunk)
		for _, x := range chunk[:n] {
			if came++; came > fits && x == 1 {
				late++
			}
		}
		if err != nil {
			t.Logf("%d answers, %d bytes of %d, then %v", served.Load(), came, fits, err)
			break
		}
	}
	if late != 0 || came == 0 {
		t.Errorf("%d bytes of an answer came after it was not allowed any more", late)
	}
}

// TestWhatIsHeldBackOfAnAnswerIsDropped has a host that goes on with its answer as soon
// as the request for it is not allowed any more: whoever carries it notices, gives up and
// writes what it had kept so far.
func TestWhatIsHeldBackOfAnAnswerIsDropped(t *testing.T) {
	g := newGuest(t)
	said, goOn := make(chan struct{}), make(chan struct{})
	at := serve(t, "tcp4", func(c net.Conn) {
		q, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		q.Body.Close()
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n%s", strings.Repeat("\x01", 1000))
		said <- struct{}{}
		<-goOn
		c.Write([]byte{1})
		io.Copy(io.Discard, c)
	})
	b := start(t, g, control.Config{Policy: onlySmall(t, "/small/**"), Leaf: noLeaf, Routes: []plan.Route{route("small.example", at)}})
	for range 20 {
		c, err := g.dialName("ip4", "small.example", 80)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "GET /small/x HTTP/1.1\r\nHost: small.example\r\n\r\n")
		<-said
		time.Sleep(5 * time.Millisecond) // it is held back; else it has come, and the host says more in vain
		ours := ofPeer(t, c.LocalAddr().(*net.TCPAddr).AddrPort())
		b.SetPolicy(onlySmall(t, "/other/**"))
		fits := given(t, ours)
		ours.Close()
		goOn <- struct{}{}
		c.SetReadDeadline(time.Now().Add(10 * time.Second))
		n, err := io.Copy(io.Discard, c)
		if n > max(int64(fits), 0) || err == nil {
			t.Fatalf("%d bytes of an answer came, %d of them before it was not allowed any more; then %v", n, fits, err)
		}
		c.Close()
		b.SetPolicy(onlySmall(t, "/small/**"))
	}
}

// onlySmall is a policy that allows requests for path at small.example.
func onlySmall(t *testing.T, path string) *egress.Policy {
	t.Helper()
	p, err := egress.New([]plan.EgressRule{{Phase: plan.Runtime, Pattern: "small.example", Allow: true, Methods: []string{"GET"}, Paths: []string{path}, Source: "kit k"}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// ofPeer returns another descriptor of the socket of this process whose other end is
// peer.
func ofPeer(t *testing.T, peer netip.AddrPort) net.Conn {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range fds {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		sa, err := unix.Getpeername(fd)
		if err != nil {
			continue
		}
		var a netip.AddrPort
		switch sa := sa.(type) {
		case *unix.SockaddrInet4:
			a = netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
		case *unix.SockaddrInet6:
			a = netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))
		}
		if a != peer {
			continue
		}
		if fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), "peer")
		defer f.Close()
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	t.Fatalf("nobody is connected to %s", peer)
	return nil
}
