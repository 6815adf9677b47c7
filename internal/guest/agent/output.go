package agent

import (
	"errors"
	"io"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// drainMax bounds what is read from a stream after its command has ended. A
// pipe holds at most 1 MiB, so a command's own output always fits; what a
// process left behind writes for ever does not.
const drainMax = 1 << 20

// An output is the reading end of a command's stdout, stderr or terminal.
type output struct {
	f       *os.File
	ending  atomic.Bool
	drained int
}

func newOutput(f *os.File) *output { return &output{f: f} }

// finish makes Read return what is there already and then io.EOF.
func (o *output) finish() {
	o.ending.Store(true)
	_ = o.f.SetReadDeadline(time.Unix(1, 0)) // wake a Read that waits
}

func (o *output) Read(p []byte) (int, error) {
	if !o.ending.Load() {
		n, err := o.f.Read(p)
		switch {
		case err == nil:
			return n, nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			// finish was called; go on below
		default:
			// A terminal whose last process has gone reads EIO.
			return n, io.EOF
		}
	}
	if o.drained >= drainMax {
		return 0, io.EOF
	}
	rc, err := o.f.SyscallConn()
	if err != nil {
		return 0, io.EOF
	}
	n := 0
	err = rc.Control(func(fd uintptr) {
		for {
			n, err = unix.Read(int(fd), p)
			if !errors.Is(err, syscall.EINTR) {
				return
			}
		}
	})
	if err != nil || n <= 0 {
		return 0, io.EOF
	}
	o.drained += n
	return n, nil
}
