// Package rootless gives an ordinary user a user namespace to be root in, so
// that machines can be made without the system's root.
//
// There is one such namespace per directory, shared by all processes that use
// it: only a process of the same namespace can touch what another one made.
// An anchor process keeps it while anybody needs it, which is known by locks
// on a file, and ends with the last of them.
package rootless

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/driver/userns"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// LifeVariable names the descriptor that keeps the anchor alive. Processes
// that are started from inside inherit both; one that gets the descriptor of
// [Life] under another number gets that number in this variable.
const LifeVariable = "KITBOX_ROOTLESS_FD"

// dirVariable carries the working directory, which entering a mount namespace
// resets.
const dirVariable = "KITBOX_ROOTLESS_WD"

// An Entry is a way into the user namespace of a directory.
type Entry struct {
	// Dir holds the namespace's files; it is made when missing. Required.
	Dir string

	// GuestPath is the program kit-guest, which the anchor runs. Required.
	GuestPath string

	// Timeout bounds waiting for other processes. Zero means 10 seconds.
	Timeout time.Duration
}

// Inside reports whether this process is root already, of the system or of a
// user namespace, so that there is nothing to enter.
func Inside() bool { return os.Geteuid() == 0 }

// Enter executes argv, a path and its arguments, as root of the namespace in
// place of this process, and so returns only on error. Standard streams and
// environment stay as they are, and so does the network namespace; the program
// calls [Arrive] for its working directory. [Inside] processes need not enter.
func (e *Entry) Enter(argv []string) error {
	nsenter, err := exec.LookPath("nsenter")
	if err != nil {
		return fmt.Errorf("the program nsenter is missing: install util-linux: %w", kiterr.ErrUnavailable)
	}
	if err := os.MkdirAll(e.Dir, 0o700); err != nil {
		return fmt.Errorf("%w: %w", err, kiterr.ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(context.Background(), e.timeout())
	defer cancel()
	life, err := e.lock(ctx, "life", unix.LOCK_SH)
	if err != nil {
		return err
	}
	pid, err := e.anchor(ctx)
	if err != nil {
		life.Close()
		return err
	}
	if _, err := unix.FcntlInt(life.Fd(), unix.F_SETFD, 0); err != nil {
		return err
	}
	args := append([]string{"nsenter", "--preserve-credentials",
		fmt.Sprintf("--user=/proc/%d/ns/user", pid), fmt.Sprintf("--mount=/proc/%d/ns/mnt", pid),
		"--"}, argv...)
	env := append(without(os.Environ(), LifeVariable), fmt.Sprintf("%s=%d", LifeVariable, life.Fd()))
	if wd, err := os.Getwd(); err == nil {
		env = append(without(env, dirVariable), dirVariable+"="+wd)
	}
	return fmt.Errorf("executing %s: %w", nsenter, syscall.Exec(nsenter, args, env))
}

// Arrive takes a program that [Entry.Enter] executed back to its working
// directory; in any other program it does nothing. Call it before anything
// that depends on the directory.
func Arrive() error {
	wd, ok := os.LookupEnv(dirVariable)
	if !ok {
		return nil
	}
	if err := os.Unsetenv(dirVariable); err != nil {
		return err
	}
	return os.Chdir(wd)
}

func (e *Entry) timeout() time.Duration {
	if e.Timeout == 0 {
		return 10 * time.Second
	}
	return e.Timeout
}

func without(env []string, name string) []string {
	var rest []string
	for _, v := range env {
		if !strings.HasPrefix(v, name+"=") {
			rest = append(rest, v)
		}
	}
	return rest
}

// Life returns a new descriptor for a process that needs the namespace to stay
// when this process has ended; one without meaning if this process is in none.
func Life() (*os.File, error) {
	if n, err := strconv.Atoi(os.Getenv(LifeVariable)); err == nil {
		var st unix.Stat_t
		if fd, err := unix.FcntlInt(uintptr(n), unix.F_DUPFD_CLOEXEC, 3); err == nil {
			if unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
				return os.NewFile(uintptr(fd), "life"), nil
			}
			unix.Close(fd)
		}
	}
	return os.Open(os.DevNull)
}

// LifeFD is the number of the descriptor that [LifeVariable] names, for whoever closes
// what else was inherited; -1: none.
func LifeFD() int {
	if n, err := strconv.Atoi(os.Getenv(LifeVariable)); err == nil {
		return n
	}
	return -1
}

// lock opens and locks a file of Dir.
func (e *Entry) lock(ctx context.Context, name string, how int) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(e.Dir, name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, kiterr.ErrUnavailable)
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			f.Close()
			return nil, err
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("waiting for another process that enters the user namespace of %s: %w", e.Dir, ctx.Err())
		case <-time.After(pause):
		}
	}
}

// An anchored is the record of a running anchor.
type anchored struct {
	PID   int    `json:"pid"`
	Start string `json:"start"` // boot id and ticks
}

