package agent

import (
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/kitbox-dev/kitbox/internal/guest/protocol"
)

// A reaper waits for every child, those it started and those that the kernel
// hands to PID 1, and gives the status of the former to whoever asks.
type reaper struct {
	// mu keeps a child from being reaped between its start and its entry
	// into wanted, and pids from being reused while a family is collected.
	mu     sync.Mutex
	wanted map[int]chan protocol.Exit // guarded by mu

	gone sync.Cond // broadcast after each round of reaping; uses mu
	none bool      // guarded by mu: the last round found no child at all
}

// start begins reaping. It also takes every signal away from its default: the
// kernel shields PID 1 from signals of its own machine only as long as it has
// no handler for them, and the Go runtime has handlers for all of them.
func (r *reaper) start() {
	r.wanted = map[int]chan protocol.Exit{}
	r.gone.L = &r.mu
	all := make(chan os.Signal, 1)
	child := make(chan os.Signal, 1)
	signal.Notify(all)
	signal.Notify(child, syscall.SIGCHLD)
	go func() {
		for {
			select {
			case <-child:
				r.round()
			case <-all: // ignored
			}
		}
	}()
}

// round reaps all children that have ended.
func (r *reaper) round() {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.gone.Broadcast()
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		r.none = err == syscall.ECHILD
		if err != nil || pid <= 0 {
			return
		}
		ch, ok := r.wanted[pid]
		if !ok {
			continue
		}
		delete(r.wanted, pid)
		ch <- exitOf(ws) // has room for one
	}
}

func exitOf(ws syscall.WaitStatus) protocol.Exit {
	if ws.Signaled() {
		return protocol.Exit{Code: 128 + int(ws.Signal()), Signal: int(ws.Signal())}
	}
	return protocol.Exit{Code: ws.ExitStatus()}
}

// spawn starts a child and returns its pid and where its status will appear.
func (r *reaper) spawn(path string, argv []string, attr *syscall.ProcAttr) (int, <-chan protocol.Exit, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := syscall.ForkExec(path, argv, attr)
	if err != nil {
		return 0, nil, err
	}
	ch := make(chan protocol.Exit, 1)
	r.wanted[pid] = ch
	r.none = false
	return pid, ch, nil
}

// running reports whether the child that was given done has not been reaped.
// A pid alone could be that of a later child. The caller holds r.mu.
func (r *reaper) running(pid int, done <-chan protocol.Exit) bool {
	ch, ok := r.wanted[pid]
	return ok && ch == done
}
