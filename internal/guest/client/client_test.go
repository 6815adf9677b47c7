package client_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/guest/agent"
	"github.com/kitbox-dev/kitbox/internal/guest/client"
	"github.com/kitbox-dev/kitbox/internal/guest/protocol"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// served is the address of an agent that runs in this process. There is one
// for all tests: an agent takes over the reaping of a process's children.
var served string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "client")
	if err != nil {
		panic(err)
	}
	served = filepath.Join(dir, "s")
	ln, err := net.Listen("unix", served)
	if err != nil {
		panic(err)
	}
	go (&agent.Agent{Grace: 300 * time.Millisecond}).Serve(ln)
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// plainConn hides that a connection is a unix socket, as vsock would be.
type plainConn struct{ net.Conn }

// clients are the two ways to reach the agent. What a caller sees must not
// depend on which it is.
func clients() map[string]*client.Client {
	dial := func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", served)
	}
	return map[string]*client.Client{
		"unix": {Dial: dial},
		"plain": {Dial: func(ctx context.Context) (net.Conn, error) {
			c, err := dial(ctx)
			if err != nil {
				return nil, err
			}
			return plainConn{c}, nil
		}},
	}
}

func both(t *testing.T, f func(t *testing.T, cl *client.Client)) {
	if os.Getuid() != 0 {
		t.Skip("an agent runs as root")
	}
	for name, cl := range clients() {
		t.Run(name, func(t *testing.T) { f(t, cl) })
	}
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

var env = []string{"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}

func sh(script string) client.ExecRequest {
	return client.ExecRequest{Argv: []string{"sh", "-c", script}, Env: env}
}

func TestExecReportsHowACommandEnded(t *testing.T) {
	both(t, func(t *testing.T, cl *client.Client) {
		for script, want := range map[string]protocol.Exit{
			"exit 0":        {},
			"exit 7":        {Code: 7},
			"exit 255":      {Code: 255},
			"kill -9 $$":    {Code: 137, Signal: 9},
			"kill -TERM $$": {Code: 143, Signal: 15},
		} {
			got, err := cl.Exec(within(t), sh(script), client.Stdio{})
			if err != nil || got != want {
				t.Errorf("%s: got %+v, %v; want %+v", script, got, err, want)
			}
		}
	})
}

func TestACommandThatCannotStartIsNoExit(t *testing.T) {
	both(t, func(t *testing.T, cl *client.Client) {
		dir := t.TempDir()
		plain := filepath.Join(dir, "plain")
		os.WriteFile(plain, []byte("#!/bin/sh\n"), 0o644)
		foreign := filepath.Join(dir, "foreign")
		os.WriteFile(foreign, []byte("\x7fELFnot a program"), 0o755)
		for name, r := range map[string]client.ExecRequest{
			"no argv":            {Env: env},
			"unknown name":       {Argv: []string{"no-such-command"}, Env: env},
			"unknown path":       {Argv: []string{"/no/such"}, Env: env},
			"not executable":     {Argv: []string{plain}, Env: env},
			"not a program":      {Argv: []string{foreign}, Env: env},
			"missing directory":  {Argv: []string{"true"}, Env: env, Dir: "/no/such"},
			"relative directory": {Argv: []string{"true"}, Env: env, Dir: "tmp"},
			"nul in argv":        {Argv: []string{"echo", "a\x00b"}, Env: env},
		} {
			_, err := cl.Exec(within(t), r, client.Stdio{})
			if !errors.Is(err, kiterr.ErrCannotExec) {
				t.Errorf("%s: got %v", name, err)
			}
		}
	})
}

func TestStreamsAreByteExact(t *testing.T) {
	both(t, func(t *testing.T, cl *client.Client) {
		in := make([]byte, 3_000_001)
		rand.Read(in)
		var out, errs bytes.Buffer
		exit, err := cl.Exec(within(t), sh("tee /dev/stderr"), client.Stdio{Stdin: bytes.NewReader(in), Stdout: &out, Stderr: &errs})
		if err != nil || exit.Code != 0 {
			t.Fatal(exit, err)
		}
		if !bytes.Equal(out.Bytes(), in) || !bytes.Equal(errs.Bytes(), in) {
			t.Errorf("%d bytes became %d on stdout and %d on stderr", len(in), out.Len(), errs.Len())
		}
	})
}

// The same through pipes, which the command gets itself when it can.
func TestPipesAreByteExact(t *testing.T) {
	both(t, func(t *testing.T, cl *client.Client) {
		in := make([]byte, 1_000_003)
		rand.Read(in)
		inR, inW := pipe(t)
		outR, outW := pipe(t)
		go func() { inW.Write(in); inW.Close() }()
		got := make(chan []byte)
		go func() { b, _ := io.ReadAll(outR); got <- b }()
		exit, err := cl.Exec(within(t), sh("cat"), client.Stdio{Stdin: inR, Stdout: outW})
		outW.Close()
		if err != nil || exit.Code != 0 {
			t.Fatal(exit, err)
		}
		if b := <-got; !bytes.Equal(b, in) {
			t.Errorf("%d bytes became %d", len(in), len(b))
		}
	})
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

// A file stays the host's: a process of the machine that keeps its descriptor
// could write to it for ever, and open it anew with other rights.
func TestOnlyPipesArePassed(t *testing.T) {
	cl := clients()["unix"]
	both(t, func(t *testing.T, _ *client.Client) {
		f, err := os.Create(filepath.Join(t.TempDir(), "f"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := cl.Exec(within(t), sh("readlink /proc/self/fd/1"), client.Stdio{Stdout: f}); err != nil {
			t.Fatal(err)
		}
		b, _ := os.ReadFile(f.Name())
		if !strings.HasPrefix(string(b), "pipe:") {
			t.Errorf("stdout of the command is %q", b)
		}
	})
}

// The flags of a descriptor belong to all copies of it, those of the host's
// other programs as well.
func TestACommandCannotChangeTheHostsDescriptors(t *testing.T) {
	both(t, func(t *testing.T, cl *client.Client) {
		inR, inW := pipe(t)
		outR, outW := pipe(t)
		inW.Close()
		script := `perl -e 'use Fcntl; for my $f (*STDIN, *STDOUT) { fcntl($f, F_SETFL, fcntl($f, F_GETFL, 0) | O_NONBLOCK | O_ASYNC) or die }; print "set"'`
		exit, err := cl.Exec(within(t), sh(script), client.Stdio{Stdin: inR, Stdout: outW})
		if err != nil || exit.Code != 0 {
			t.Fatal(exit, err)
		}
		for name, f := range map[string]*os.File{"stdin": inR, "stdout": outW} {
			flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
			if err != nil {
				t.Fatal(err)
			}
			if flags&(unix.O_NONBLOCK|unix.O_ASYNC) != 0 {
				t.Errorf("the command changed the flags of our %s: %#x", name, flags)
			}
		}
		outW.Close()
		if b, err := io.ReadAll(outR); err != nil || string(b) != "set" {
			t.Errorf("%q, %v", b, err)
		}
	})
}

func TestStdinEndsWhenItEnds(t *testing.T) {
	both(t, func(t *testing.T, cl *client.Client) {
		var out bytes.Buffer
		for name, in := range map[string]io.Reader{"empty": strings.NewReader(""), "none": nil} {
			out.Reset()
			exit, err := cl.Exec(within(t), sh("wc -c"), client.Stdio{Stdin: in, Stdout: &out})
			if err != nil || exit.Code != 0 || strings.TrimSpace(out.String()) != "0" {
				t.Errorf("%s: %+v, %v, %q", name, exit, err, out.String())
			}
		}
	})
}

// One writer for both streams is common, and must not be written to twice at
// a time; with -race this test sees it.
func TestOneWriterMayTakeBothStreams(t *testing.T) {
	both(t, func(t *testing.T, cl *client.Client) {
		var out bytes.Buffer
		exit, err := cl.Exec(within(t), sh("for i in $(seq 200); do echo out; echo err >&2; done"), client.Stdio{Stdout: &out, Stderr: &out})
		if err != nil || exit.Code != 0 || strings.Count(out.String(), "out\n") != 200 || strings.Count(out.String(), "err\n") != 200 {
			t.Errorf("%+v, %v, %d bytes", exit, err, out.Len())
		}
	})
}

// endless never ends and never blocks.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestACommandThatDoesNotReadStdinStillHearsSignals(t *testing.T) {
	both(t, func(t *testing.T, cl *client.Client) {
		signals := make(chan syscall.Signal, 1)
		out := &trigger{want: "ready", f: func() { signals <- syscall.SIGUSR1 }}
		exit, err := cl.Exec(within(t), sh(`trap 'exit 9' USR1; echo ready; while :; do sleep 0.01; done`),
			client.Stdio{Stdin: endless{}, Stdout: out, Signals: signals})
		if err != nil || exit.Code != 9 {
			t.Errorf("got %+v, %v", exit, err)
		}
	})
}

// trigger calls f once want has been written.
type trigger struct {
	want string
	f    func()
	b    bytes.Buffer
}

func (w *trigger) Write(p []byte) (int, error) {
	w.b.Write(p)
	if w.f != nil && strings.Contains(w.b.String(), w.want) {
		w.f()
		w.f = nil
	}
	return len(p), nil
}

// A consumer that takes stderr only must get it although stdout is full.
func TestStreamsDoNotWaitForEachOther(t *testing.T) {
	both(t, func(t *testing.T, cl *client.Client) {
		release := make(chan struct{})
		errs := &trigger{want: "done", f: func() { close(release) }}
		exit, err := cl.Exec(within(t), sh("head -c 2000000 /dev/zero & sleep 0.1; echo done >&2; wait"),
			client.Stdio{Stdout: blocked{release}, Stderr: errs})
		if err != nil || exit.Code != 0 {
			t.Errorf("got %+v, %v", exit, err)
		}
	})
}

type blocked struct{ until chan struct{} }

func (b blocked) Write(p []byte) (int, error) { <-b.until; return len(p), nil }

// What the command itself wrote arrives, and a child that keeps its stdout
// open keeps nobody waiting.
func TestALeftOverChildDoesNotHoldTheExit(t *testing.T) {
	both(t, func(t *testing.T, cl *client.Client) {
		var out bytes.Buffer
		pid := 0
		start := time.Now()
		exit, err := cl.Exec(within(t), sh("sleep 60 & echo $!; head -c 60000 /dev/zero"), client.Stdio{Stdout: &out})
		if err != nil || exit.Code != 0 {
			t.Fatal(exit, err)
		}
		fmt.Sscan(out.String(), &pid)
		defer syscall.Kill(pid, syscall.SIGKILL)
		if d := time.Since(start); d > 20*time.Second {
			t.Errorf("took %v", d)
		}
		if _, after, _ := bytes.Cut(out.Bytes(), []byte("\n")); len(after) != 60000 {
			t.Errorf("%d bytes of 60000", len(after))
		}
		if syscall.Kill(pid, 0) != nil {
			t.Error("the child did not outlive its parent")
		}
	})
}

func TestATerminalHasItsSizeFromTheFirstByte(t *testing.T) {
	both(t, func(t *testing.T, cl *client.Client) {
		resize := make(chan protocol.Size, 1)
		out := &trigger{want: "ready", f: func() { resize <- protocol.Size{Rows: 44, Cols: 122} }}
		r := sh(`stty size; tty; trap 'stty size; exit 3' WINCH; echo ready; while :; do sleep 0.01; done`)
		r.TTY, r.Size = true, protocol.Size{Rows: 33, Cols: 111}
		exit, err := cl.Exec(within(t), r, client.Stdio{Stdout: out, Resize: resize})
		if err != nil || exit.Code != 3 {
			t.Fatalf("got %+v, %v, %q", exit, err, out.b.String())
		}
		lines := strings.Split(out.b.String(), "\r\n")
		if len(lines) < 4 || lines[0] != "33 111" || !strings.HasPrefix(lines[1], "/dev/pts/") || lines[3] != "44 122" {
			t.Errorf("got %q", lines)
		}
	})
}

func TestATerminalTakesInput(t *testing.T) {
	both(t, func(t *testing.T, cl *client.Client) {
		var out bytes.Buffer
		r := sh(`stty -echo; read x; echo "got $x"`)
		r.TTY = true
		in, w := io.Pipe()
		go func() { io.WriteString(w, "hello\n") }()
		defer in.Close()
		exit, err := cl.Exec(within(t), r, client.Stdio{Stdin: in, Stdout: &out})
		if err != nil || exit.Code != 0 || !strings.Contains(out.String(), "got hello\r\n") {
			t.Errorf("got %+v, %v, %q", exit, err, out.String())
		}
	})
}

func TestACommandRunsAsAsked(t *testing.T) {
	both(t, func(t *testing.T, cl *client.Client) {
		var out bytes.Buffer
		r := client.ExecRequest{
			Argv: []string{"/bin/sh", "-c", `echo $(id -u) $(id -g) $(id -G); pwd; umask; env | sort; cut -d" " -f5,6,8 /proc/$$/stat; echo $$`},
			Env:  []string{"PATH=/usr/bin:/bin", "A=b c", "E="}, Dir: "/usr", UID: 1234, GID: 2345, GIDs: []uint32{3456, 4567},
		}
		if _, err := cl.Exec(within(t), r, client.Stdio{Stdout: &out, Stderr: &out}); err != nil {
			t.Fatal(err)
		}
		got := strings.Split(out.String(), "\n")
		want := []string{"1234 2345 2345 3456 4567", "/usr", "0022", "A=b c", "E=", "PATH=/usr/bin:/bin", "PWD=/usr"}
		if !slices.Equal(got[:min(len(want), len(got))], want) {
			t.Fatalf("got %q, want %q first", got, want)
		}
		// Its own session and group, and no terminal.
		if pid := got[8]; got[7] != pid+" "+pid+" -1" {
			t.Errorf("group, session and terminal of process %s: %q", pid, got[7])
		}
	})
}

func TestACommandInheritsNothing(t *testing.T) {
	both(t, func(t *testing.T, cl *client.Client) {
		leak, err := os.Open("/dev/zero")
		if err != nil {
			t.Fatal(err)
		}
		defer leak.Close()
		var out bytes.Buffer
		if _, err := cl.Exec(within(t), sh("exec ls /proc/self/fd"), client.Stdio{Stdout: &out}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Fields(out.String()); !slices.Equal(got, []string{"0", "1", "2", "3"}) { // 3 is the directory
			t.Errorf("descriptors %q", got)
		}
	})
}

func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(b), ") Z ")
}

func gone(t *testing.T, pids ...int) {
	t.Helper()
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if !slices.ContainsFunc(pids, alive) {
			return
		}
	}
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d lives", pid)
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// Whatever became of the host's side, nothing keeps running that nobody sees.
func TestALostConnectionEndsTheWholeTree(t *testing.T) {
	both(t, func(t *testing.T, cl *client.Client) {
		for name, script := range map[string]string{
			"plain":         `sleep 60 & echo $$ $!; wait`,
			"ignores TERM":  `trap '' TERM HUP; sleep 60 & echo $$ $!; while :; do sleep 60; done`,
			"other session": `setsid sleep 60 & echo $$ $!; wait`,
			"stopped":       `sleep 60 & kill -STOP $!; echo $$ $!; wait`,
		} {
			ctx, cancel := context.WithCancel(within(t))
			var pids []int
			out := &trigger{want: "\n"}
			out.f = func() {
				for _, f := range strings.Fields(out.b.String()) {
					pid, _ := strconv.Atoi(f)
					pids = append(pids, pid)
				}
				cancel()
			}
			_, err := cl.Exec(ctx, sh(script), client.Stdio{Stdout: out})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: got %v", name, err)
			}
			if len(pids) != 2 {
				t.Fatalf("%s: pids %v", name, pids)
			}
			gone(t, pids...)
		}
	})
}

func TestAFailingWriterEndsTheCommand(t *testing.T) {
	both(t, func(t *testing.T, cl *client.Client) {
		pid := 0
		broken := errors.New("nobody reads")
		_, err := cl.Exec(within(t), sh("exec yes"), client.Stdio{Stdout: failing{broken}, Started: func(p int) { pid = p }})
		if !errors.Is(err, broken) {
			t.Errorf("got %v", err)
		}
		gone(t, pid)
	})
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestADetachedCommandOutlivesItsConnection(t *testing.T) {
	both(t, func(t *testing.T, cl *client.Client) {
		pid := 0
		r := client.ExecRequest{Argv: []string{"sleep", "60"}, Env: env, Detach: true}
		if _, err := cl.Exec(within(t), r, client.Stdio{Started: func(p int) { pid = p }}); err != nil {
			t.Fatal(err)
		}
		if _, err := cl.Info(within(t)); err != nil { // a round trip later
			t.Fatal(err)
		}
		if !alive(pid) {
			t.Error("it ended")
		}
		syscall.Kill(pid, syscall.SIGKILL)
		gone(t, pid)
	})
}

func TestACommandThatStaysNoticesNothingOfALostConnection(t *testing.T) {
	both(t, func(t *testing.T, cl *client.Client) {
		dir := t.TempDir()
		os.Chmod(dir, 0o777)
		beat := filepath.Join(dir, "beat")
		beats := func() {
			t.Helper()
			os.Remove(beat)
			for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
				if _, err := os.Stat(beat); err == nil {
					return
				}
				if time.Now().After(end) {
					t.Fatal("it ended")
				}
			}
		}
		// What fills a pipe many times over would block or kill one that noticed.
		script := "while :; do head -c 20000 /dev/zero && head -c 20000 /dev/zero >&2 && echo x >" + beat + " || exit 9; sleep 0.01; done"
		ctx, cancel := context.WithCancel(within(t))
		pid := make(chan int, 1)
		ended := make(chan error, 1)
		go func() {
			_, err := cl.Exec(ctx, client.ExecRequest{Argv: []string{"sh", "-c", script}, Env: env, Stay: true},
				client.Stdio{Started: func(p int) { pid <- p }, Stdout: io.Discard})
			ended <- err
		}()
		p := <-pid
		beats()
		cancel()
		if err := <-ended; err == nil {
			t.Error("the loss was not noticed here")
		}
		beats()
		beats()
		syscall.Kill(p, syscall.SIGKILL)
		gone(t, p)

		// Both streams arrive as one, in order, and what the command leaves
		// behind is as undisturbed.
		var out bytes.Buffer
		exit, err := cl.Exec(within(t), client.ExecRequest{Env: env, Stay: true, Argv: []string{"sh", "-c",
			"echo one; echo two >&2; echo three; (sleep 0.05; head -c 200000 /dev/zero && echo late >" + beat + ".late) & exit 3"}}, client.Stdio{Stdout: &out})
		if err != nil || exit.Code != 3 || out.String() != "one\ntwo\nthree\n" {
			t.Errorf("status %d, %v: %q", exit.Code, err, out.String())
		}
		beat += ".late"
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			if _, err := os.Stat(beat); err == nil {
				break
			}
			if time.Now().After(end) {
				t.Fatal("what it left behind was disturbed")
			}
		}
	})
}

func TestACommandThatStaysIsAwaitedByItsKey(t *testing.T) {
	both(t, func(t *testing.T, cl *client.Client) {
		if _, err := cl.Await(within(t), "nobody"); !errors.Is(err, kiterr.ErrNotFound) {
			t.Errorf("one that was never started: %v", err)
		}
		dir := t.TempDir()
		for i, c := range []struct {
			script string
			want   protocol.Exit
		}{{"exit 7", protocol.Exit{Code: 7}}, {"kill -9 $$", protocol.Exit{Code: 137, Signal: 9}}} {
			start := filepath.Join(dir, fmt.Sprint(i))
			ctx, cancel := context.WithCancel(within(t))
			started, lost := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(lost)
				_, _ = cl.Exec(ctx, client.ExecRequest{Argv: []string{"sh", "-c", "until test -e " + start + "; do sleep 0.01; done; " + c.script}, Env: env, Stay: true, Key: "k"},
					client.Stdio{Started: func(int) { close(started) }})
			}()
			<-started
			cancel()
			<-lost
			// Who gives up waiting takes nothing along.
			short, stop := context.WithTimeout(within(t), 50*time.Millisecond)
			if _, err := cl.Await(short, "k"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("while it runs: %v", err)
			}
			stop()
			if err := os.WriteFile(start, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if exit, err := cl.Await(within(t), "k"); err != nil || exit != c.want {
					t.Errorf("%s: %+v, %v", c.script, exit, err)
				}
			}
		}
		if _, err := cl.Exec(within(t), client.ExecRequest{Argv: []string{"true"}, Env: env, Key: "k"}, client.Stdio{}); err == nil {
			t.Error("a key of a command that does not stay is taken")
		}
	})
}

