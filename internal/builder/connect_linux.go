package builder

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/moby/buildkit/client"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kitbox-dev/kitbox/internal/driver/namespace/rootless"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// startLimit bounds how long a builder may take to answer. A cold start takes
// about 0.1 s; a predecessor that is closing its databases can hold it up.
const startLimit = 30 * time.Second

// errNoBuilder means that nobody listens on the builder's socket.
var errNoBuilder = fmt.Errorf("the builder is %w", kiterr.ErrNotRunning)

// A Launch says how a private builder is started when none runs.
type Launch struct {
	// Program is the kit-builder executable. Empty means this one.
	Program string

	// Idle and CacheBytes are passed on; see [ServeOptions].
	Idle       time.Duration
	CacheBytes int64
}

// Connect returns a client of the private builder in dir, which it starts if
// none runs. A builder of another version of this program is replaced, unless
// it is busy. The caller closes the client; the builder stays while it is open.
func Connect(ctx context.Context, dir string, l Launch) (*client.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit+5*time.Second)
	defer cancel()
	for retired := false; ; {
		lock, err := lockFile(ctx, filepath.Join(dir, lockName), startLimit)
		if err != nil {
			return nil, err
		}
		c, pid, err := attach(ctx, dir)
		if errors.Is(err, errNoBuilder) {
			if err = start(ctx, dir, l); err == nil {
				c, pid, err = attach(ctx, dir)
			}
			retired = true // a builder just started is not another version
		}
		if err != nil {
			lock.Close()
			return nil, err
		}
		if retired || workerLabels(ctx, c)[labelIdentity] == identity() {
			lock.Close()
			return c, nil
		}
		// It exits when this connection and all others are gone, which needs
		// the lock. One that is still there afterwards is building: use it.
		retired = true
		c.Close()
		lock.Close()
		retire(pid, 2*time.Second)
	}
}

// attach connects to a builder that runs, or returns [errNoBuilder].
func attach(ctx context.Context, dir string) (*client.Client, int, error) {
	conn, err := dial(dir)
	if err != nil {
		if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, os.ErrNotExist) {
			return nil, 0, errNoBuilder
		}
		return nil, 0, fmt.Errorf("connecting to the builder in %s: %w", dir, err)
	}
	pid := peerPID(conn)
	first := make(chan net.Conn, 1)
	first <- conn
	c, err := client.New(ctx, "unix:///builder", client.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		select {
		case c := <-first:
			return c, nil
		default:
			return dial(dir)
		}
	}))
	if err != nil {
		return nil, 0, err
	}
	// An answer means that the builder has counted this client.
	if _, err := c.Info(ctx); err != nil {
		c.Close()
		if status.Code(err) == codes.Unavailable && ended(pid, time.Second) {
			// It was killed after it took the connection.
			return nil, 0, errNoBuilder
		}
		return nil, 0, fmt.Errorf("the builder in %s does not answer: %w; see %s", dir, err, filepath.Join(dir, logName))
	}
	return c, pid, nil
}

// dial connects through the directory's descriptor, see listen.
func dial(dir string) (net.Conn, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return net.DialUnix("unix", nil, &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), socketName), Net: "unix"})
}

// peerPID returns the process that listens at the other end of c, as numbered
// here, or 0.
func peerPID(c net.Conn) int {
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}

// start runs kit-builder serve detached and waits until it answers. The caller
// holds the clients' lock.
func start(ctx context.Context, dir string, l Launch) error {
	if _, err := findRunc(sbin); err != nil {
		return err // say it here rather than in a log
	}
	program := l.Program
	if program == "" {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		program = self
	}
	log, err := openLog(filepath.Join(dir, logName))
	if err != nil {
		return err
	}
	defer log.Close()
	ready, tell, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()

	cmd := serveCommand(program, ServeOptions{Dir: dir, Idle: l.Idle, CacheBytes: l.CacheBytes})
	cmd.Args = append(cmd.Args, "--ready-fd", "3")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{tell}
	err = cmd.Start()
	tell.Close()
	if err != nil {
		return startError(err)
	}
	go cmd.Wait() // it may end while this process still runs
	said := make(chan string, 1)
	go func() {
		b, _ := bufio.NewReader(io.LimitReader(ready, 64<<10)).ReadString('\n')
		said <- strings.TrimSpace(b)
	}()
	select {
	case s := <-said:
		switch s {
		case "ok":
			return nil
		case "":
			return fmt.Errorf("the builder ended while starting; see %s", log.Name())
		default:
			return fmt.Errorf("the builder did not start: %s", s)
		}
	case <-ctx.Done():
		cmd.Process.Kill()
		return fmt.Errorf("the builder did not answer in time; see %s: %w", log.Name(), ctx.Err())
	}
}

