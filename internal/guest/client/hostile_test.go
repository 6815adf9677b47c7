package client_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/guest/client"
	"github.com/kitbox-dev/kitbox/internal/guest/protocol"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// hostile is a client whose guest does as it likes with each connection, once
// the request is in.
func hostile(t *testing.T, guest func(c *protocol.Conn)) *client.Client {
	t.Helper()
	return &client.Client{Dial: func(context.Context) (net.Conn, error) {
		p, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		var cs [2]net.Conn
		for i, fd := range p {
			f := os.NewFile(uintptr(fd), "pair")
			cs[i], err = net.FileConn(f)
			f.Close()
			if err != nil {
				return nil, err
			}
		}
		go func() {
			c := protocol.NewConn(cs[1])
			defer c.Close()
			if _, err := c.Read(); err == nil {
				guest(c)
			}
		}()
		return cs[0], nil
	}}
}

func answer(c *protocol.Conn, a protocol.Answer, files ...*os.File) {
	a.Version = protocol.Version
	c.WriteMessage(protocol.KindAnswer, a, files...)
}

// short is long enough for an answer and not for a wait.
func short(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestABadAnswerIsAnErrorNotAWait(t *testing.T) {
	for name, guest := range map[string]func(c *protocol.Conn){
		"nothing":         func(c *protocol.Conn) {},
		"another version": func(c *protocol.Conn) { c.Write(protocol.KindAnswer, []byte(`{"version":2}`)) },
		"no version":      func(c *protocol.Conn) { c.Write(protocol.KindAnswer, []byte(`{}`)) },
		"no JSON":         func(c *protocol.Conn) { c.Write(protocol.KindAnswer, []byte("\xff\xff")) },
		"unknown field":   func(c *protocol.Conn) { c.Write(protocol.KindAnswer, []byte(`{"version":1,"x":1}`)) },
		"another frame":   func(c *protocol.Conn) { c.Write(protocol.KindOut, []byte("x")) },
		"raw bytes":       func(c *protocol.Conn) { c.Raw().Write(bytes.Repeat([]byte("x"), 1<<20)) },
		"empty answer":    func(c *protocol.Conn) { answer(c, protocol.Answer{}) },
	} {
		t.Run(name, func(t *testing.T) {
			cl := hostile(t, guest)
			if _, err := cl.Info(short(t)); err == nil || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Info: %v", err)
			}
			if _, err := cl.Stat(short(t), "/", false); err == nil || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Stat: %v", err)
			}
			if name == "empty answer" {
				return // Exec goes on, and is lost when the connection ends
			}
			if err := cl.WriteFile(short(t), client.File{Path: "/f"}, []byte("x")); err == nil || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("WriteFile: %v", err)
			}
			if _, err := cl.ReadFile(short(t), "/f", 10); err == nil || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("ReadFile: %v", err)
			}
			if _, err := cl.Exec(short(t), sh("true"), client.Stdio{}); err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, kiterr.ErrCannotExec) {
				t.Errorf("Exec: %v", err)
			}
			if _, err := cl.DialTCP(short(t), 1, false); err == nil || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("DialTCP: %v", err)
			}
		})
	}
}

