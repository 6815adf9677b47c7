package control_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/control"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// given returns how many bytes the kernel has been given to send on c.
func given(t *testing.T, c net.Conn) (n uint64) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		left, err2 := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		n = info.Bytes_acked - 1 + uint64(left) // the first is no byte
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestWhatWaitsToBeSentOfARequestIsNotSentLater closes the phase of a credential while
// its host takes nothing off the connection, so that a part of a request waits there:
// of a body, and of another request's head. The host is allowed in both phases, and
// reads on afterwards.
func TestWhatWaitsToBeSentOfARequestIsNotSentLater(t *testing.T) {
	g := newGuest(t)
	certificate, roots := certificate(t, "key.example")
	hosts, dialled := make(chan struct{}, 4), make(chan net.Conn, 4)
	read, got := make(chan struct{}), make(chan uint64, 4)
	at := serve(t, "tcp4", func(c net.Conn) {
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2"}})
		if _, err := io.ReadFull(s, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		f := http2.NewFramer(s, s)
		f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1}, http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 20})
		f.WriteSettingsAck()
		f.WriteWindowUpdate(0, 1<<31-1-65535)
		for {
			if fr, err := f.ReadFrame(); err != nil || fr.Header().Type == http2.FrameData {
				break
			}
		}
		hosts <- struct{}{}
		<-read
		// Until there is an end, or what is left would have come.
		c.SetReadDeadline(time.Now().Add(time.Second))
		io.Copy(io.Discard, c)
		got <- received(t, c)
	})
	authority := openAuthority(t)
	i := &inspected{t: t, g: g, authority: authority, trusted: roots.Clone()}
	i.trusted.AppendCertsFromPEM([]byte(authority.PEM()))
	log := newDecisions()
	b := start(t, g, control.Config{Phase: plan.Install, Log: log.log, Policy: policy(t, "install allow key.example", "runtime allow key.example"),
		Leaf: authority.Leaf, Roots: roots, Presenter: new(setter), Routes: []plan.Route{route("key.example", at)},
		Dial: func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			var d net.Dialer
			c, err := d.DialContext(ctx, "tcp", to.String())
			dialled <- c
			return c, err
		}})
	c := i.client(true)
	body, more := io.Pipe()
	go func() {
		for chunk := make([]byte, 64<<10); ; {
			if _, err := more.Write(chunk); err != nil {
				return
			}
		}
	}()
	posted := make(chan error, 2)
	ask := func(method, path string, body io.Reader) {
		req, err := http.NewRequestWithContext(t.Context(), method, "https://key.example"+path, body)
		if err != nil {
			t.Error(err)
		}
		r, err := c.Do(req)
		if err == nil {
			r.Body.Close()
		}
		posted <- err
	}
	go ask("POST", "/upload", body)
	up := <-dialled
	<-hosts
	for was := uint64(0); was == 0 || was != given(t, up); time.Sleep(200 * time.Millisecond) {
		was = given(t, up)
	}
	go ask("GET", "/behind", nil)
	log.wait(t, "the second request", func(d audit.Decision) bool { return d.Kind == audit.Request && d.Path == "/behind" })
	sent := given(t, up)
	b.SetPhase(plan.Runtime)
	close(read)
	if n := <-got; n > sent+1 || n == 0 { // the kernel counts an end too
		t.Errorf("the host got %d bytes, of %d that were on their way when the phase was closed", n, sent)
	}
	for range 2 {
		<-posted
	}
	more.Close()
}

// received returns how many bytes have arrived on c.
func received(t *testing.T, c net.Conn) (n uint64) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			t.Fatal(err)
		}
		n = info.Bytes_received
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}
