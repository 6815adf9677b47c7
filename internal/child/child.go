// Package child starts processes that outlive a call or run in namespaces of
// their own, for programs that start few and are waited for.
//
// Before a program's first os.StartProcess, package os tries with a process of
// its own whether the kernel can hand out handles for processes. That costs half
// a millisecond, where starting a process costs a third. Nobody here asks for
// such a handle that way.
package child

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"
)

// A Process is a child of this process. Its methods can be called concurrently.
type Process struct {
	PID int

	once sync.Once
	end  error

	mu     sync.Mutex
	reaped bool // guarded by mu: the number may be another process's
}

// Start starts the program at path. argv has its name first; env is its whole
// environment; dir is where it starts; files are its descriptors from 0 on. sys
// may be nil. The child is a zombie when it ends, until somebody waits for it.
func Start(path string, argv, env []string, dir string, files []*os.File, sys *syscall.SysProcAttr) (*Process, error) {
	a := &syscall.ProcAttr{Dir: dir, Env: env, Sys: sys, Files: make([]uintptr, len(files))}
	for i, f := range files {
		a.Files[i] = f.Fd()
	}
	pid, _, err := syscall.StartProcess(path, argv, a)
	runtime.KeepAlive(files)
	if err != nil {
		return nil, &os.PathError{Op: "fork/exec", Path: path, Err: err}
	}
	return &Process{PID: pid}, nil
}

// Wait reaps the process and says how it ended: nil for status 0. It returns the
// same to everybody who calls it.
func (p *Process) Wait() error {
	p.once.Do(func() {
		// Waiting and reaping are two steps, so that a signal cannot meet
		// another process under the same number between them.
		for {
			if _, _, errno := syscall.Syscall6(syscall.SYS_WAITID, 1 /* P_PID */, uintptr(p.PID), 0, syscall.WEXITED|syscall.WNOWAIT, 0, 0); errno != syscall.EINTR {
				break
			}
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.reaped = true
		var ws syscall.WaitStatus
		for {
			_, err := syscall.Wait4(p.PID, &ws, 0, nil)
			if err == syscall.EINTR {
				continue
			}
			switch {
			case err != nil:
				p.end = os.NewSyscallError("wait", err)
			case ws.Signaled():
				p.end = fmt.Errorf("signal: %v", ws.Signal())
			case ws.ExitStatus() != 0:
				p.end = fmt.Errorf("exit status %d", ws.ExitStatus())
			}
			return
		}
	})
	return p.end
}

// Signal sends s. To a process that was waited for it is [os.ErrProcessDone].
func (p *Process) Signal(s syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return os.ErrProcessDone
	}
	return syscall.Kill(p.PID, s)
}
