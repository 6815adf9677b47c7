package loopfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/kiterr"
)

const controlDevice = "/dev/loop-control"

// loopMajor is the number of the kernel's loop driver.
const loopMajor = 7

// attach returns the loop device of file: the one that it has, since two would
// be two filesystems on the same bytes, or a free one. The device goes when
// nobody has it open or mounted any more. Only one process may attach a given
// file at a time.
func attach(file string) (*os.File, error) {
	backing, err := os.OpenFile(file, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer backing.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(backing.Fd()), &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errors.New("not an ordinary file")
	}
	dev, err := attached(st)
	if dev != nil || err != nil {
		return dev, err
	}
	control, err := os.OpenFile(controlDevice, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	// Between asking for a free device and taking it somebody else may.
	for range 100 {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, os.NewSyscallError("LOOP_CTL_GET_FREE", err)
		}
		dev, err := open(n)
		if err != nil {
			return nil, err
		}
		c := unix.LoopConfig{Fd: uint32(backing.Fd())}
		c.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
		copy(c.Info.File_name[:len(c.Info.File_name)-1], "kitbox")
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &c)
		if err == nil {
			return dev, nil
		}
		dev.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, os.NewSyscallError("LOOP_CONFIGURE", err)
		}
	}
	return nil, fmt.Errorf("other processes take every free one: %w", kiterr.ErrUnavailable)
}

// attached finds the device of the file that st describes; nil when it has none.
// While the caller has it open it is not cleared.
func attached(st unix.Stat_t) (*os.File, error) {
	bound, err := filepath.Glob("/sys/block/loop*/loop")
	if err != nil {
		return nil, err
	}
	for _, b := range bound {
		n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(filepath.Dir(b)), "loop"))
		if err != nil {
			continue
		}
		dev, err := open(n)
		if err != nil {
			continue // gone since
		}
		i, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
		if err == nil && i.Inode == st.Ino && i.Device == st.Dev && i.Offset == 0 {
			return dev, nil
		}
		dev.Close()
	}
	return nil, nil
}

// open opens loop device n. Where no service fills /dev, a device beyond those
// that were there at first has no name; it gets one for as long as this takes.
func open(n int) (*os.File, error) {
	name := "/dev/loop" + strconv.Itoa(n)
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	own := fmt.Sprintf("/dev/.kitbox-loop%d-%d", n, os.Getpid())
	if err := unix.Mknod(own, unix.S_IFBLK|0o600, int(unix.Mkdev(loopMajor, uint32(n)))); err != nil && err != unix.EEXIST {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	defer os.Remove(own)
	return os.OpenFile(own, os.O_RDWR, 0)
}
