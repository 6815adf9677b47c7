package proxy

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
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
// on which a read waits, and whoever holds them trying on. Sides that are more than a
// socket are written to within the gate.
func TestWhatIsStoppedMovesNoByte(t *testing.T) {
	for _, bare := range []bool{true, false} {
		client, sandbox := pair(t)
		up, host := pair(t)
		f := &flow{client: client, cancel: func() {}, ended: make(chan struct{})}
		of := func(c net.Conn) *side {
			if bare {
				return f.side(c)
			}
			return f.side(struct{ net.Conn }{c})
		}
		ours, theirs := of(client), of(f.attach(up, route{}))
		if (ours.raw != nil) != bare {
			t.Fatal("what is a socket?")
		}
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
		for queued(t, client) == 0 || !bare && f.gate.idle() {
			time.Sleep(time.Millisecond)
		}
		first, _ := f.stop()
		again, _ := f.stop()
		if !first || again {
			t.Error("stop")
		}
		if !f.rest(time.After(5 * time.Second)) {
			t.Error("a write that waited for its reader holds up the end")
		}
		// What the kernel had taken arrives, and what it had not does not.
		sandbox.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		if n, err := io.Copy(io.Discard, sandbox); !errors.Is(err, os.ErrDeadlineExceeded) || n == 0 || n == 64<<20 {
			t.Errorf("the sandbox read %d bytes, and %v", n, err)
		}
		sandbox.SetReadDeadline(time.Time{})
		if err := <-wrote; err == nil {
			t.Error("it was written")
		}
		host.Write([]byte("after"))
		if err := <-read; !errors.Is(err, net.ErrClosed) {
			t.Errorf("what arrived since was read: %v", err)
		}
		for what, err := range map[string]error{"write": second(ours.Write([]byte("x"))), "read": second(theirs.Read(make([]byte, 1))),
			"a deadline": ours.SetDeadline(time.Time{}), "a read deadline": theirs.SetReadDeadline(time.Time{}), "a write deadline": theirs.SetWriteDeadline(time.Time{})} {
			if !errors.Is(err, net.ErrClosed) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if err := ours.CloseWrite(); bare && !errors.Is(err, net.ErrClosed) || err == nil {
			t.Errorf("half a close: %v", err)
		}
		// To close one side tells nobody before it is time to.
		if err := theirs.Close(); err != nil || f.end() {
			t.Error(err)
		}
		queued(t, client) // it is open
		f.tell()
		if b, err := io.ReadAll(host); string(b) != "before" || !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("the host got %q, %v", b, err)
		}
		if _, err := io.Copy(io.Discard, sandbox); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("the sandbox got %v", err)
		}
	}
}

func second(_ int, err error) error { return err }

