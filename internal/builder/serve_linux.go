package builder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/defaults"
	"github.com/moby/buildkit/util/grpcerrors"
	"github.com/moby/sys/userns"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/kitbox-dev/kitbox/internal/frontend"
)

// ServeOptions configure [Serve].
type ServeOptions struct {
	// Dir is the builder's directory, see [Dir]. Required.
	Dir string

	// Idle is how long the builder stays up with no client connected; a
	// running build is a connected client. Zero means [DefaultIdle].
	Idle time.Duration

	// CacheBytes bounds the build cache. Zero means [DefaultCacheBytes].
	CacheBytes int64

	// Frontend is the builtin frontend for clients that bring none.
	Frontend frontend.Builder

	// Ready is told once that the socket answers ("ok") or why it never will,
	// and closed. Nil tells nobody.
	Ready io.WriteCloser
}

func (o ServeOptions) idle() time.Duration {
	if o.Idle <= 0 {
		return DefaultIdle
	}
	return o.Idle
}

func (o ServeOptions) cacheBytes() int64 {
	if o.CacheBytes <= 0 {
		return DefaultCacheBytes
	}
	return o.CacheBytes
}

// trimLimit bounds how long a builder tidies its cache before it ends. A client
// that comes meanwhile waits for it.
const trimLimit = 10 * time.Second

// Serve runs a builder until it has been idle for o.Idle or ctx is done; a
// cancelled ctx ends running builds. It must be called in PID and mount
// namespaces of its own, as [Launch] starts it: it remounts /proc and
// leaves mounts behind.
func Serve(ctx context.Context, o ServeOptions) (err error) {
	ready := sync.OnceFunc(func() {
		if o.Ready == nil {
			return
		}
		if err != nil {
			fmt.Fprintln(o.Ready, err)
		} else {
			fmt.Fprintln(o.Ready, "ok")
		}
		o.Ready.Close()
	})
	defer ready()

	if os.Getpid() != 1 {
		return errors.New("the builder must be PID 1 of a namespace of its own; start it with kit-builder serve")
	}
	if err := enterMounts(); err != nil {
		return err
	}
	go reapOrphans(ctx)

	dir, err := os.Open(o.Dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	// A predecessor that is on its way out still holds the databases.
	held, err := lockFile(ctx, filepath.Join(o.Dir, stateLock), 20*time.Second)
	if err != nil {
		return fmt.Errorf("another builder has %s open: %w", o.Dir, err)
	}
	defer held.Close()
	root := filepath.Join(o.Dir, rootName)
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	if err := mountRuncState(root); err != nil {
		return err
	}
	if err := ownTemp(root); err != nil {
		return err
	}
	sweepCgroups(cgroupParent(root))
	defer sweepCgroups(cgroupParent(root))

	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ctl, err := newController(work, root, o)
	if err != nil {
		return err
	}
	defer ctl.Close()

	l, err := listen(dir)
	if err != nil {
		return err
	}
	presence := newPresence()
	srv := grpc.NewServer(
		grpc.StatsHandler(presence),
		grpc.WaitForHandlers(true), // a step that is being killed is not gone yet
		// Without these an error arrives without its place in the recipe.
		grpc.UnaryInterceptor(grpcerrors.UnaryServerInterceptor),
		grpc.StreamInterceptor(grpcerrors.StreamServerInterceptor),
		grpc.MaxRecvMsgSize(defaults.DefaultMaxRecvMsgSize),
		grpc.MaxSendMsgSize(defaults.DefaultMaxSendMsgSize),
	)
	ctl.Register(srv)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	ready()
	retire := make(chan os.Signal, 1)
	signal.Notify(retire, unix.SIGUSR1)
	defer signal.Stop(retire)
	go func() {
		select {
		case <-retire:
			presence.retire()
		case <-work.Done():
		}
	}()
	slog.Info("builder is up", "root", root, "idle", o.idle(), "cacheBytes", o.cacheBytes())

	// Holding the clients' lock until this process is gone means that no client
	// can have connected in between, and that the next one finds the databases
	// closed.
	gone, reason := presence.waitIdle(ctx, o.idle(), filepath.Join(o.Dir, lockName))
	if gone != nil {
		defer gone.Close()
		bound, cancel := context.WithTimeout(ctx, trimLimit)
		if err := ctl.trim(bound); err != nil {
			slog.Warn("the build cache may be larger than its bound", "err", err)
		}
		cancel()
	}
	slog.Info("builder ends", "why", reason)
	os.Remove(filepath.Join(o.Dir, socketName))
	stop()
	srv.Stop()
	if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

// enterMounts makes this process's mount namespace its own: what is mounted
// here stays here, while what the host unmounts goes here too, and /proc shows
// this PID namespace.
func enterMounts() error {
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("making the mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mounting /proc: %w", err)
	}
	return nil
}

// ownTemp gives this process temporary files of its own, and removes those of a
// predecessor that was killed: nobody would look for them in the system's place.
func ownTemp(root string) error {
	dir := filepath.Join(root, "tmp")
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("removing what a killed builder left: %w", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return os.Setenv("TMPDIR", dir)
}

// mountRuncState gives runc a directory for its state that ends with this
// process: it would otherwise keep that of every step a killed builder ran, in
// one place for the whole machine.
func mountRuncState(root string) error {
	dir := "/run/runc"
	if userns.RunningInUserNS() {
		// That one is not ours, and runc looks here instead.
		dir = filepath.Join(root, "run")
		os.Setenv("XDG_RUNTIME_DIR", dir)
		os.Unsetenv("USER")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0700"); err != nil {
		return fmt.Errorf("mounting %s: %w", dir, err)
	}
	return nil
}

// listen binds the socket in dir. Bind through the directory's descriptor
// because a socket's path is limited to 107 bytes and a home's is not.
func listen(dir *os.File) (net.Listener, error) {
	path := fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), socketName)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	old := unix.Umask(0o177)
	defer unix.Umask(old)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listening on the builder's socket: %w", err)
	}
	l.SetUnlinkOnClose(false) // the path would be resolved in another state
	return l, nil
}

