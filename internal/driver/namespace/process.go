package namespace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A process is a handle on a process that no later one with its pid can be
// mistaken for.
type process struct {
	pid int
	f   *os.File // a pidfd
}

// findProcess opens pid if it still is the process that started at start ticks.
func findProcess(pid int, start uint64) (*process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	p := &process{pid, os.NewFile(uintptr(fd), "pidfd")}
	// After the handle is open: what is read now belongs to it, or it ended.
	got, err := startTicks(pid)
	if err != nil || got != start || p.ended() {
		p.close()
		return nil, os.ErrProcessDone
	}
	return p, nil
}

func (p *process) close() { p.f.Close() }

// ended reports whether the process has ended; a zombie has.
func (p *process) ended() bool {
	fds := []unix.PollFd{{Fd: int32(p.f.Fd()), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1
}

// kill sends SIGKILL. A process that has ended already is no error.
func (p *process) kill() error {
	err := unix.PidfdSendSignal(int(p.f.Fd()), unix.SIGKILL, nil, 0)
	if err == unix.ESRCH {
		return nil
	}
	return err
}

// wait waits for the end of the process or of ctx.
func (p *process) wait(ctx context.Context) error {
	for {
		d := time.Second
		if end, ok := ctx.Deadline(); ok {
			d = min(d, max(time.Until(end), 0))
		}
		// A done ctx is noticed through a pipe rather than by waking up
		// often: see poll.
		if p.poll(ctx, d) {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// poll waits up to d for the process to end and returns early when ctx is done.
func (p *process) poll(ctx context.Context, d time.Duration) bool {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		time.Sleep(min(d, 10*time.Millisecond))
		return p.ended()
	}
	var done sync.WaitGroup
	done.Add(1)
	stop := context.AfterFunc(ctx, func() {
		defer done.Done()
		_, _ = unix.Write(wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	})
	defer func() {
		if stop() {
			done.Done()
		}
		done.Wait()
		unix.Close(wake)
	}()
	fds := []unix.PollFd{{Fd: int32(p.f.Fd()), Events: unix.POLLIN}, {Fd: int32(wake), Events: unix.POLLIN}}
	_, err = unix.Poll(fds, int(d/time.Millisecond)+1)
	return err == nil && fds[0].Revents != 0
}

// startTicks reads when a process started.
func startTicks(pid int) (uint64, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	// The name is in brackets and may contain anything, brackets too.
	i := bytes.LastIndexByte(b, ')')
	f := bytes.Fields(b[i+1:])
	if i < 0 || len(f) < 20 {
		return 0, errors.New("unreadable /proc/pid/stat")
	}
	return strconv.ParseUint(string(f[19]), 10, 64)
}

// bootID identifies this run of the kernel.
var bootID = sync.OnceValue(func() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
})

// A child is a guest that this process started and must reap.
type child struct {
	done chan struct{} // closed when it has been reaped
}

// adopt waits for cmd in the background; the goroutine ends with the guest.
func (d *Driver) adopt(id string, wait func() error) {
	c := &child{done: make(chan struct{})}
	d.mu.Lock()
	if d.children == nil {
		d.children = map[string]*child{}
	}
	d.children[id] = c
	d.mu.Unlock()
	go func() {
		err := wait()
		d.mu.Lock()
		if d.children[id] == c {
			delete(d.children, id)
		}
		d.mu.Unlock()
		d.log().Debug("guest ended", "machine", id, "err", err)
		close(c.done)
	}()
}

// reaped waits, shortly, until this process has reaped the guest of id.
func (d *Driver) reaped(id string) {
	d.mu.Lock()
	c := d.children[id]
	d.mu.Unlock()
	if c == nil {
		return
	}
	select {
	case <-c.done:
	case <-time.After(5 * time.Second):
	}
}

var errWouldNotDie = fmt.Errorf("its guest does not end even when killed; it waits in the kernel")