// queued returns how many bytes of c the kernel has not delivered.
func queued(t *testing.T, c *net.TCPConn) (n int) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestSplice moves bytes both ways between sockets of several kinds, on few
// descriptors and on none for pipes, past readers that are slow, and to both ends.
func TestSplice(t *testing.T) {
	local := func(t *testing.T) (a, b net.Conn) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		var cs [2]net.Conn
		for i, fd := range fds {
			file := os.NewFile(uintptr(fd), "socketpair")
			if cs[i], err = net.FileConn(file); err != nil {
				t.Fatal(err)
			}
			file.Close()
			t.Cleanup(func() { cs[i].Close() })
		}
		return cs[0], cs[1]
	}
	for name, tt := range map[string]struct {
		up      func(t *testing.T) (a, b net.Conn)
		starved bool
		spliced bool
	}{
		"tcp":                {up: func(t *testing.T) (net.Conn, net.Conn) { return pair(t) }, spliced: true},
		"a local socket":     {up: local, spliced: true},
		"more than a socket": {up: func(t *testing.T) (net.Conn, net.Conn) { a, b := pair(t); return half{a}, b }},
		"without pipes":      {up: func(t *testing.T) (net.Conn, net.Conn) { return pair(t) }, starved: true},
	} {
		t.Run(name, func(t *testing.T) {
			client, sandbox := pair(t)
			up, host := tt.up(t)
			f := &flow{client: client, cancel: func() {}, ended: make(chan struct{})}
			p := &Proxy{}
			if tt.starved {
				starve(t)
			}
			f.attach(up, route{})
			done := make(chan struct{})
			go func() { defer close(done); p.relay(f, up, audit.Decision{}, false) }()
			sent := make([]byte, 3<<20+7)
			for i := range sent {
				sent[i] = byte(i * i >> 3)
			}
			for _, way := range [][2]net.Conn{{sandbox, host}, {host, sandbox}} {
				for _, size := range []int{1, 1000, len(sent)} {
					go way[0].Write(sent[:size])
					if size > 1000 {
						time.Sleep(50 * time.Millisecond) // until nothing fits any more
					}
					got := make([]byte, size)
					if _, err := io.ReadFull(way[1], got); err != nil || !bytes.Equal(got, sent[:size]) {
						t.Fatalf("%d bytes: %v, or other ones", size, err)
					}
				}
			}
			// Half a close is passed on, and the other half goes on.
			sandbox.CloseWrite()
			if n, err := io.Copy(io.Discard, host); n != 0 || err != nil {
				t.Errorf("the host read %d, %v", n, err)
			}
			go func() { host.Write(sent[:5]); host.Close() }()
			if got, err := io.ReadAll(sandbox); !bytes.Equal(got, sent[:5]) || err != nil {
				t.Errorf("the sandbox read %q, %v", got, err)
			}
			<-done
			if free := len(p.pipes.free); (free > 0) != tt.spliced {
				t.Errorf("%d pipes were used", free)
			}
			p.over()
			if p.pipes.free != nil {
				t.Error("pipes are left")
			}
		})
	}
}

// TestWhatIsStoppedWithinAPipeStaysThere has a sandbox that reads nothing, so that
// bytes are on their way in sockets and in a pipe.
func TestWhatIsStoppedWithinAPipeStaysThere(t *testing.T) {
	client, sandbox := pair(t)
	up, host := pair(t)
	f := &flow{client: client, cancel: func() {}, ended: make(chan struct{})}
	p := &Proxy{}
	f.attach(up, route{})
	done := make(chan struct{})
	go func() { defer close(done); p.relay(f, up, audit.Decision{}, false) }()
	wrote := make(chan struct{})
	go func() { defer close(wrote); host.Write(make([]byte, 256<<20)) }()
	for was := 0; was == 0 || was != queued(t, host); time.Sleep(50 * time.Millisecond) {
		was = queued(t, host)
	}
	if first, _ := f.stop(); !first || !f.rest(time.After(5*time.Second)) {
		t.Fatal("stop")
	}
	taken := queued(t, client)
	// Reading makes room, into which nothing comes.
	sandbox.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	n, err := io.Copy(io.Discard, sandbox)
	if !errors.Is(err, os.ErrDeadlineExceeded) || n == 0 || queued(t, client) != 0 {
		t.Errorf("the sandbox read %d bytes, and %v; %d of %d are left", n, err, queued(t, client), taken)
	}
	f.tell()
	<-done
	<-wrote
	sandbox.SetReadDeadline(time.Time{})
	if m, err := io.Copy(io.Discard, sandbox); m != 0 || !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("then %d bytes came, and %v", m, err)
	}
	for _, pp := range p.pipes.free {
		if n, err := unix.IoctlGetInt(pp.r, unix.TIOCINQ); n != 0 || err != nil {
			t.Errorf("a pipe was kept for another flow with %d bytes in it, %v", n, err)
		}
	}
	p.over()
}

// starve leaves the test no descriptor.
func starve(t *testing.T) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
}

// half is more than a socket, and its half can be closed.
type half struct{ net.Conn }

func (h half) CloseWrite() error { return h.Conn.(*net.TCPConn).CloseWrite() }

func TestARequestThatNothingEndsCannotBeRevoked(t *testing.T) {
	var p Proof
	p.Revoke()
	if p.Revoked() || !p.Hold("svc") {
		t.Error("it is revoked")
	}
	q := NewProof(nil)
	q.Revoke()
	q.Revoke()
	if !q.Revoked() {
		t.Error("it is not revoked")
	}
}
