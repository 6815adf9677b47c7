package proxy

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pair returns two ends of a TCP connection.
func pair(t *testing.T) (a, b *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); s.Close() })
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

// TestWhatIsStoppedMovesNoByte has a side on which a write waits for its reader, one
// on which a read waits, and whoever holds them trying on.
func TestWhatIsStoppedMovesNoByte(t *testing.T) {
	client, sandbox := pair(t)
	up, host := pair(t)
	f := &flow{client: client, cancel: func() {}, ended: make(chan struct{}), looked: true}
	ours, theirs := &gated{client, f}, &gated{f.attach(up, route{}), f}
	if _, err := theirs.Write([]byte("before")); err != nil {
		t.Fatal(err)
	}
	wrote, read := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := ours.Write(make([]byte, 64<<20))
		wrote <- err
	}()
	go func() {
		_, err := theirs.Read(make([]byte, 10))
		read <- err
	}()
	for f.gate.idle() {
		time.Sleep(time.Millisecond)
	}
	if !f.stop(nil) || f.stop(nil) {
		t.Error("stop")
	}
	if !f.rest(time.After(5 * time.Second)) {
		t.Error("a write that waited for its reader holds up the end")
	}
	if err := <-wrote; err == nil {
		t.Error("it was written")
	}
	host.Write([]byte("after"))
	if err := <-read; !errors.Is(err, net.ErrClosed) {
		t.Errorf("what arrived since was read: %v", err)
	}
	for what, err := range map[string]error{"write": second(ours.Write([]byte("x"))), "read": second(theirs.Read(make([]byte, 1))), "half a close": ours.CloseWrite(),
		"a deadline": ours.SetDeadline(time.Time{}), "a read deadline": theirs.SetReadDeadline(time.Time{}), "a write deadline": theirs.SetWriteDeadline(time.Time{})} {
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// To close one side resets both.
	if err := theirs.Close(); err != nil {
		t.Error(err)
	}
	if b, err := io.ReadAll(host); string(b) != "before" || !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the host got %q, %v", b, err)
	}
	if _, err := io.Copy(io.Discard, sandbox); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the sandbox got %v", err)
	}
}

func second(_ int, err error) error { return err }