// anchor returns the pid of the namespace's anchor, which runs for as long as
// the caller holds its lock.
func (e *Entry) anchor(ctx context.Context) (int, error) {
	mutex, err := e.lock(ctx, "mutex", unix.LOCK_EX)
	if err != nil {
		return 0, err
	}
	defer mutex.Close()
	file := filepath.Join(e.Dir, "anchor.json")
	var a anchored
	if b, err := os.ReadFile(file); err == nil && json.Unmarshal(b, &a) == nil && a.PID > 0 && a.Start == started(a.PID) {
		return a.PID, nil
	}
	a.PID, err = e.startAnchor(ctx)
	if err != nil {
		return 0, err
	}
	a.Start = started(a.PID)
	b, err := json.Marshal(a)
	if err == nil {
		err = os.WriteFile(file+".tmp", b, 0o600)
	}
	if err == nil {
		err = os.Rename(file+".tmp", file)
	}
	if err != nil {
		syscall.Kill(a.PID, syscall.SIGKILL)
		return 0, fmt.Errorf("%w: %w", err, kiterr.ErrUnavailable)
	}
	return a.PID, nil
}

// started identifies a process beyond its pid; empty if there is none.
func started(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || len(f) < 20 || f[0] == "Z" {
		return ""
	}
	return strings.TrimSpace(string(boot)) + "/" + f[19]
}

// startAnchor makes the namespaces and the process that keeps them.
func (e *Entry) startAnchor(ctx context.Context) (int, error) {
	// A lock of its own, which it gets when nobody else has one any more.
	life, err := os.OpenFile(filepath.Join(e.Dir, "life"), os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer life.Close()
	uid, gid := os.Getuid(), os.Getgid()
	maps, err := subordinate(uid)
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(e.GuestPath, "anchor")
	cmd.Args[0] = "kitbox-anchor"
	cmd.Env = []string{}
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{life}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS}
	if maps == nil {
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}}
	}
	if err := cmd.Start(); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return 0, fmt.Errorf("%s: %w", e.GuestPath, kiterr.ErrUnavailable)
		}
		return 0, fmt.Errorf("making a user namespace: %w", userns.Explain(err))
	}
	pid := cmd.Process.Pid
	for _, m := range maps {
		args := []string{strconv.Itoa(pid), "0", strconv.Itoa(map[string]int{"newuidmap": uid, "newgidmap": gid}[m.program]), "1",
			"1", strconv.FormatUint(uint64(m.start), 10), strconv.FormatUint(uint64(m.size), 10)}
		if out, err := exec.CommandContext(ctx, m.program, args...).CombinedOutput(); err != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			return 0, fmt.Errorf("%s %s: %s (%w): %w", m.program, strings.Join(args, " "),
				strings.TrimSpace(string(out)), err, kiterr.ErrUnavailable)
		}
	}
	// Not waited for: this process is about to be another program, and the
	// anchor outlives it.
	_ = cmd.Process.Release()
	return pid, nil
}

// A submap is a range of subordinate ids and the program that may map it.
type submap struct {
	program string
	start   uint32
	size    uint32
}

// wantIDs is how many subordinate ids a namespace gets when the user has them:
// with the user's own as 0, they reach to nobody's, 65534, and beyond.
const wantIDs = 65536

// subordinate returns the user's ranges, or nil when there are none or no
// program to map them: the namespace then has one id.
func subordinate(uid int) ([]submap, error) {
	name := ""
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		name = u.Username
	}
	var maps []submap
	for _, m := range []struct{ file, program string }{{"/etc/subuid", "newuidmap"}, {"/etc/subgid", "newgidmap"}} {
		if _, err := exec.LookPath(m.program); err != nil {
			return nil, nil //nolint:nilerr // without the program there is one id, which is an answer
		}
		start, size, err := readSub(m.file, name, uid)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", err, kiterr.ErrUnavailable)
		}
		if size == 0 {
			return nil, nil
		}
		maps = append(maps, submap{m.program, start, min(size, wantIDs)})
	}
	return maps, nil
}

// readSub returns the largest range of name or uid in file.
func readSub(file, name string, uid int) (start, size uint32, err error) {
	f, err := os.Open(file)
	if errors.Is(err, os.ErrNotExist) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		p := strings.Split(strings.TrimSpace(s.Text()), ":")
		if len(p) != 3 || p[0] != strconv.Itoa(uid) && (name == "" || p[0] != name) {
			continue
		}
		a, aerr := strconv.ParseUint(p[1], 10, 32)
		n, nerr := strconv.ParseUint(p[2], 10, 32)
		if aerr != nil || nerr != nil {
			return 0, 0, fmt.Errorf("%s: %q is no range", file, s.Text())
		}
		if uint32(n) > size {
			start, size = uint32(a), uint32(n)
		}
	}
	return start, size, nil
}
