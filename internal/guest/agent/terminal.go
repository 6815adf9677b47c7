package agent

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/guest/protocol"
)

// openTerminal opens a new terminal of the machine's own. It is opened in here
// and not passed in, so that its name exists in /dev/pts.
func openTerminal(uid uint32, s protocol.Size) (master, slave *os.File, err error) {
	m, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, &os.PathError{Op: "open", Path: "/dev/ptmx", Err: err}
	}
	master = os.NewFile(uintptr(m), "terminal")
	if err := unix.IoctlSetPointerInt(m, unix.TIOCSPTLCK, 0); err != nil {
		master.Close()
		return nil, nil, os.NewSyscallError("unlocking the terminal", err)
	}
	// Through the master and not by name: whatever is mounted on /dev/pts,
	// this is its other side.
	p, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(m), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		master.Close()
		return nil, nil, os.NewSyscallError("opening the terminal's other side", errno)
	}
	slave = os.NewFile(p, "terminal")
	// The command may hand its terminal on, or open it again by name.
	_ = unix.Fchown(int(p), int(uid), -1)
	resize(master, s)
	return master, slave, nil
}

// resize sets the size of a terminal; zero means the usual one.
func resize(t *os.File, s protocol.Size) {
	if s.Rows == 0 {
		s.Rows = 24
	}
	if s.Cols == 0 {
		s.Cols = 80
	}
	rc, err := t.SyscallConn()
	if err != nil {
		return
	}
	_ = rc.Control(func(fd uintptr) {
		_ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: s.Rows, Col: s.Cols})
	})
}
