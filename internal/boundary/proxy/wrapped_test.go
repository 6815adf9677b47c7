package proxy

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
)

// tunnel returns both ends of TLS as with a proxy of the host's network, and the socket
// of the far one.
func tunnel(t *testing.T) (near, far *tls.Conn, socket *net.TCPConn) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	a, b := pair(t)
	near = tls.Client(a, &tls.Config{InsecureSkipVerify: true})
	far = tls.Server(b, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, SessionTicketsDisabled: true})
	done := make(chan error, 1)
	go func() { done <- far.Handshake() }()
	if err := errors.Join(near.Handshake(), <-done); err != nil {
		t.Fatal(err)
	}
	return near, far, b
}

// primed has a part of its connection read already, as that to a proxy may have.
type primed struct{ net.Conn }

func (p primed) NetConn() net.Conn { return p.Conn }
func (p primed) CloseWrite() error { return p.Conn.(*net.TCPConn).CloseWrite() }

// TestWhatBreaksOffIsCutShortForProxiesToo breaks off in the midst of an upload, and of
// an answer, through what is more than a socket. Neither may look whole: TLS would say
// that it ends in order, and a socket that its half does.
func TestWhatBreaksOffIsCutShortForProxiesToo(t *testing.T) {
	for _, kind := range []string{"tls", "primed"} {
		for _, what := range []string{"the client", "a cut"} {
			t.Run(kind+" by "+what, func(t *testing.T) {
				client, sandbox := pair(t)
				var up, host net.Conn
				var socket *net.TCPConn
				if kind == "tls" {
					up, host, socket = tunnel(t)
				} else {
					var a *net.TCPConn
					a, socket = pair(t)
					up, host = primed{a}, socket
				}
				f := &flow{client: client, cancel: func() {}, ended: make(chan struct{})}
				p := &Proxy{}
				f.attach(up, route{})
				done := make(chan struct{})
				go func() { defer close(done); p.relay(f, up, audit.Decision{}, false) }()
				sandbox.Write([]byte("half of the bo"))
				if _, err := io.ReadFull(host, make([]byte, 14)); err != nil {
					t.Fatal(err)
				}
				if what == "a cut" {
					f.stop()
					f.tell()
				} else {
					sandbox.SetLinger(0)
					sandbox.Close()
				}
				socket.SetReadDeadline(time.Now().Add(10 * time.Second))
				// Below TLS: whatever that says is an order of its end.
				if n, err := io.Copy(io.Discard, socket); n != 0 || !errors.Is(err, unix.ECONNRESET) {
					t.Errorf("the host got %d bytes more, and %v; want a reset", n, err)
				}
				<-done
				p.over()
			})
		}
	}
}

// clog fills what c can hold of what its other end does not read, to the last byte.
func clog(t *testing.T, c *net.TCPConn) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{64 << 10, 100, 1} {
		b := make([]byte, size)
		for full := 0; full < 3; time.Sleep(10 * time.Millisecond) {
			full++
			err := raw.Write(func(fd uintptr) bool {
				for n, err := 0, error(nil); err == nil; n, err = unix.Write(int(fd), b) {
					if n > 0 {
						full = 0
					}
				}
				return true
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestAProxyThatReadsNothingHoldsUpNobody ends flows whose proxy, spoken to by TLS,
// takes no byte. TLS would wait five seconds for each to say goodbye.
func TestAProxyThatReadsNothingHoldsUpNobody(t *testing.T) {
	client, _ := pair(t)
	up, _, _ := tunnel(t)
	f := &flow{client: client, cancel: func() {}, ended: make(chan struct{})}
	f.attach(up, route{})
	clog(t, up.NetConn().(*net.TCPConn))
	if first, _ := f.stop(); !first || !f.rest(time.After(5*time.Second)) {
		t.Fatal("stop")
	}
	ended := make(chan struct{})
	go func() { f.tell(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(2 * time.Second):
		t.Error("it waits for the proxy")
		<-ended
	}
}

// TestHalfACloseThatAProxyDoesNotTakeIsGivenUp cuts a flow half of which is being closed
// while its proxy takes no byte: TLS has a deadline of its own for that.
func TestHalfACloseThatAProxyDoesNotTakeIsGivenUp(t *testing.T) {
	client, _ := pair(t)
	up, _, _ := tunnel(t)
	f := &flow{client: client, cancel: func() {}, ended: make(chan struct{})}
	s := f.side(f.attach(up, route{}))
	clog(t, up.NetConn().(*net.TCPConn))
	done := make(chan error, 1)
	go func() { done <- s.CloseWrite() }()
	for f.gate.idle() {
		time.Sleep(time.Millisecond)
	}
	f.stop()
	if !f.rest(time.After(time.Second)) {
		t.Error("it waits for the proxy")
	}
	f.tell()
	if err := <-done; err == nil {
		t.Error("it was closed")
	}
}