func TestShutdownIsForPIDOneOnly(t *testing.T) {
	both(t, func(t *testing.T, cl *client.Client) {
		if err := cl.Shutdown(within(t), 0); err == nil {
			t.Error("this test should be dead")
		}
	})
}

func TestWriteFileReplacesInOneStep(t *testing.T) {
	both(t, func(t *testing.T, cl *client.Client) {
		dir := t.TempDir()
		os.Chmod(dir, 0o755)
		p := filepath.Join(dir, "f")
		big := make([]byte, 700_001)
		rand.Read(big)
		for _, content := range [][]byte{nil, []byte("x"), big} {
			if err := cl.WriteFile(within(t), client.File{Path: p, Mode: 0o640}, content); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(p)
			if err != nil || !bytes.Equal(got, content) {
				t.Errorf("%d bytes became %d, %v", len(content), len(got), err)
			}
			if st, _ := os.Stat(p); st.Mode() != 0o640 {
				t.Errorf("mode %v", st.Mode())
			}
			back, err := cl.ReadFile(within(t), p, 1<<20)
			if err != nil || !bytes.Equal(back, content) {
				t.Errorf("read %d of %d bytes, %v", len(back), len(content), err)
			}
		}
		// A reader of the old file keeps the old file.
		old, _ := os.Open(p)
		defer old.Close()
		if err := cl.WriteFile(within(t), client.File{Path: p}, []byte("new")); err != nil {
			t.Fatal(err)
		}
		if b, _ := io.ReadAll(old); !bytes.Equal(b, big) {
			t.Error("the old file changed")
		}
		// Over a link: the link goes, its target stays.
		target := filepath.Join(dir, "target")
		os.WriteFile(target, []byte("keep"), 0o600)
		link := filepath.Join(dir, "link")
		os.Symlink(target, link)
		if err := cl.WriteFile(within(t), client.File{Path: link}, []byte("new")); err != nil {
			t.Fatal(err)
		}
		if b, _ := os.ReadFile(target); string(b) != "keep" {
			t.Errorf("the link's target became %q", b)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, ".kitbox-*")); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	})
}

