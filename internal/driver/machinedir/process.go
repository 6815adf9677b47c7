package machinedir

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

// A Process is a handle on a process that no later one with its pid can be
// mistaken for.
type Process struct {
	PID int
	f   *os.File // a pidfd
}

// FindProcess opens pid if it still is the process that started at start ticks.
func FindProcess(pid int, start uint64) (*Process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	p := &Process{pid, os.NewFile(uintptr(fd), "pidfd")}
	// After the handle is open: what is read now belongs to it, or it ended.
	got, err := StartTicks(pid)
	if err != nil || got != start || p.Ended() {
		p.Close()
		return nil, os.ErrProcessDone
	}
	return p, nil
}

// Close gives the handle up; the process goes on.
func (p *Process) Close() { p.f.Close() }

// Ended reports whether the process has ended; a zombie has.
func (p *Process) Ended() bool {
	fds := []unix.PollFd{{Fd: int32(p.f.Fd()), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1
}

// Kill sends SIGKILL. A process that has ended already is no error.
func (p *Process) Kill() error {
	err := unix.PidfdSendSignal(int(p.f.Fd()), unix.SIGKILL, nil, 0)
	if err == unix.ESRCH {
		return nil
	}
	return err
}

// Wait waits for the end of the process or of ctx.
func (p *Process) Wait(ctx context.Context) error {
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
func (p *Process) poll(ctx context.Context, d time.Duration) bool {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		time.Sleep(min(d, 10*time.Millisecond))
		return p.Ended()
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

// StartTicks reads when a process started.
func StartTicks(pid int) (uint64, error) {
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

// Children are the guests that one driver of this process started, by machine,
// so that none of them stays behind as a zombie. The zero value is ready.
type Children struct {
	mu     sync.Mutex
	reaped map[string]chan struct{} // guarded by mu; closed when reaped
}

// Adopt calls wait, which reaps a guest, in the background; the goroutine ends
// with the guest. ended, if not nil, is called then.
func (c *Children) Adopt(id string, wait func() error, ended func(error)) {
	done := make(chan struct{})
	c.mu.Lock()
	if c.reaped == nil {
		c.reaped = map[string]chan struct{}{}
	}
	c.reaped[id] = done
	c.mu.Unlock()
	go func() {
		err := wait()
		c.mu.Lock()
		if c.reaped[id] == done {
			delete(c.reaped, id)
		}
		c.mu.Unlock()
		close(done)
		if ended != nil {
			ended(err)
		}
	}()
}

// Reaped waits, for some seconds, until the guest of id has been reaped if it
// is a child of this process. It has ended already.
func (c *Children) Reaped(id string) {
	c.mu.Lock()
	done := c.reaped[id]
	c.mu.Unlock()
	if done == nil {
		return
	}
	select {
	case <-done:
	case <-time.After(5 * time.Second):
	}
}

// FirstToGo keeps a machine from being spared when memory runs out. Processes
// inherit how far down they may set their score, which is all the way below a
// login or a service that the system protects: a machine under one could have
// the kernel end everything else first. Written by root, a score is also the new
// floor. An ordinary user's processes were never that low, and writing fails.
func FirstToGo(pid int) {
	file := fmt.Sprintf("/proc/%d/oom_score_adj", pid)
	b, err := os.ReadFile(file)
	if err != nil {
		return
	}
	score, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return
	}
	_ = os.WriteFile(file, []byte(strconv.Itoa(max(score, 0))), 0)
}
