package store

import "golang.org/x/sys/unix"

// access reports whether this process can make files in dir.
func access(dir string) error {
	return unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
}