func TestWriteFileKeepsWhatIsThere(t *testing.T) {
	both(t, func(t *testing.T, cl *client.Client) {
		p := filepath.Join(t.TempDir(), "f")
		f := client.File{Path: p, KeepExisting: true}
		for range 2 {
			if err := cl.WriteFile(within(t), f, []byte("first")); err != nil {
				t.Fatal(err)
			}
			if err := cl.WriteFile(within(t), f, []byte("second")); err != nil {
				t.Fatal(err)
			}
		}
		if b, _ := os.ReadFile(p); string(b) != "first" {
			t.Errorf("it became %q", b)
		}
	})
}

func TestWriteFileGivesItsOwnerAllItMakes(t *testing.T) {
	both(t, func(t *testing.T, cl *client.Client) {
		home := userDir(t, 1234, 2345)
		f := client.File{Path: filepath.Join(home, "a/b/f"), UID: 1234, GID: 2345}
		if err := cl.WriteFile(within(t), f, nil); !errors.Is(err, kiterr.ErrNotFound) {
			t.Errorf("without parents: %v", err)
		}
		f.Parents = true
		if err := cl.WriteFile(within(t), f, []byte("x")); err != nil {
			t.Fatal(err)
		}
		for _, p := range []string{"a", "a/b", "a/b/f"} {
			st, err := cl.Stat(within(t), filepath.Join(home, p), false)
			if err != nil || st.UID != 1234 || st.GID != 2345 {
				t.Errorf("%s: %+v, %v", p, st, err)
			}
		}
	})
}