// reapOrphans collects what runc leaves behind when it is killed: this process
// is their init. Children that somebody here waits for are collected at once,
// so that one that has been dead for two rounds has nobody.
func reapOrphans(ctx context.Context) {
	dead := map[int]bool{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(20 * time.Second):
		}
		now := map[int]bool{}
		entries, err := os.ReadDir("/proc")
		if err != nil {
			continue
		}
		for _, e := range entries {
			pid, err := strconv.Atoi(e.Name())
			if err != nil || !isZombieOfInit(pid) {
				continue
			}
			if dead[pid] {
				syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
				continue
			}
			now[pid] = true
		}
		dead = now
	}
}

func isZombieOfInit(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	i := strings.LastIndexByte(string(b), ')') // the name before it may hold anything
	if i < 0 {
		return false
	}
	f := strings.Fields(string(b[i+1:]))
	return len(f) > 1 && f[0] == "Z" && f[1] == "1"
}

// A presence counts connected clients. It is a [stats.Handler].
type presence struct {
	mu      sync.Mutex
	clients int           // guarded by mu
	since   time.Time     // when clients last became zero; guarded by mu
	retired bool          // nobody is waited for any more; guarded by mu
	changed chan struct{} // has room for one
}

func newPresence() *presence {
	return &presence{since: time.Now(), changed: make(chan struct{}, 1)}
}

func (p *presence) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (p *presence) HandleRPC(context.Context, stats.RPCStats)                         {}
func (p *presence) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (p *presence) HandleConn(_ context.Context, s stats.ConnStats) {
	p.mu.Lock()
	switch s.(type) {
	case *stats.ConnBegin:
		p.clients++
	case *stats.ConnEnd:
		if p.clients--; p.clients == 0 {
			p.since = time.Now()
		}
	}
	p.mu.Unlock()
	p.signal()
}

func (p *presence) signal() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// retire makes waitIdle return as soon as no client is connected.
func (p *presence) retire() {
	p.mu.Lock()
	p.retired = true
	p.mu.Unlock()
	p.signal()
}

// idleFor returns how long no client has been connected; zero while one is.
func (p *presence) idleFor() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.clients > 0 {
		return 0
	}
	if p.retired {
		return math.MaxInt64
	}
	return max(time.Since(p.since), 1)
}

// waitIdle returns when nobody has been connected for limit, with the lock on
// file that keeps newcomers out, or without it when ctx is done or there is no
// such lock any more.
func (p *presence) waitIdle(ctx context.Context, limit time.Duration, file string) (*os.File, string) {
	for {
		wait := limit
		switch idle := p.idleFor(); {
		case idle >= limit:
			// A client that holds the lock is connecting or about to.
			f, err := tryLock(file)
			if err == nil {
				if p.idleFor() >= limit {
					return f, "idle"
				}
				f.Close()
			} else if !errors.Is(err, unix.EWOULDBLOCK) {
				// The state was deleted, or its disk is full: no client
				// can hold the lock, and waiting for it never ends.
				return nil, "idle, and its state cannot be locked: " + err.Error()
			}
			wait = 100 * time.Millisecond
		case idle > 0:
			wait = limit - idle
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil, "told to stop"
		case <-p.changed:
		case <-t.C:
		}
		t.Stop()
	}
}
