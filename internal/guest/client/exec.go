package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/guest/protocol"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// An ExecRequest is a command and who runs it. See [protocol.Exec] for what
// each field means; the fields about streams follow from [Stdio].
type ExecRequest struct {
	Argv []string
	Env  []string // complete
	Dir  string   // empty means /
	UID  uint32
	GID  uint32
	GIDs []uint32

	TTY  bool
	Size protocol.Size // of the terminal; zero means 24 by 80

	// Detach starts the command with /dev/null for its streams and leaves
	// it running. Exec returns when it has started.
	Detach bool

	// Stay leaves the command, and what it started, undisturbed when the
	// connection is lost; what they print is dropped then. Its stdout and
	// stderr are one stream, which goes to Stdout. Not with TTY.
	Stay bool

	// Key is what a command that stays can be awaited by later; empty: it
	// cannot.
	Key string
}

// Stdio is the host's end of a command's streams. A nil stream is /dev/null.
//
// A stream that is an [*os.File] of a pipe or of /dev/null may be given to the
// command itself instead of being copied. Files and terminals never are: a
// process of the machine that keeps a descriptor of one could write to it or
// type into it long after the command ended.
type Stdio struct {
	// Stdout and Stderr may be one writer, which is then written to by one
	// goroutine at a time. Stdin is read until its end. A Read that waits when the command ends
	// is left alone: it ends by itself and what it read is lost.
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer // not with a terminal

	Resize  <-chan protocol.Size  // new sizes of the terminal
	Signals <-chan syscall.Signal // sent to the command's process group
	Started func(pid int)         // called once the command runs; pid is the machine's

	// Copy makes every stream be copied, even those that could be passed.
	Copy bool
}

// Exec runs a command and returns how it ended, once all its output has been
// written. A command that could not be started is [kiterr.ErrCannotExec], and one
// that may have been, of which nothing more is known, [kiterr.ErrLost]. When
// ctx is done or a stream fails, the connection is given up, upon which the
// guest ends the command and its children.
func (cl *Client) Exec(ctx context.Context, r ExecRequest, s Stdio) (protocol.Exit, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var exit protocol.Exit
	err := cl.with(ctx, func(c *protocol.Conn) (err error) {
		exit, err = exec(ctx, c, r, s)
		return err
	})
	return exit, err
}

// Await returns how the command ended, or ends, that stayed when its connection was
// lost and that was started last with key. [kiterr.ErrNotFound] means that there was
// none.
func (cl *Client) Await(ctx context.Context, key string) (exit protocol.Exit, err error) {
	err = cl.with(ctx, func(c *protocol.Conn) error {
		if _, err := begin(c, protocol.Request{Op: protocol.OpAwait, Await: &protocol.Await{Key: key}}); err != nil {
			return err
		}
		exit, err = frames(c, nil, func(protocol.Kind) *protocol.Inbox { return nil })
		return unexpected(err)
	})
	return exit, err
}

