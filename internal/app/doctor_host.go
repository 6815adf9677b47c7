package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/driver/idmap"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/programs"
	"github.com/kitbox-dev/kitbox/internal/store"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// appArmor looks for the restriction of newer Ubuntu, which lets an ordinary user
// make a user namespace and then takes its capabilities away.
func appArmor(proc string, root bool) sandbox.Finding {
	f := sandbox.Finding{Name: "AppArmor", OK: true, Required: !root, Detail: "does not restrict user namespaces"}
	b, err := os.ReadFile(proc + "/sys/kernel/apparmor_restrict_unprivileged_userns")
	if err != nil || strings.TrimSpace(string(b)) != "1" {
		return f
	}
	if root {
		f.Detail = "restricts user namespaces of ordinary users, which does not concern root"
		return f
	}
	if label, err := os.ReadFile(proc + "/self/attr/current"); err == nil && !strings.HasPrefix(string(label), "unconfined") {
		f.Detail = "restricts user namespaces; this program runs under the profile " + strings.TrimSpace(strings.Trim(string(label), "\x00\n"))
		return f
	}
	exe, _ := os.Executable()
	f.OK, f.Detail = false, "restricts user namespaces of ordinary users"
	f.Remedy = fmt.Sprintf("give kitbox a profile that allows them, in /etc/apparmor.d/kitbox: 'abi <abi/4.0>, profile kitbox %s flags=(unconfined) { userns, }', and load it with apparmor_parser -r; or turn the restriction off: sysctl kernel.apparmor_restrict_unprivileged_userns=0", exe)
	return f
}

// home is where state is kept, or the nearest directory above it that exists.
func home() (string, error) {
	dir, err := store.DefaultDir(os.Getenv)
	if err != nil {
		return "", err
	}
	for {
		if st, err := os.Stat(dir); err == nil && st.IsDir() {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return dir, nil
		}
		dir = filepath.Dir(dir)
	}
}

// guarded asks whether the home is the user's alone and can be written to, as every
// command will.
func guarded() sandbox.Finding {
	f := sandbox.Finding{Name: "home", Required: true, Remedy: "set KITBOX_HOME to a directory of your own"}
	dir, err := store.DefaultDir(os.Getenv)
	if err != nil {
		f.Detail = err.Error()
		return f
	}
	fault, remedy, err := store.Exposed(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.OK, f.Detail = true, dir+" is made when it is needed"
	case err != nil:
		f.Detail = fmt.Sprintf("%s: %v", dir, err)
	case fault != "":
		f.Detail, f.Remedy = fault, remedy
	default:
		f.OK, f.Detail = true, "nobody else can change "+dir
	}
	if !f.OK {
		return f
	}
	at, err := home()
	if st, serr := os.Stat(dir); serr == nil && !st.IsDir() {
		at, err = dir, unix.ENOTDIR // above which home would look
	}
	if err == nil {
		err = unix.Faccessat(unix.AT_FDCWD, at, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
	}
	if err != nil {
		f.OK, f.Detail = false, fmt.Sprintf("%s cannot be written to: %v", at, err)
		f.Remedy = "make it writable for you, or set KITBOX_HOME to a directory that is"
	}
	return f
}

// idmapped tries a mount that translates owners, on the file system of the state. It is
// about root's sandboxes: others have their ids arranged instead.
func idmapped(guest string, try func(guest, dir string) error) sandbox.Finding {
	f := sandbox.Finding{Name: "idmapped mounts", Required: true, Remedy: "keep the state on ext4, xfs, btrfs or tmpfs: set KITBOX_HOME to a directory there"}
	dir, err := home()
	if err == nil && guest == "" {
		err = errors.New("not tried, since kit-guest is missing")
	}
	if err == nil {
		err = try(guest, dir)
	}
	if err != nil {
		f.Detail = err.Error()
		return f
	}
	f.OK, f.Detail = true, "one of "+dir+" was made"
	return f
}

func tryIDMap(guest, dir string) error {
	ns, err := idmap.Shift(guest, plan.IDMap{Base: 1 << 20, Size: 65536})
	if err != nil {
		return err
	}
	defer ns.Close()
	m, err := idmap.Detached(dir, unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())})
	if err != nil {
		return err
	}
	return m.Close()
}

