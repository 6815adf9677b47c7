package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/sandbox"
)

// ErrNone means that no keeper answers for the sandbox: there never was one, it
// ended, or it died.
var ErrNone = errors.New("no keeper")

// A Client talks to the keeper of the sandbox whose state directory is Dir.
// Every call ends when its context does.
type Client struct{ Dir string }

// open connects and arranges that the connection ends with ctx.
func (c Client) open(ctx context.Context) (*net.UnixConn, func(), error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	// Connecting to a unix socket blocks only while its backlog is full,
	// which takes thousands of callers of a keeper that hangs.
	conn, err := Connect(c.Dir)
	if err != nil {
		if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT) {
			return nil, nil, ErrNone
		}
		return nil, nil, fmt.Errorf("keeper: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	return conn, func() { stop() }, nil
}

// ask sends r and returns the reply to it, with the file that came along.
func (c Client) ask(ctx context.Context, conn *net.UnixConn, r Request) (Reply, *os.File, error) {
	var a Reply
	if err := Send(conn, r, nil); err != nil {
		return a, nil, c.ended(ctx, err)
	}
	f, err := Receive(conn, &a, maxPacket)
	if err != nil {
		return a, nil, c.ended(ctx, err)
	}
	if a.Error != nil {
		if f != nil {
			f.Close()
		}
		return a, nil, a.Error.Err()
	}
	return a, f, nil
}

// ended is what an error of the connection means to the caller.
func (c Client) ended(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, io.EOF), errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET):
		return ErrNone
	}
	return fmt.Errorf("keeper: %w", err)
}

// Status asks how the sandbox is. It returns [ErrNone] without a keeper.
func (c Client) Status(ctx context.Context) (*Status, error) {
	return c.status(ctx, Request{Op: OpStatus})
}

func (c Client) status(ctx context.Context, r Request) (*Status, error) {
	conn, release, err := c.open(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer release()
	a, _, err := c.ask(ctx, conn, r)
	if err != nil {
		return nil, err
	}
	if a.Status == nil {
		return nil, errors.New("the keeper's answer has no status")
	}
	return a.Status, nil
}

// Probe is Status of a sandbox whose guest has to show that it is there: one that
// does not within patience is [sandbox.Unknown], however well its keeper is.
func (c Client) Probe(ctx context.Context, patience time.Duration) (*Status, error) {
	return c.status(ctx, Request{Op: OpStatus, ProbeMillis: max(1, patience.Milliseconds())})
}

// Process returns the number of the keeper's process, whether it answers or not. It
// returns [ErrNone] without a keeper.
func (c Client) Process(ctx context.Context) (int, error) {
	conn, release, err := c.open(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	defer release()
	cred, err := Peer(conn)
	if err != nil {
		return 0, fmt.Errorf("keeper: %w", err)
	}
	return int(cred.Pid), nil
}

// Reload makes the keeper read the recorded rules. When it returns they are in
// force and nothing flows that they do not allow. It returns [ErrNone] without a
// keeper: then nothing flows, and the next keeper begins with them.
func (c Client) Reload(ctx context.Context) error { return c.have(ctx, OpRules) }

// GiveBack makes the keeper give to the owners of mounted directories what was made
// there by users inside who are not their owners' by an id map. It returns [ErrNone]
// without a keeper: then it has been done.
func (c Client) GiveBack(ctx context.Context) error { return c.have(ctx, OpOwners) }

// have asks for op and nothing but that it was done.
func (c Client) have(ctx context.Context, op Operation) error {
	conn, release, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer release()
	_, _, err = c.ask(ctx, conn, Request{Op: op})
	return err
}

// Dial opens a session. It waits for a boot that is going on to end; when
// early, startup hooks are waited for only so long. ctx bounds the call and not
// the session.
func (c Client) Dial(ctx context.Context, early bool) (*Session, error) {
	conn, release, err := c.open(ctx)
	if err != nil {
		return nil, err
	}
	_, f, err := c.ask(ctx, conn, Request{Op: OpExec, Early: early})
	release()
	if err == nil && f == nil {
		err = errors.New("the keeper's answer has no connection")
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	guest, err := net.FileConn(f)
	f.Close()
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("keeper: %w", err)
	}
	return &Session{Conn: guest, hold: conn}, nil
}

// A StopRequest says how to end a sandbox.
type StopRequest struct {
	Grace  time.Duration
	IfIdle bool // do nothing while commands run
	Remove bool // delete the sandbox as well
}

// Stop ends the sandbox and its keeper, and returns when the keeper's process
// is gone. It reports whether nothing was done because the sandbox is busy.
func (c Client) Stop(ctx context.Context, r StopRequest) (busy bool, err error) {
	conn, release, err := c.open(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	defer release()
	process := keeperProcess(conn)
	if process != nil {
		defer process.Close()
	}
	a, _, err := c.ask(ctx, conn, Request{Op: OpStop, GraceMillis: r.Grace.Milliseconds(), IfIdle: r.IfIdle, Remove: r.Remove})
	if err == nil && !a.Busy && process != nil {
		awaitEnd(ctx, process, exitTime)
	}
	return a.Busy, err
}

// exitTime is how long a keeper may take from its last answer to its end.
const exitTime = 2 * time.Second

// keeperProcess returns a descriptor of the process at the other end, which
// names it even if its number is used again; nil if it cannot be had.
func keeperProcess(c *net.UnixConn) *os.File {
	cred, err := Peer(c)
	if err != nil || int(cred.Pid) == os.Getpid() {
		return nil
	}
	fd, err := unix.PidfdOpen(int(cred.Pid), 0)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), "keeper")
}

// awaitEnd reports whether the process has ended within the bound.
func awaitEnd(ctx context.Context, process *os.File, bound time.Duration) bool {
	for deadline := time.Now().Add(bound); ctx.Err() == nil; {
		left := time.Until(deadline)
		if left <= 0 {
			return false
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(process.Fd()), Events: unix.POLLIN}}, int(min(left, 50*time.Millisecond).Milliseconds())+1)
		if n > 0 {
			return true
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false
		}
	}
	return false
}