func exec(ctx context.Context, c *protocol.Conn, r ExecRequest, s Stdio) (protocol.Exit, error) {
	e := &protocol.Exec{
		Argv: r.Argv, Env: r.Env, Dir: r.Dir, UID: r.UID, GID: r.GID, GIDs: r.GIDs,
		TTY: r.TTY, Rows: r.Size.Rows, Cols: r.Size.Cols, Detach: r.Detach, Stay: r.Stay, Key: r.Key,
	}
	var files []*os.File
	passed := [3]bool{}
	if !r.TTY && !r.Detach && !r.Stay {
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			return protocol.Exit{}, err
		}
		defer null.Close()
		for fd, stream := range []any{s.Stdin, s.Stdout, s.Stderr} {
			f, ok := passable(c, fd, stream, s.Copy)
			if ok {
				defer f.Close()
			} else if stream == nil && fd > 0 && c.CanPass() && !s.Copy {
				f, ok = null, true
			}
			if ok {
				e.Passed = append(e.Passed, fd)
				files = append(files, f)
				passed[fd] = true
			}
		}
	}
	e.Stdin = s.Stdin != nil && !passed[0] && !r.Detach

	// Starting a command takes the guest no time. One that its machine has
	// taken descriptors or memory from would never answer.
	late := time.AfterFunc(answerTime, func() { _ = c.Raw().SetDeadline(time.Unix(1, 0)) })
	a, err := begin(c, protocol.Request{Op: protocol.OpExec, Exec: e}, files...)
	if !late.Stop() && ctx.Err() == nil {
		return protocol.Exit{}, fmt.Errorf("the guest did not say within %v that the command has started; stop and start the sandbox: %w", answerTime, kiterr.ErrLost)
	}
	if errors.As(err, new(*unansweredError)) && ctx.Err() == nil {
		return protocol.Exit{}, fmt.Errorf("it ended before it said whether the command had started: %w: %w", err, kiterr.ErrLost)
	}
	if err != nil {
		return protocol.Exit{}, err
	}
	if s.Started != nil {
		s.Started(a.PID)
	}
	if r.Detach {
		return protocol.Exit{}, nil
	}
	return attend(ctx, c, e, s, passed)
}

// answerTime is how long a guest may take to start a command, on a machine that
// is very busy.
var answerTime = time.Minute

// attend moves bytes until the guest reports the end of the command.
func attend(ctx context.Context, c *protocol.Conn, e *protocol.Exec, s Stdio, passed [3]bool) (protocol.Exit, error) {
	type sink struct {
		w    io.Writer
		in   *protocol.Inbox
		done chan error
	}
	sinks := map[protocol.Kind]*sink{}
	if same(s.Stdout, s.Stderr) {
		// As with os/exec: one writer for both hears from one at a time.
		w := &lockedWriter{w: s.Stdout}
		s.Stdout, s.Stderr = w, w
	}
	add := func(kind protocol.Kind, w io.Writer) {
		if w == nil {
			w = io.Discard
		}
		k := &sink{w, protocol.NewInbox(), make(chan error, 1)}
		sinks[kind] = k
		go func() {
			err := k.in.Drain(c, kind, k.w)
			if err != nil {
				// The reader of frames must not wait for a command
				// whose output nobody takes.
				c.Raw().SetDeadline(time.Unix(1, 0))
			}
			k.done <- err
		}()
	}
	if !passed[1] {
		add(protocol.KindOut, s.Stdout)
	}
	if !passed[2] && !e.TTY && !e.Stay {
		add(protocol.KindErr, s.Stderr)
	}

	b := protocol.NewBudget()
	defer b.Close()
	if e.Stdin {
		// Not waited for: see Stdio.Stdin. It ends at its next Read, since
		// the budget and the connection are closed.
		go func() {
			if err := protocol.Send(c, protocol.KindIn, s.Stdin, b); err != nil {
				_ = c.Write(protocol.KindIn, nil) // the command sees the end of what could be read
			}
		}()
	}
	if s.Resize != nil || s.Signals != nil {
		go control(ctx, c, s)
	}

	exit, err := frames(c, b, func(kind protocol.Kind) *protocol.Inbox {
		if k, ok := sinks[kind]; ok {
			return k.in
		}
		return nil
	})
	// Writers get all that arrived. A writer that failed is the cause, since
	// it broke the connection itself.
	var failed error
	for _, k := range sinks {
		if err != nil {
			k.in.Fail(errLost)
		} else {
			k.in.Fail(io.EOF) // a guest may have left the end out
		}
		if werr := <-k.done; werr != nil && !errors.Is(werr, errLost) {
			failed = werr
		}
	}
	if failed != nil {
		return protocol.Exit{}, fmt.Errorf("writing the command's output: %w", failed)
	}
	if err != nil {
		return protocol.Exit{}, fmt.Errorf("it ended while the command ran: %w", unexpected(err))
	}
	return exit, nil
}

// same reports whether both are one writer.
func same(a, b io.Writer) bool {
	if a == nil || b == nil || reflect.TypeOf(a) != reflect.TypeOf(b) || !reflect.TypeOf(a).Comparable() {
		return false
	}
	return reflect.ValueOf(a).Comparable() && a == b
}