// Room for a base image, a build and a few sandboxes.
const (
	wantBytes  = 5 << 30
	wantInodes = 200_000
)

// disk asks whether there is room for state.
func disk(statfs func(dir string, st *unix.Statfs_t) error) sandbox.Finding {
	f := sandbox.Finding{Name: "disk", Remedy: "make room: kitbox prune and kitbox image prune delete what nothing needs; or set KITBOX_HOME to a larger disk"}
	dir, err := home()
	var st unix.Statfs_t
	if err == nil {
		err = statfs(dir, &st)
	}
	if err != nil {
		f.Detail = err.Error()
		return f
	}
	free := st.Bavail * uint64(st.Bsize)
	f.Detail = fmt.Sprintf("%.1f GiB are free in %s", float64(free)/(1<<30), dir)
	f.OK = free >= wantBytes
	if st.Files > 0 && st.Ffree < wantInodes {
		f.OK = false
		f.Detail += fmt.Sprintf(", and %d inodes", st.Ffree)
	}
	if st.Flags&unix.ST_RDONLY != 0 {
		f.OK, f.Detail = false, dir+" is mounted read-only"
	}
	return f
}

// oldAge is how old this program can be and nobody has to wonder about the clock.
const oldAge = 5 * 365 * 24 * time.Hour

// clock asks whether certificates can be judged by this machine's time. adjtimex is how
// the kernel says who keeps it.
func clock(now time.Time, adjtimex func(*unix.Timex) (int, error)) sandbox.Finding {
	f := sandbox.Finding{Name: "clock", Remedy: "set it: timedatectl set-ntp true, or ntpdate; certificates are judged by it"}
	f.Detail = now.Format(time.RFC3339)
	// Nothing of this program is older.
	built := time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)
	if exe, err := os.Executable(); err == nil {
		if st, err := os.Stat(exe); err == nil && st.ModTime().After(built) && st.ModTime().Year() < 2100 {
			built = st.ModTime()
		}
	}
	if now.Before(built.Add(-24 * time.Hour)) {
		f.Detail += ", which is before this program was made"
		return f
	}
	if now.After(built.Add(oldAge)) {
		f.Detail += ", which is years after this program was made"
		f.Remedy += "; or get a newer kitbox if it is right"
		return f
	}
	var t unix.Timex
	switch state, err := adjtimex(&t); {
	case err != nil:
		f.Detail += fmt.Sprintf("; whether it is kept by a time server cannot be asked: %v", err)
	case state == unix.TIME_ERROR || t.Status&unix.STA_UNSYNC != 0:
		f.Detail += "; the kernel does not know of it being kept by a time server"
	default:
		f.OK = true
		f.Detail += ", kept by a time server"
	}
	return f
}

// watches asks whether masks can be kept up in large directories.
func watches(file string) sandbox.Finding {
	f := sandbox.Finding{Name: "file watches", Remedy: "raise the sysctl fs.inotify.max_user_watches to 524288: files that appear in directories beyond it are not masked until the next start"}
	b, err := os.ReadFile(file)
	if err != nil {
		f.Detail = err.Error()
		return f
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	f.Detail = fmt.Sprintf("%d directories can be watched", n)
	f.OK = err == nil && n >= 65536
	return f
}

// hostFindings are about the machine rather than about what kitbox does on it.
func (d doctor) hostFindings(context.Context) []sandbox.Finding {
	root := os.Geteuid() == 0
	fs := []sandbox.Finding{appArmor("/proc", root), guarded(), disk(unix.Statfs), clock(time.Now(), unix.Adjtimex),
		watches("/proc/sys/fs/inotify/max_user_watches"),
		tool("git", "clones workspaces (--clone): apt-get install git")}
	if root {
		fs = append(fs, idmapped(programs.Find(d.libexec, "kit-guest"), tryIDMap))
	}
	return fs
}