// A command that the guest was asked for may have run, whatever becomes of the answer:
// nobody may take it for one that was not started.
func TestACommandWhoseStartWasNotAnsweredIsLost(t *testing.T) {
	for name, guest := range map[string]func(c *protocol.Conn){
		"the guest ends":   func(c *protocol.Conn) {},
		"half an answer":   func(c *protocol.Conn) { c.Raw().Write([]byte{byte(protocol.KindAnswer), 0}) },
		"no JSON":          func(c *protocol.Conn) { c.Write(protocol.KindAnswer, []byte("{")) },
		"another's answer": func(c *protocol.Conn) { c.Write(protocol.KindOut, []byte("x")) },
	} {
		_, err := hostile(t, guest).Exec(short(t), sh("true"), client.Stdio{})
		if !errors.Is(err, kiterr.ErrLost) || errors.Is(err, kiterr.ErrCannotExec) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Whoever gave up knows it.
	ctx, cancel := context.WithCancel(t.Context())
	cl := hostile(t, func(*protocol.Conn) { cancel(); <-t.Context().Done() })
	if _, err := cl.Exec(ctx, sh("true"), client.Stdio{}); !errors.Is(err, context.Canceled) || errors.Is(err, kiterr.ErrLost) {
		t.Errorf("cancelled: %v", err)
	}
}

// A guest that does not answer costs the caller what the caller allowed.
func TestASilentGuestIsBoundedByTheContext(t *testing.T) {
	end := make(chan struct{})
	defer close(end)
	cl := hostile(t, func(*protocol.Conn) { <-end })
	for name, f := range map[string]func(ctx context.Context) error{
		"Info": func(ctx context.Context) error { _, err := cl.Info(ctx); return err },
		"Exec": func(ctx context.Context) error {
			_, err := cl.Exec(ctx, sh("x"), client.Stdio{Stdin: endless{}})
			return err
		},
		"WriteFile": func(ctx context.Context) error {
			return cl.WriteFile(ctx, client.File{Path: "/f"}, make([]byte, 1<<20))
		},
		"ReadFile": func(ctx context.Context) error { _, err := cl.ReadFile(ctx, "/f", 1); return err },
		"DialTCP":  func(ctx context.Context) error { _, err := cl.DialTCP(ctx, 1, false); return err },
		"Shutdown": func(ctx context.Context) error { return cl.Shutdown(ctx, time.Hour) },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if err := f(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
}

func TestAFaultCannotDriveTheTerminal(t *testing.T) {
	cl := hostile(t, func(c *protocol.Conn) {
		answer(c, protocol.Answer{Fault: &protocol.Fault{Code: "x", Text: "\x1b]0;owned\x07\r\nfine\u009b2J" + strings.Repeat("y", 1<<20)}})
	})
	_, err := cl.Info(short(t))
	if err == nil || strings.ContainsAny(err.Error(), "\x1b\x07\r\n\u009b") || len(err.Error()) > 1000 || !strings.Contains(err.Error(), "fine") {
		t.Errorf("%.200q", err)
	}
}

func TestACommandsGuestMustKeepToTheRules(t *testing.T) {
	full := make([]byte, protocol.MaxData)
	for name, c := range map[string]struct {
		tty   bool
		guest func(c *protocol.Conn)
	}{
		"a status out of range":  {false, func(c *protocol.Conn) { c.WriteMessage(protocol.KindExit, protocol.Exit{Code: 256}) }},
		"a negative status":      {false, func(c *protocol.Conn) { c.WriteMessage(protocol.KindExit, protocol.Exit{Code: -1}) }},
		"a signal out of range":  {false, func(c *protocol.Conn) { c.WriteMessage(protocol.KindExit, protocol.Exit{Signal: 65}) }},
		"no status":              {false, func(c *protocol.Conn) {}},
		"a second answer":        {false, func(c *protocol.Conn) { answer(c, protocol.Answer{}) }},
		"stderr of a terminal":   {true, func(c *protocol.Conn) { c.Write(protocol.KindErr, []byte("x")) }},
		"stdin the wrong way":    {false, func(c *protocol.Conn) { c.Write(protocol.KindIn, []byte("x")) }},
		"credit for nothing":     {false, func(c *protocol.Conn) { c.WriteCredit(protocol.KindIn, 1) }},
		"credit beyond a window": {false, func(c *protocol.Conn) { c.WriteCredit(protocol.KindIn, 1<<31-1) }},
		"data after the end":     {false, func(c *protocol.Conn) { c.Write(protocol.KindOut, nil); c.Write(protocol.KindOut, []byte("x")) }},
		"data without credit": {false, func(c *protocol.Conn) {
			for range 100 {
				if c.Write(protocol.KindErr, full) != nil {
					return
				}
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			release := make(chan struct{})
			cl := hostile(t, func(pc *protocol.Conn) {
				answer(pc, protocol.Answer{PID: 2})
				c.guest(pc)
			})
			r := sh("x")
			r.TTY = c.tty
			time.AfterFunc(time.Second, func() { close(release) })
			// stderr's consumer sleeps, so data has nowhere to go.
			_, err := cl.Exec(short(t), r, client.Stdio{Stdout: &bytes.Buffer{}, Stderr: blocked{release}, Copy: true})
			if err == nil || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// An exit without the ends of the streams must not be waited on for ever.
func TestAnExitEndsTheStreams(t *testing.T) {
	cl := hostile(t, func(c *protocol.Conn) {
		answer(c, protocol.Answer{PID: 2})
		c.Write(protocol.KindOut, []byte("all of it"))
		c.WriteMessage(protocol.KindExit, protocol.Exit{Code: 3})
	})
	var out bytes.Buffer
	exit, err := cl.Exec(short(t), sh("x"), client.Stdio{Stdout: &out, Copy: true})
	if err != nil || exit.Code != 3 || out.String() != "all of it" {
		t.Errorf("%+v, %v, %q", exit, err, out.String())
	}
}

func TestAFileLargerThanAskedIsRefused(t *testing.T) {
	cl := hostile(t, func(c *protocol.Conn) {
		answer(c, protocol.Answer{Stat: &protocol.FileInfo{Size: 1}})
		for c.Write(protocol.KindOut, make([]byte, 1000)) == nil {
		}
	})
	if b, err := cl.ReadFile(short(t), "/f", 5000); !errors.Is(err, protocol.ErrProtocol) || b != nil {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

// A guest could pass anything that it has open as the connection.
func TestAPassedDescriptorMustBeATCPConnection(t *testing.T) {
	ln, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	listener, err := ln.File()
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	udp, err := net.DialUDP("udp", nil, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9})
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	datagram, err := udp.File()
	if err != nil {
		t.Fatal(err)
	}
	defer datagram.Close()
	zero, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer zero.Close()
	r, w := pipe(t)
	for name, files := range map[string][]*os.File{
		"none": nil, "a device": {zero}, "a pipe": {r}, "a listener": {listener}, "a UDP socket": {datagram}, "two": {w, w},
	} {
		sent := make(chan struct{})
		cl := hostile(t, func(c *protocol.Conn) {
			answer(c, protocol.Answer{Passed: true}, files...)
			close(sent)
		})
		if _, err := cl.DialTCP(short(t), 1, false); !errors.Is(err, protocol.ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
		<-sent // before the files are closed
	}
}

// A machine's root can take its guest's descriptors away, and the guest then
// never answers.
func TestAGuestThatNeverStartsACommandIsGivenUp(t *testing.T) {
	defer client.SetAnswerTime(50 * time.Millisecond)()
	stuck := make(chan struct{})
	defer close(stuck)
	cl := hostile(t, func(*protocol.Conn) { <-stuck })
	_, err := cl.Exec(short(t), client.ExecRequest{Argv: []string{"x"}}, client.Stdio{})
	if err == nil || !strings.Contains(err.Error(), "stop and start") {
		t.Errorf("%v", err)
	}
	// One that has answered may take as long as its command does.
	cl = hostile(t, func(c *protocol.Conn) {
		answer(c, protocol.Answer{PID: 7})
		time.Sleep(150 * time.Millisecond)
		c.WriteMessage(protocol.KindExit, protocol.Exit{Code: 3})
	})
	if exit, err := cl.Exec(short(t), client.ExecRequest{Argv: []string{"x"}}, client.Stdio{}); err != nil || exit.Code != 3 {
		t.Errorf("%+v, %v", exit, err)
	}
}

// A machine that ends takes its guest's end of a connection with it, at whatever
// instant; whoever waited is told in words and not by the name of a socket.
func TestAGuestThatHangsUpIsSaidInWords(t *testing.T) {
	reset := func(c *protocol.Conn) { // with bytes unread, upon which the kernel resets the connection
		for {
			if n, err := unread(c.Raw()); err != nil || n > 0 {
				return
			}
		}
	}
	started := func(c *protocol.Conn) { answer(c, protocol.Answer{PID: 2}) }
	for name, c := range map[string]struct {
		guest func(c *protocol.Conn)
		s     client.Stdio
	}{
		"before its answer": {func(*protocol.Conn) {}, client.Stdio{}},
		"while it runs":     {started, client.Stdio{}},
		"while input comes": {func(c *protocol.Conn) { started(c); reset(c) }, client.Stdio{Stdin: strings.NewReader("x"), Copy: true}},
	} {
		_, err := hostile(t, c.guest).Exec(short(t), sh("true"), c.s)
		if err == nil || !strings.Contains(err.Error(), "the guest hung up") || strings.Contains(err.Error(), "unix") || strings.Contains(err.Error(), "EOF") {
			t.Errorf("%s: %v", name, err)
		}
	}
	// One that is gone before the request is written.
	gone := client.Client{Dial: func(context.Context) (net.Conn, error) {
		p, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		syscall.Close(p[1])
		f := os.NewFile(uintptr(p[0]), "pair")
		defer f.Close()
		return net.FileConn(f)
	}}
	if _, err := gone.Exec(short(t), sh("true"), client.Stdio{}); err == nil || err.Error() != "asking the guest: the guest hung up" || errors.Is(err, kiterr.ErrLost) {
		t.Errorf("gone: %v", err)
	}
}

// unread is how many bytes wait to be read from c.
func unread(c net.Conn) (n int, err error) {
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	cerr := raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	return n, errors.Join(err, cerr)
}

func TestSessionsOfAGuestThatLies(t *testing.T) {
	for name, c := range map[string]struct {
		guest func(c *protocol.Conn)
		told  int // -1: not at all
	}{
		"hangs up":    {func(c *protocol.Conn) {}, -1},
		"a debt":      {func(c *protocol.Conn) { answer(c, protocol.Answer{Sessions: -1}) }, -1},
		"a multitude": {func(c *protocol.Conn) { answer(c, protocol.Answer{Sessions: 1 << 30}) }, -1},
		"no end":      {func(c *protocol.Conn) { answer(c, protocol.Answer{Sessions: 1}) }, 1},
		"another frame": {func(c *protocol.Conn) {
			answer(c, protocol.Answer{Sessions: 1})
			c.Write(protocol.KindOut, []byte("x"))
		}, 1},
	} {
		told := -1
		err := hostile(t, c.guest).Sessions(short(t), func(n int) { told = n })
		if err == nil || errors.Is(err, context.DeadlineExceeded) || told != c.told {
			t.Errorf("%s: told %d, want %d: %v", name, told, c.told, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cl := hostile(t, func(c *protocol.Conn) { answer(c, protocol.Answer{Sessions: 1}); <-t.Context().Done() })
	if err := cl.Sessions(ctx, func(int) { cancel() }); !errors.Is(err, context.Canceled) {
		t.Errorf("for ever: %v", err)
	}
}