// A lockedWriter can be written to concurrently.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer // guarded by mu
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// errLost ends the streams of a command whose connection was lost.
var errLost = errors.New("connection lost")

// control forwards sizes and signals until ctx is done.
func control(ctx context.Context, c *protocol.Conn, s Stdio) {
	for {
		select {
		case <-ctx.Done():
			return
		case size, ok := <-s.Resize:
			if !ok {
				s.Resize = nil
				continue
			}
			if c.WriteResize(size) != nil {
				return
			}
		case sig, ok := <-s.Signals:
			if !ok {
				s.Signals = nil
				continue
			}
			if c.Write(protocol.KindSignal, []byte{byte(sig)}) != nil {
				return
			}
		}
	}
}

// frames reads until the exit.
func frames(c *protocol.Conn, b *protocol.Budget, inbox func(protocol.Kind) *protocol.Inbox) (protocol.Exit, error) {
	for {
		f, err := c.Read()
		if err != nil {
			return protocol.Exit{}, err
		}
		switch f.Kind {
		case protocol.KindOut, protocol.KindErr:
			in := inbox(f.Kind)
			if in == nil {
				return protocol.Exit{}, fmt.Errorf("%w: data on a stream that does not exist", protocol.ErrProtocol)
			}
			if err := in.Put(f.Body); err != nil {
				return protocol.Exit{}, err
			}
		case protocol.KindCredit:
			_, n, err := protocol.ParseCredit(f.Body)
			if err != nil {
				return protocol.Exit{}, err
			}
			if b == nil {
				return protocol.Exit{}, fmt.Errorf("%w: credit for a stream that does not exist", protocol.ErrProtocol)
			}
			if err := b.Add(n); err != nil {
				return protocol.Exit{}, err
			}
		case protocol.KindExit:
			var e protocol.Exit
			if err := protocol.Decode(f.Body, &e); err != nil {
				return e, err
			}
			if e.Code < 0 || e.Code > 255 || e.Signal < 0 || e.Signal > 64 {
				return protocol.Exit{}, fmt.Errorf("%w: exit status %d, signal %d", protocol.ErrProtocol, e.Code, e.Signal)
			}
			return e, nil
		default:
			return protocol.Exit{}, fmt.Errorf("%w: frame of kind %d while a command runs", protocol.ErrProtocol, f.Kind)
		}
	}
}

// passable returns a file that may be given to the command for a stream. It is
// opened anew: a descriptor shares its flags with all its copies, and a command
// that made its stdout non-blocking would break the host's other programs that
// write to the same pipe. The caller closes it.
func passable(c *protocol.Conn, fd int, stream any, never bool) (*os.File, bool) {
	f, ok := stream.(*os.File)
	if !ok || f == nil || never || !c.CanPass() {
		return nil, false
	}
	var st unix.Stat_t
	n := int(f.Fd()) // also makes it blocking, as a command expects
	if unix.Fstat(n, &st) != nil {
		return nil, false
	}
	isNull := st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(1, 3)
	if st.Mode&unix.S_IFMT != unix.S_IFIFO && !isNull {
		return nil, false
	}
	flags, err := unix.FcntlInt(uintptr(n), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_NONBLOCK != 0 || flags&unix.O_PATH != 0 {
		return nil, false
	}
	mode := flags & unix.O_ACCMODE
	if mode == unix.O_RDONLY && fd != 0 || mode == unix.O_WRONLY && fd == 0 || mode == unix.O_RDWR && !isNull {
		return nil, false // a pipe opened both ways never ends
	}
	// One that another user made may be held and not opened. It is copied.
	// Without waiting for the other end of one that has a name.
	anew, err := unix.Open("/proc/self/fd/"+strconv.Itoa(n), mode|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, false
	}
	if err := unix.SetNonblock(anew, false); err != nil {
		unix.Close(anew)
		return nil, false
	}
	return os.NewFile(uintptr(anew), f.Name()), true
}