// Foreground runs a builder as a child in namespaces of its own until ctx is
// done or it ends.
func Foreground(ctx context.Context, o ServeOptions) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := serveCommand(self, o)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	if err := cmd.Start(); err != nil {
		return startError(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		_ = cmd.Process.Signal(unix.SIGTERM)
		return <-done
	}
}

// serveCommand returns the command that runs [Serve] where it can: as PID 1 of
// new namespaces and leader of a session that no terminal's end reaches.
func serveCommand(program string, o ServeOptions) *exec.Cmd {
	cmd := exec.Command(program, "serve", "--dir", o.Dir, "--idle", o.idle().String(),
		"--cache-bytes", strconv.FormatInt(o.cacheBytes(), 10))
	cmd.Args[0] = "kit-builder"
	cmd.Dir = "/"
	cmd.Env = serveEnv(os.Environ())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	return cmd
}

func startError(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("starting the builder needs root or a user namespace, which kitbox makes; build with kitbox: %w", kiterr.ErrUnavailable)
	}
	return fmt.Errorf("starting the builder: %w", err)
}

// serveEnv keeps what a builder needs of the environment: it outlives the
// command that started it and must not carry that command's secrets along.
func serveEnv(env []string) []string {
	var keep []string
	for _, e := range env {
		name, _, _ := strings.Cut(e, "=")
		switch strings.ToUpper(name) {
		case rootless.LifeVariable: // its descriptor is inherited, and needed for as long
			keep = append(keep, e)
		case "PATH", "HOME", "XDG_CONFIG_HOME", "LANG", "TMPDIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "GOCOVERDIR":
			keep = append(keep, e)
		}
	}
	return keep
}

// openLog opens the log for appending, and starts it anew when it is large.
func openLog(name string) (*os.File, error) {
	flags := os.O_WRONLY | os.O_CREATE | os.O_APPEND
	if fi, err := os.Stat(name); err == nil && fi.Size() > 1<<20 {
		flags |= os.O_TRUNC
	}
	f, err := os.OpenFile(name, flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the builder's log: %w", err)
	}
	return f, nil
}

// retire asks the builder pid to end as soon as nobody uses it, and waits at
// most limit for that.
func retire(pid int, limit time.Duration) {
	signalAndWait(pid, unix.SIGUSR1, limit)
}

// signalAndWait sends sig to pid and reports whether it ended within limit.
func signalAndWait(pid int, sig unix.Signal, limit time.Duration) bool {
	if pid <= 0 {
		return false
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return errors.Is(err, unix.ESRCH)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil {
		slog.Debug("cannot signal the builder", "pid", pid, "err", err)
		return errors.Is(err, unix.ESRCH)
	}
	deadline := time.Now().Add(limit)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return false
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
		if n > 0 {
			return true
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false
		}
	}
}

// ended reports whether process pid is gone within limit.
func ended(pid int, limit time.Duration) bool {
	if pid <= 0 {
		return false
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return errors.Is(err, unix.ESRCH)
	}
	defer unix.Close(fd)
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(limit.Milliseconds()))
	return n > 0 && err == nil
}

// workerLabels returns what the builder says about itself.
func workerLabels(ctx context.Context, c *client.Client) map[string]string {
	ws, err := c.ListWorkers(ctx)
	if err != nil || len(ws) == 0 {
		return nil
	}
	return ws[0].Labels
}

// identity tells this executable from others: a builder outlives the program
// that started it, also through an upgrade.
func identity() string {
	fi, err := os.Stat("/proc/self/exe")
	if err != nil {
		return "unknown"
	}
	return fmt.Sprintf("%d-%d", fi.Size(), fi.ModTime().UnixNano())
}
