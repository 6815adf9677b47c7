package loopfs

import (
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The commands of fsconfig(2).
const (
	fsconfigSetFlag   = 0
	fsconfigSetString = 1
	fsconfigCmdCreate = 6

	fsopenCloexec  = 1
	fsmountCloexec = 1
)

// mount mounts the device at source by the calls that leave it attached nowhere.
// name is what the file is called.
func mount(source, name string) (*os.File, error) {
	fstype, err := unix.BytePtrFromString(kind)
	if err != nil {
		return nil, err
	}
	c, _, e := unix.Syscall(unix.SYS_FSOPEN, uintptr(unsafe.Pointer(fstype)), fsopenCloexec, 0)
	if e != 0 {
		return nil, os.NewSyscallError("fsopen", e)
	}
	context := os.NewFile(c, "fsopen")
	defer context.Close()
	if err := configure(context, fsconfigSetString, "source", source); err != nil {
		return nil, err
	}
	for _, o := range options {
		key, value, ok := strings.Cut(o, "=")
		cmd := fsconfigSetFlag
		if ok {
			cmd = fsconfigSetString
		}
		if err := configure(context, cmd, key, value); err != nil {
			return nil, err
		}
	}
	if err := configure(context, fsconfigCmdCreate, "", ""); err != nil {
		return nil, err
	}
	m, _, e := unix.Syscall(unix.SYS_FSMOUNT, context.Fd(), fsmountCloexec, 0)
	if e != 0 {
		return nil, os.NewSyscallError("fsmount", e)
	}
	return os.NewFile(m, name), nil
}

// configure sets one parameter; an empty key or value is none.
func configure(context *os.File, cmd int, key, value string) error {
	var k, v *byte
	var err error
	if key != "" {
		if k, err = unix.BytePtrFromString(key); err != nil {
			return err
		}
	}
	if value != "" {
		if v, err = unix.BytePtrFromString(value); err != nil {
			return err
		}
	}
	_, _, e := unix.Syscall6(unix.SYS_FSCONFIG, context.Fd(), uintptr(cmd), uintptr(unsafe.Pointer(k)), uintptr(unsafe.Pointer(v)), 0, 0)
	if e == 0 {
		return nil
	}
	if key != "" {
		return &os.PathError{Op: "fsconfig", Path: key, Err: e}
	}
	return os.NewSyscallError("fsconfig", e)
}