// Watch tells progress about a boot that is going on and returns when it is
// over, with its error. A [sandbox.HookError] of the runtime phase means that
// the sandbox runs.
func (c Client) Watch(ctx context.Context, progress func(sandbox.Event)) error {
	conn, release, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer release()
	if err := Send(conn, Request{Op: OpWatch}, nil); err != nil {
		return c.ended(ctx, err)
	}
	_, err = c.follow(ctx, conn, progress)
	return err
}

// follow reads events until the last reply. up reports whether the sandbox runs.
func (c Client) follow(ctx context.Context, conn *net.UnixConn, progress func(sandbox.Event)) (up bool, err error) {
	for {
		var a Reply
		f, err := Receive(conn, &a, maxPacket)
		if f != nil {
			f.Close()
		}
		if err != nil {
			return false, c.ended(ctx, err)
		}
		if a.Event == nil {
			return a.Status != nil && a.Status.State != sandbox.Stopped, a.Error.Err()
		}
		if progress != nil {
			progress(*a.Event)
		}
	}
}

// Kill ends a keeper that does not answer. It returns nil when none is left.
func (c Client) Kill(ctx context.Context) error {
	conn, err := Connect(c.Dir)
	if err != nil {
		return nil // nobody listens
	}
	defer conn.Close()
	cred, err := Peer(conn)
	if err != nil {
		return fmt.Errorf("keeper: %w", err)
	}
	process := keeperProcess(conn)
	if process == nil {
		return nil // it has ended
	}
	defer process.Close()
	cmdline, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(int(cred.Pid)), "cmdline"))
	if err != nil {
		return nil
	}
	if !bytes.HasPrefix(cmdline, []byte(ProcessName+"\x00")) {
		return fmt.Errorf("process %d holds the keeper's socket and is no keeper", cred.Pid)
	}
	if err := unix.PidfdSendSignal(int(process.Fd()), unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("ending keeper %d: %w", cred.Pid, err)
	}
	if !awaitEnd(ctx, process, keeperKillTime) {
		return fmt.Errorf("keeper %d does not end", cred.Pid)
	}
	return nil
}

// keeperKillTime bounds the wait for a process that was killed.
const keeperKillTime = 10 * time.Second
