// Package loopfs makes filesystems in files and mounts them attached nowhere, so
// that a directory of a machine holds as much as it was made for and no more.
//
// A mount made here is a descriptor. The loop device below it belongs to the
// mount and the kernel clears it with the last user, so that whatever process
// is killed at whatever instant, no device and no mount is left.
package loopfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/driver/userns"
	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// kind is the filesystem: one that every kernel has, that can shift ids, and
// whose journal brings it back after a power cut without a tool.
const kind = "ext4"

// MinBytes is the smallest filesystem that Make makes; a smaller request gets
// this much.
const MinBytes = 1 << 20

// Unusable says why this process can make or mount no filesystem in a file, in
// one clause; nil means that nothing is known to be missing.
func Unusable() error {
	if !userns.Initial() || os.Geteuid() != 0 {
		return fmt.Errorf("only the system's root can mount a filesystem in a file: %w", kiterr.ErrUnsupported)
	}
	if err := unix.Access(controlDevice, unix.R_OK|unix.W_OK); err != nil {
		return fmt.Errorf("there are no loop devices here (%s: %v): %w", controlDevice, err, kiterr.ErrUnsupported)
	}
	b, err := os.ReadFile("/proc/filesystems")
	if err != nil || !slices.Contains(strings.Fields(string(b)), kind) {
		return fmt.Errorf("the kernel has no %s: %w", kind, kiterr.ErrUnsupported)
	}
	if _, err := maker(); err != nil {
		return err
	}
	return nil
}

// maker finds the program that makes filesystems. Those that are for root are
// not in every root's PATH.
func maker() (string, error) {
	const name = "mkfs." + kind
	if p, err := exec.LookPath(name); err == nil {
		return p, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if p := filepath.Join(dir, name); unix.Access(p, unix.X_OK) == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("%s is not installed (package e2fsprogs): %w", name, kiterr.ErrUnsupported)
}

// A Root says what the top directory of a fresh filesystem is like.
type Root struct {
	UID, GID int
	Mode     uint32 // the twelve permission bits
}

// Make makes file, which must not exist, a filesystem of at most size bytes that
// is empty. The file takes no more of the disk than what is in it. On error
// nothing is left, unless this process is killed.
func Make(ctx context.Context, file string, size int64, r Root) (err error) {
	program, err := maker()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return durable.Explain(file, err)
	}
	defer func() {
		f.Close()
		if err != nil {
			os.Remove(file)
		}
	}()
	// Whole blocks, or the last one is not used.
	size = max(size, MinBytes) &^ 4095
	if err := f.Truncate(size); err != nil {
		return durable.Explain(file, err)
	}
	// What the file does not hold reads as zero, so nothing has to be written
	// there: neither now nor, see options, by the kernel afterwards.
	cmd := exec.CommandContext(ctx, program, "-q", "-F", "-m", "0",
		"-E", fmt.Sprintf("lazy_itable_init=1,lazy_journal_init=1,root_owner=%d:%d", r.UID, r.GID), file)
	cmd.Env = []string{"LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Dir = "/"
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("making a filesystem in %s: %w: %s", file, err, strings.TrimSpace(string(out)))
	}
	if err := finish(file, r); err != nil {
		return err
	}
	return durable.Explain(file, f.Sync())
}

// finish makes a new filesystem empty, which for its tool means one directory,
// and its root as it should be.
func finish(file string, r Root) error {
	m, err := Mount(file)
	if err != nil {
		return err
	}
	defer m.Close()
	at := int(m.Fd())
	if err := unix.Unlinkat(at, "lost+found", unix.AT_REMOVEDIR); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("emptying the filesystem in %s: %w", file, err)
	}
	if err := unix.Fchmodat(at, ".", r.Mode, 0); err != nil {
		return fmt.Errorf("the mode of the filesystem in %s: %w", file, err)
	}
	return nil
}

// Used returns how much of the disk file takes.
func Used(file string) (int64, error) {
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		return 0, err
	}
	return st.Blocks * 512, nil
}

// options of every mount: what is deleted inside is given back to the disk, the
// kernel does not fill what was left out of a sparse file, and a filesystem whose
// disk fails stops being written to.
var options = []string{"discard", "noinit_itable", "errors=remount-ro"}

// Mount returns a mount of the filesystem in file that is attached nowhere.
// Mounting a file again while it is mounted comes to another mount of the same
// filesystem.
func Mount(file string) (*os.File, error) {
	dev, err := attach(file)
	if err != nil {
		return nil, fmt.Errorf("a loop device for %s: %w", file, err)
	}
	defer dev.Close() // the mount has it from then on
	m, err := mount("/proc/self/fd/"+strconv.Itoa(int(dev.Fd())), file)
	if err != nil {
		return nil, fmt.Errorf("mounting the filesystem in %s: %w", file, err)
	}
	return m, nil
}
