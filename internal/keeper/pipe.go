package keeper

import (
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A pipe takes both streams of a hook in the order they were written, as a
// terminal would show them. A process that the hook leaves behind may hold it
// open: its output is taken and dropped, so that it neither blocks nor dies of
// it, and the end of the machine is the end of the pipe.
type pipe struct {
	w *os.File // given to the hook

	r    *os.File
	done chan struct{} // closed at the end of the pipe

	mu  sync.Mutex
	out io.Writer // guarded by mu; nil once the hook is over
}

func newPipe(out io.Writer) (*pipe, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("pipe2", err)
	}
	// Only our end: a command expects a stdout that blocks.
	if err := unix.SetNonblock(fds[0], true); err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, err
	}
	p := &pipe{r: os.NewFile(uintptr(fds[0]), "hook"), w: os.NewFile(uintptr(fds[1]), "hook"), out: out, done: make(chan struct{})}
	go p.copy()
	return p, nil
}

func (p *pipe) copy() {
	defer close(p.done)
	defer p.r.Close()
	b := make([]byte, 8<<10)
	for {
		n, err := p.r.Read(b)
		p.mu.Lock()
		if p.out != nil {
			_, _ = p.out.Write(b[:n])
		}
		p.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// settleOutput is how long a pipe that somebody else holds open is looked at for
// what the hook itself wrote last.
const settleOutput = time.Second

// finish returns when out has all that was written before.
func (p *pipe) finish() {
	p.w.Close()
	deadline := time.Now().Add(settleOutput)
	for quiet := 0; quiet < 2 && time.Now().Before(deadline); {
		select {
		case <-p.done:
			quiet = 2
		case <-time.After(2 * time.Millisecond):
			if p.empty() {
				quiet++
			} else {
				quiet = 0
			}
		}
	}
	p.mu.Lock()
	p.out = nil
	p.mu.Unlock()
}

// empty reports whether nothing waits to be read.
func (p *pipe) empty() bool {
	rc, err := p.r.SyscallConn()
	if err != nil {
		return true
	}
	n := 0
	if rc.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }) != nil || err != nil {
		return true
	}
	return n == 0
}