// userDir is a directory of uid's that uid can reach.
func userDir(t *testing.T, uid, gid int) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "home")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := errors.Join(os.Chown(dir, uid, gid), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// The guest has root's rights. A user of the machine who makes a link where a
// file of theirs will be written must not get to use them.
func TestALinkLeadsNobodysFileElsewhere(t *testing.T) {
	both(t, func(t *testing.T, cl *client.Client) {
		home := userDir(t, 1234, 2345)
		rootOnly := t.TempDir() // 0700 root above it
		secret := filepath.Join(rootOnly, "etc")
		os.Mkdir(secret, 0o755)
		link := filepath.Join(home, "conf")
		os.Symlink(secret, link)
		os.Lchown(link, 1234, 2345)

		for name, f := range map[string]client.File{
			"as the user": {Path: filepath.Join(link, "f"), UID: 1234, GID: 2345},
			"as root":     {Path: filepath.Join(link, "f")},
		} {
			if err := cl.WriteFile(within(t), f, []byte("x")); err == nil {
				t.Errorf("%s: written", name)
			}
		}
		if left, _ := os.ReadDir(secret); len(left) > 0 {
			t.Errorf("made %v", left)
		}
		// Root's own links are the system's layout.
		sys := userDir(t, 0, 0)
		os.Mkdir(filepath.Join(sys, "real"), 0o755)
		os.Symlink("real", filepath.Join(sys, "alias"))
		if err := cl.WriteFile(within(t), client.File{Path: filepath.Join(sys, "alias/f")}, nil); err != nil {
			t.Errorf("through root's link: %v", err)
		}
		// A user's file goes where that user could write and nowhere else.
		if err := cl.WriteFile(within(t), client.File{Path: filepath.Join(sys, "real/g"), UID: 1234, GID: 2345}, nil); err == nil {
			t.Error("a user's file was written with root's rights")
		}
	})
}

func TestBadWritesAreRefusedAndLeaveNothing(t *testing.T) {
	both(t, func(t *testing.T, cl *client.Client) {
		dir := t.TempDir()
		os.Mkdir(filepath.Join(dir, "d"), 0o755)
		os.Symlink("loop", filepath.Join(dir, "loop"))
		for name, f := range map[string]client.File{
			"relative":       {Path: "f"},
			"a directory":    {Path: filepath.Join(dir, "d")},
			"the root":       {Path: "/"},
			"odd mode":       {Path: filepath.Join(dir, "f"), Mode: 0o4755},
			"a loop":         {Path: filepath.Join(dir, "loop/f")},
			"below a file":   {Path: "/etc/passwd/f", Parents: true},
			"missing parent": {Path: filepath.Join(dir, "no/f")},
		} {
			if err := cl.WriteFile(within(t), f, []byte("x")); err == nil {
				t.Errorf("%s: written", name)
			}
		}
		left, _ := os.ReadDir(dir)
		if len(left) != 2 {
			t.Errorf("left %v", left)
		}
	})
}

func TestReadFileIsBounded(t *testing.T) {
	both(t, func(t *testing.T, cl *client.Client) {
		p := filepath.Join(t.TempDir(), "f")
		os.WriteFile(p, make([]byte, 100), 0o600)
		if _, err := cl.ReadFile(within(t), p, 99); !errors.Is(err, client.ErrTooLarge) {
			t.Errorf("100 bytes of 99: %v", err)
		}
		if b, err := cl.ReadFile(within(t), p, 100); err != nil || len(b) != 100 {
			t.Errorf("100 bytes of 100: %d, %v", len(b), err)
		}
		if _, err := cl.ReadFile(within(t), p+"x", 100); !errors.Is(err, kiterr.ErrNotFound) {
			t.Errorf("missing: %v", err)
		}
		fifo := p + ".fifo"
		unix.Mkfifo(fifo, 0o600)
		for _, odd := range []string{fifo, "/dev/zero", "/etc"} {
			if _, err := cl.ReadFile(within(t), odd, 100); err == nil {
				t.Errorf("%s was read", odd)
			}
		}
	})
}

func TestDialReachesLoopbackAndEndsEachWayAlone(t *testing.T) {
	both(t, func(t *testing.T, cl *client.Client) {
		for _, host := range []string{"127.0.0.1", "::1"} {
			ln, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
			if err != nil {
				t.Fatal(err)
			}
			go func() { // answers only once it has heard everything
				for {
					c, err := ln.Accept()
					if err != nil {
						return
					}
					b, _ := io.ReadAll(c)
					c.Write(b)
					c.Close()
				}
			}()
			port := uint16(ln.Addr().(*net.TCPAddr).Port)
			c, err := cl.DialTCP(within(t), port, host == "::1")
			if err != nil {
				t.Fatal(err)
			}
			c.SetDeadline(time.Now().Add(20 * time.Second))
			want := make([]byte, 1_500_000)
			rand.Read(want)
			go func() { c.Write(want); c.CloseWrite() }()
			got, err := io.ReadAll(c)
			c.Close()
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %d bytes became %d, %v", host, len(want), len(got), err)
			}
			ln.Close()
			if _, err := cl.DialTCP(within(t), port, host == "::1"); !errors.Is(err, client.ErrConnRefused) {
				t.Errorf("%s: a closed port: %v", host, err)
			}
		}
	})
}

