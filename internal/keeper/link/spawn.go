package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/child"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// ProcessName is the first argument of a keeper's command line; the program
// that finds it there calls [Main].
const ProcessName = "kitbox-keeper"

// LogName is the file of a keeper's own messages in a sandbox's state directory.
const LogName = "keeper.log"

// MaxLog is how long a keeper's log may be, in bytes, before another is begun.
const MaxLog = 256 << 10

// The descriptors a keeper starts with, besides stdio.
const (
	ListenerFD = 3
	CreatorFD  = 4
	HeldFD     = 5 // of [Held], or one without meaning
)

// CleanupTime bounds what a keeper takes for removing what a boot left.
const CleanupTime = 60 * time.Second

// A Process is a keeper that was started and waits to be told to boot.
type Process struct {
	client  Client
	creator *net.UnixConn
	proc    *child.Process
	logged  int64 // bytes of its log that are of keepers before it
}

// Self is the program that this process runs.
const Self = "/proc/self/exe"

// Spawn starts a keeper for the sandbox name whose state directory is dir: the
// given program, which becomes one for [ProcessName]. The caller holds the sandbox's lock and knows that no keeper lives. env is the
// keeper's whole environment. The keeper boots nothing before [Process.Boot] and
// ends by itself when that is never called.
func Spawn(program, dir, name string, env []string, held Held) (*Process, error) {
	l, err := Bind(dir)
	if err != nil {
		return nil, fmt.Errorf("keeper of %s: %w", name, err)
	}
	defer l.Close()
	lf, err := l.File()
	if err != nil {
		return nil, fmt.Errorf("keeper of %s: %w", name, err)
	}
	defer lf.Close()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("keeper of %s: %w", name, err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "creator"), os.NewFile(uintptr(pair[1]), "creator")
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		return nil, fmt.Errorf("keeper of %s: %w", name, err)
	}
	log, err := OpenLog(dir)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("keeper of %s: %w", name, err)
	}
	defer log.Close()
	st, err := log.Stat()
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("keeper of %s: %w", name, err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		conn.Close()
		return nil, err
	}
	defer null.Close()
	files := []*os.File{null, log, log, lf, theirs, null}
	if held.File != nil {
		env = append(env[:len(env):len(env)], fmt.Sprintf("%s=%d", held.Variable, HeldFD))
		files[HeldFD] = held.File
	}
	// Not in the caller's directory: a keeper must not keep a file system busy
	// that has nothing to do with it.
	p, err := child.Start(program, []string{ProcessName, dir}, env, "/", files, &syscall.SysProcAttr{Setsid: true})
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("keeper of %s: %w", name, err)
	}
	return &Process{client: Client{dir}, creator: conn.(*net.UnixConn), proc: p, logged: st.Size()}, nil
}

// A Held is a descriptor that a keeper keeps open for as long as it lives, and
// the variable that tells it the number.
type Held struct {
	Variable string
	File     *os.File // nil: none
}

// Environment is what a keeper inherits of env: where things are, and nothing
// else. A secret of the caller's has no business in a process that lives on, but
// for the login of a proxy: it is the keeper who uses it, and it is recorded
// nowhere.
func Environment(env []string) []string {
	var out []string
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		switch name {
		case "PATH", "HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "TMPDIR", "LANG", "TZ":
		case "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy":
		case "DBUS_SESSION_BUS_ADDRESS", "GNUPGHOME", "PASSWORD_STORE_DIR": // helpers that keep registry logins need them
		default:
			if !strings.HasPrefix(name, "KITBOX_") {
				continue
			}
		}
		out = append(out, kv)
	}
	return append(out, "GOGC=400", "GOMEMLIMIT=20MiB")
}

// A BootRequest is the creator's word that a keeper waits for.
type BootRequest struct {
	Create   bool `json:"create"`
	Volatile bool `json:"volatile"`
}

