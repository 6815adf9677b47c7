// Package owners gives what a machine made in directories of the host's to whom the
// directories belong: files that the machine's user makes are theirs by the mount's id
// map (internal/driver/idmap), and those of its other users, root above all, cannot be,
// since no two ids of a machine can be one outside. They are given away afterwards.
//
// It is done from outside, on a tree that whoever is inside may be changing. A file is
// only ever given to the directory's owner, and only one that has an id of the machine.
package owners

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/plan"
)

// maxDepth bounds how deep directories are looked into, each of which takes a
// descriptor: whoever is inside can nest them without end.
const maxDepth = 512

// batch is how many names of a directory are held at once.
const batch = 256

// nobody is what the kernel shows of an id that a user namespace does not map.
const nobody = 65534

// Return gives the directories' owners what m has made in the binds that it may write
// to, a mode that sets ids aside, which the kernel clears. With an identity map, where the ids
// of a machine are not its alone, it takes only what was made or changed since. The
// error says what could not be given, after all else was. It can be called while m
// runs, and concurrently.
func Return(ctx context.Context, m plan.Machine, since time.Time) error {
	var errs []error
	for _, b := range m.Mounts {
		if b.Kind != plan.MountBind || b.Owner == nil || b.ReadOnly {
			continue
		}
		t := &tree{ctx: ctx, owner: *b.Owner, ids: m.IDMap, since: since}
		if m.IDMap.IsIdentity() && (t.owner.HostUID == nobody || t.owner.HostGID == nobody) {
			continue // somebody whom this namespace does not know
		}
		if err := t.root(b.Source); err != nil {
			errs = append(errs, fmt.Errorf("owner of what was made in %s: %w", b.Source, err))
		}
	}
	return errors.Join(errs...)
}

// A tree is one directory, or file, of the host's.
type tree struct {
	ctx   context.Context
	owner plan.OwnerMap
	ids   plan.IDMap
	since time.Time
}

func (t *tree) root(source string) error {
	fd, err := unix.Openat2(unix.AT_FDCWD, source, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), source)
	defer f.Close()
	dir, err := t.give(f)
	if err != nil || !dir {
		return err
	}
	return t.below(f, 0)
}

// below goes through the directory at, which is a path only.
func (t *tree) below(at *os.File, depth int) error {
	if depth == maxDepth {
		return fmt.Errorf("%s is more than %d directories deep, and what is in it was left", at.Name(), maxDepth)
	}
	fd, err := unix.Openat(int(at.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOATIME, 0)
	if err == unix.EPERM {
		fd, err = unix.Openat(int(at.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return ignoreGone(err)
	}
	d := os.NewFile(uintptr(fd), at.Name())
	defer d.Close()
	var errs []error
	for {
		if err := t.ctx.Err(); err != nil {
			return err
		}
		entries, err := d.ReadDir(batch)
		for _, e := range entries {
			if err := t.entry(d, e, depth); err != nil && len(errs) < 3 {
				errs = append(errs, err)
			}
		}
		if err != nil {
			if err != io.EOF {
				errs = append(errs, ignoreGone(err))
			}
			return errors.Join(errs...)
		}
	}
}

func (t *tree) entry(d *os.File, e os.DirEntry, depth int) error {
	if !e.IsDir() {
		var st unix.Stat_t
		if err := unix.Fstatat(int(d.Fd()), e.Name(), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return ignoreGone(err)
		}
		if uid, gid := t.wanted(&st); uid < 0 && gid < 0 {
			return nil
		}
	}
	fd, err := unix.Openat(int(d.Fd()), e.Name(), unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return ignoreGone(err)
	}
	f := os.NewFile(uintptr(fd), d.Name()+"/"+e.Name())
	defer f.Close()
	dir, err := t.give(f)
	if err != nil || !dir {
		return err
	}
	return t.below(f, depth+1)
}

// give gives f away if it is to be. What is judged is what is given: names lead
// elsewhere by then, as somebody inside likes. dir is whether it is a directory.
func (t *tree) give(f *os.File) (dir bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return false, err
	}
	dir = st.Mode&unix.S_IFMT == unix.S_IFDIR
	uid, gid := t.wanted(&st)
	if uid < 0 && gid < 0 {
		return dir, nil
	}
	if err := unix.Fchownat(int(f.Fd()), "", uid, gid, unix.AT_EMPTY_PATH); err != nil {
		return dir, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return dir, nil
}

// wanted is whose a file is to be; -1: as it is.
func (t *tree) wanted(st *unix.Stat_t) (uid, gid int) {
	uid, gid = -1, -1
	if t.ids.IsIdentity() && time.Unix(st.Ctim.Unix()).Before(t.since) {
		return uid, gid
	}
	if t.owner.HostUID != st.Uid && t.machines(st.Uid) {
		uid = int(t.owner.HostUID)
	}
	if t.owner.HostGID != st.Gid && t.machines(st.Gid) {
		gid = int(t.owner.HostGID)
	}
	return uid, gid
}

// machines reports whether an id of the host's is the machine's. Without a shift it is
// one of the ids that the user who runs kitbox has besides their own, which is 0.
func (t *tree) machines(id uint32) bool {
	if t.ids.IsIdentity() {
		return id != 0 && id != nobody
	}
	return id >= t.ids.Base && id-t.ids.Base < t.ids.Size
}

// ignoreGone is err unless it says that a name is gone, or is another thing by now.
func ignoreGone(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil
	}
	return err
}
