package proxy

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// How many bytes are moved at a time, and fit into a pipe.
const (
	most = 1 << 20  // what the kernel lets an ordinary user ask for
	some = 64 << 10 // what it gives unasked

	// maxBig bounds how many pipes hold most. What is in a pipe counts for nobody, and
	// stays there while its reader takes nothing: thousands of flows could else make
	// the host hold gigabytes. It is also what the kernel allows an ordinary user.
	maxBig = 64
)

// errNoPipe says that bytes have to be moved in another way.
var errNoPipe = errors.New("no pipe")

// splice moves bytes from the socket of src to that of dst until src has no more, or
// there is an error; that is errNoPipe only while none is on its way. They never enter
// the process, but for those that are marked as urgent: the kernel moves none past such
// a mark. Package net does this too, but tells nobody whether it is at it, and stays
// before the first mark.
func (p *Proxy) splice(dst, src *side) (err error) {
	var pp *pipe // while there is something to move
	defer func() {
		if pp != nil {
			p.pipes.discard(pp) // something may be in it
		}
	}()
	for {
		var n int
		var urgent [1]byte
		marked := false
		failed := src.raw.Read(func(fd uintptr) bool {
			for {
				if pp == nil {
					if pp = p.pipes.get(); pp == nil {
						err = errNoPipe
						return true
					}
				}
				n, err = move(int(fd), pp.w, pp.size)
				if !errors.Is(err, unix.EINTR) {
					break
				}
			}
			nothing := errors.Is(err, unix.EAGAIN)
			if !nothing && (err != nil || n > 0) {
				return true
			}
			// There is nothing, or it ends, or there is such a mark.
			p.pipes.put(pp)
			pp = nil
			if marked = atMark(int(fd)); marked {
				n, err = unix.Read(int(fd), urgent[:])
				nothing = errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR)
			}
			return !nothing
		})
		switch {
		case failed != nil:
			return failed
		case errors.Is(err, errNoPipe):
			return err
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
			return errNoPipe
		case err != nil:
			return os.NewSyscallError("splice", err)
		case n == 0:
			return nil
		case marked:
			if _, err := dst.Write(urgent[:]); err != nil {
				return err
			}
			continue
		}
		for n > 0 {
			m, err := dst.out(func(fd int) (int, error) { return move(pp.r, fd, n) })
			if err != nil {
				return err
			}
			n -= m
		}
	}
}

// inline lets a byte that is marked as urgent be read in its place, where it was meant:
// the mark is lost, the byte is not.
func (s *side) inline() {
	if s.raw != nil {
		_ = s.raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_OOBINLINE, 1) })
	}
}

// atMark reports whether the next byte to be read is one that is marked as urgent.
func atMark(fd int) bool {
	at, err := unix.IoctlGetInt(fd, unix.SIOCATMARK)
	return err == nil && at != 0
}

// move moves up to n bytes and waits for nothing.
func move(from, to, n int) (int, error) {
	m, err := unix.Splice(from, nil, to, nil, n, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
	return int(m), err
}

// A pipe is where bytes are on their way from one socket to another.
type pipe struct {
	r, w int
	size int // how many it is given at a time
}

// pipes are empty ones to be used again. Its methods can be called concurrently.
type pipes struct {
	mu     sync.Mutex
	free   []*pipe // guarded by mu
	big    int     // how many there are for more than some; guarded by mu
	closed bool    // guarded by mu
}

// maxFree bounds how many pipes are kept while nothing moves.
const maxFree = 16

// get returns a pipe that is empty, or nil if none can be had.
func (ps *pipes) get() *pipe {
	ps.mu.Lock()
	if n := len(ps.free); n > 0 {
		p := ps.free[n-1]
		ps.free = ps.free[:n-1]
		ps.mu.Unlock()
		return p
	}
	p := &pipe{size: some}
	if ps.big < maxBig {
		ps.big++
		p.size = most
	}
	ps.mu.Unlock()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		ps.forget(p)
		return nil
	}
	p.r, p.w = fds[0], fds[1]
	if p.size > some {
		// That can be past the bounds of an ordinary user.
		if _, err := unix.FcntlInt(uintptr(p.w), unix.F_SETPIPE_SZ, p.size); err != nil {
			ps.forget(p)
			p.size = some
		}
	}
	return p
}

// forget counts a pipe out.
func (ps *pipes) forget(p *pipe) {
	if p.size > some {
		ps.mu.Lock()
		ps.big--
		ps.mu.Unlock()
	}
}

// discard gives up a pipe and what is in it.
func (ps *pipes) discard(p *pipe) {
	ps.forget(p)
	unix.Close(p.r)
	unix.Close(p.w)
}

// put takes back a pipe that is empty.
func (ps *pipes) put(p *pipe) {
	ps.mu.Lock()
	keep := !ps.closed && len(ps.free) < maxFree
	if keep {
		ps.free = append(ps.free, p)
	}
	ps.mu.Unlock()
	if !keep {
		ps.discard(p)
	}
}

// close closes those that are free, and those that are put back later.
func (ps *pipes) close() {
	ps.mu.Lock()
	ps.closed = true
	free := ps.free
	ps.free = nil
	ps.mu.Unlock()
	for _, p := range free {
		ps.discard(p)
	}
}