// BootOptions say what a boot is for.
type BootOptions struct {
	// Create says that the sandbox is being made: one whose boot fails or is
	// given up is removed. Otherwise it is left stopped.
	Create bool

	// Volatile removes the sandbox as soon as this process ends or calls
	// [Process.Release].
	Volatile bool

	Progress func(sandbox.Event) // nil discards
}

// Boot lets the keeper boot the sandbox and returns when it is ready. A
// [sandbox.HookError] of the runtime phase leaves it running, which up reports.
// When ctx ends first the keeper takes back what it has made.
func (p *Process) Boot(ctx context.Context, o BootOptions) (up bool, err error) {
	if err := Send(p.creator, BootRequest{Create: o.Create, Volatile: o.Volatile}, nil); err != nil {
		return false, p.died(err)
	}
	type end struct {
		up  bool
		err error
	}
	done := make(chan end, 1)
	go func() {
		up, err := p.client.follow(context.Background(), p.creator, o.Progress)
		done <- end{up, err}
	}()
	select {
	case e := <-done:
		if errors.Is(e.err, ErrNone) {
			e.err = p.died(e.err)
		}
		if !e.up {
			p.awaitEnd()
		}
		return e.up, e.err
	case <-ctx.Done():
	}
	// The stop is answered when everything is taken back.
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), CleanupTime)
	defer cancel()
	_, serr := p.client.Stop(stop, StopRequest{Remove: o.Create})
	if errors.Is(serr, ErrNone) {
		serr = nil
	}
	p.creator.Close()
	<-done
	p.awaitEnd()
	return false, errors.Join(context.Cause(ctx), serr)
}

// awaitEnd waits for a keeper whose boot is over without a sandbox. It has nothing
// left to do but to end, and whoever is told that the boot failed may look for it.
func (p *Process) awaitEnd() {
	p.creator.Close()
	ended := make(chan struct{})
	go func() { _ = p.proc.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(exitTime):
	}
}

// died explains a keeper that hung up: by what it logged itself, or by how its
// process ended.
func (p *Process) died(err error) error {
	p.creator.Close()
	ended := make(chan error, 1)
	go func() { ended <- p.proc.Wait() }()
	select {
	case how := <-ended:
		if how != nil {
			err = how
		}
	case <-time.After(exitTime):
	}
	if b, rerr := readTail(filepath.Join(p.client.Dir, LogName), p.logged, maxCause); rerr == nil {
		if line := cause(b); line != "" {
			return fmt.Errorf("the sandbox's keeper died: %s", line)
		}
	}
	return fmt.Errorf("the sandbox's keeper died: %w", err)
}

// maxCause is how much of a log is searched for why a keeper ended.
const maxCause = 64 << 10

// cause finds in a keeper's log why it ended: how the Go runtime begins when it
// gives up, or else the last line that is no message about ordinary work. A
// message tells of work done, and what killed its writer came after.
func cause(log []byte) string {
	last := ""
	for l := range strings.Lines(string(log)) {
		l = strings.TrimSpace(l)
		switch {
		case strings.HasPrefix(l, "panic: "), strings.HasPrefix(l, "fatal error: "):
			return l
		case l == "", strings.Contains(l, " level=INFO "), strings.Contains(l, " level=DEBUG "):
		default:
			last = l
		}
	}
	return last
}

// Release gives up the connection of the creator. The keeper lives on, unless
// the boot was volatile or never asked for.
func (p *Process) Release() {
	p.creator.Close()
}

// Wait waits for the keeper's process to end; for tests and for a keeper that
// was told to stop by this process.
func (p *Process) Wait() { _ = p.proc.Wait() }

// OpenLog opens the log of a keeper, whose state directory is dir, for appending. A long
// one is begun again, with the one before kept, so that no sandbox fills a disk with it.
func OpenLog(dir string) (*os.File, error) {
	name := filepath.Join(dir, LogName)
	if st, err := os.Stat(name); err == nil && st.Size() > MaxLog {
		if err := os.Rename(name, name+".1"); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
}

// readTail reads the last n bytes of a file, of those from byte on.
func readTail(name string, from, n int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(max(from, st.Size()-n), io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, n))
}
