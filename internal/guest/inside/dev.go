package inside

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// nodes are the devices of every machine. A user namespace cannot make device
// nodes, so they are the host's.
var nodes = []string{"null", "zero", "full", "random", "urandom", "tty"}

// OwnDevice reports whether p, a clean path, is or lies in something that every
// machine has in its /dev.
func OwnDevice(p string) bool {
	name, ok := strings.CutPrefix(p, "/dev/")
	first, _, _ := strings.Cut(name, "/")
	return ok && (slices.Contains(nodes, first) ||
		slices.Contains([]string{"fd", "stdin", "stdout", "stderr", "ptmx", "pts", "shm", "mqueue", "console"}, first))
}

// cloneNodes takes the host's nodes before its root goes out of sight.
func cloneNodes() ([]int, error) {
	fds := make([]int, len(nodes))
	for i, name := range nodes {
		fd, err := unix.OpenTree(unix.AT_FDCWD, "/dev/"+name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			return nil, fmt.Errorf("taking /dev/%s: %w", name, err)
		}
		fds[i] = fd
	}
	return fds, nil
}

// devices makes /dev.
func devices(fds []int, oneID bool) error {
	const plain = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC
	dev, err := filesystem("tmpfs", plain, "mode", "0755", "size", "65536")
	if err != nil {
		return fmt.Errorf("making /dev: %w", err)
	}
	if err := attach(dev, "/dev"); err != nil {
		return err
	}
	for i, name := range nodes {
		p := "/dev/" + name
		if err := ensureFile(p); err != nil {
			return err
		}
		if err := over(fds[i], p); err != nil {
			return err
		}
		unix.Close(fds[i])
	}
	for link, target := range map[string]string{
		"/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0", "/dev/stdout": "/proc/self/fd/1",
		"/dev/stderr": "/proc/self/fd/2", "/dev/ptmx": "pts/ptmx",
	} {
		if err := os.Symlink(target, link); err != nil {
			return err
		}
	}
	options := []string{"newinstance", "", "ptmxmode", "0666", "mode", "0620"}
	if !oneID {
		options = append(options, "gid", "5") // tty, in every distribution
	}
	pts, err := filesystem("devpts", plain, options...)
	if err != nil {
		return fmt.Errorf("making /dev/pts: %w", err)
	}
	if err := attach(pts, "/dev/pts"); err != nil {
		return err
	}
	shm, err := filesystem("tmpfs", plain|unix.MOUNT_ATTR_NODEV, "mode", "1777", "size", "67108864")
	if err != nil {
		return fmt.Errorf("making /dev/shm: %w", err)
	}
	if err := attach(shm, "/dev/shm"); err != nil {
		return err
	}
	// A kernel without message queues is no reason to refuse a machine.
	if mq, err := filesystem("mqueue", plain|unix.MOUNT_ATTR_NODEV); err == nil {
		return attach(mq, "/dev/mqueue")
	}
	return nil
}