func TestClosingADialledConnectionClosesItsOtherEnd(t *testing.T) {
	both(t, func(t *testing.T, cl *client.Client) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		c, err := cl.DialTCP(within(t), uint16(ln.Addr().(*net.TCPAddr).Port), false)
		if err != nil {
			t.Fatal(err)
		}
		far, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer far.Close()
		far.SetDeadline(time.Now().Add(20 * time.Second))
		c.Close()
		if _, err := far.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

func TestInfoAnswers(t *testing.T) {
	both(t, func(t *testing.T, cl *client.Client) {
		a, err := cl.Info(within(t))
		if err != nil || a.Boot == "" || a.Processes < 1 {
			t.Errorf("%+v, %v", a, err)
		}
	})
}

// What somebody waits for is counted and told at its end; a service that a hook left
// behind, a question and a file are none of it.
func TestWhatIsUnderWayIsCountedUntilItEnds(t *testing.T) {
	both(t, func(t *testing.T, cl *client.Client) {
		dir := t.TempDir()
		go_, left := filepath.Join(dir, "go"), filepath.Join(dir, "left")
		script := func(file string) []string {
			return []string{"sh", "-c", "until test -e " + file + "; do sleep 0.01; done"}
		}
		var ended atomic.Int32
		begin := func(ctx context.Context, r client.ExecRequest) {
			r.Env = env
			started := make(chan struct{})
			go func() {
				_, _ = cl.Exec(ctx, r, client.Stdio{Started: func(int) { close(started) }})
				ended.Add(1)
			}()
			<-started
		}
		begin(within(t), client.ExecRequest{Argv: script(go_)})
		begin(within(t), client.ExecRequest{Argv: script(left), Stay: true, Key: "u"})
		lost, lose := context.WithCancel(within(t))
		begin(lost, client.ExecRequest{Argv: script(left)})

		told := make(chan int, 1)
		over := make(chan error, 1)
		go func() { over <- cl.Sessions(within(t), func(n int) { told <- n }) }()
		if n := <-told; n != 2 {
			t.Errorf("%d sessions, want 2", n)
		}
		lose()
		if err := os.WriteFile(go_, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := <-over; err != nil || ended.Load() < 1 {
			t.Errorf("told of the end after %d: %v", ended.Load(), err)
		}
		if err := cl.Sessions(within(t), func(n int) {
			if n != 0 {
				t.Errorf("afterwards: %d", n)
			}
		}); err != nil {
			t.Error(err)
		}
		if err := os.WriteFile(left, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := cl.Await(within(t), "u"); err != nil {
			t.Error(err)
		}
		// Who asks and goes away leaves nothing.
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := cl.Sessions(ctx, func(int) {}); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
	})
}
