// Package cgroup puts a machine's processes into control groups of their own
// and takes them away again: on cgroup v1, v2 and the mixture of both that
// many systems have.
//
// It uses what it is allowed to use and says what does not hold; it never
// pretends. The unified hierarchy is joined even when it has no controllers,
// because it can kill a group in one step.
package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Limits bound a group. Zero is no limit.
type Limits struct {
	CPUMillis   int64 // thousandths of one core
	MemoryBytes int64 // swap included
	Pids        int64
}

// A System is where control groups are. Its zero value is this one's.
type System struct {
	// Proc replaces /proc/self for tests: a directory with mountinfo,
	// cgroup and swaps.
	Proc string
}

// A hierarchy is one mounted tree of groups.
type hierarchy struct {
	mount       string
	unified     bool
	controllers []string // of v1
	own         string   // directory of the group this process is in
}

// parent is the group below which all machines have theirs.
const parent = "kitbox"

// period is that of CPU quotas, in microseconds; the kernel's default.
const period = 100_000

// Make makes a group called name, calls start, which starts a process and returns
// its pid, and limits the group. It returns the directories it made, also on
// error, and for each limit that does not hold a line that says which and why.
//
// The process is in the group from its first instant. Moving one that exists has
// the kernel wait until no processor can be forking, which takes longer than all
// else that is done for a machine; a process is born where its parent's thread
// is. start is called on a thread that has been there before, and is given the
// directory of the unified tree for [syscall.SysProcAttr.CgroupFD], or nil. It
// may be called a second time, with nil, when the kernel refused the first.
func (s System) Make(name string, l Limits, start func(unified *os.File) (pid int, err error)) (dirs, notes []string, err error) {
	hs, err := s.hierarchies()
	if err != nil {
		return nil, nil, err
	}
	var made []*group
	hasUnified := slices.ContainsFunc(hs, func(h hierarchy) bool { return h.unified })
	for _, h := range hs {
		want := h.wanted()
		// systemd ends what is in the group of a session or service when that
		// ends. It counts in the unified tree, or else in one of its own.
		tracked := h.unified || !hasUnified && slices.Contains(h.controllers, "name=systemd")
		if len(want) == 0 && !tracked {
			continue
		}
		dir, err := h.make(name, want)
		if err != nil {
			continue // the controllers stay absent
		}
		dirs = append(dirs, dir)
		made = append(made, &group{hierarchy: h, dir: dir, want: want})
	}
	pid, err := bear(made, start)
	if err != nil {
		return dirs, nil, err
	}
	at := map[string]string{} // controller to directory
	for _, g := range made {
		if !g.has {
			if err := write(g.dir, "cgroup.procs", strconv.Itoa(pid)); err != nil {
				if _, serr := os.Stat("/proc/" + strconv.Itoa(pid)); serr != nil {
					return dirs, nil, fmt.Errorf("process %d is gone", pid)
				}
				continue // not allowed to move it here
			}
		}
		for _, c := range g.want {
			if g.unified && !slices.Contains(words(g.dir, "cgroup.controllers"), c) {
				continue
			}
			at[c] = g.dir
		}
	}
	return dirs, s.limit(at, l), nil
}

// limit applies l and returns what does not hold.
func (s System) limit(at map[string]string, l Limits) (notes []string) {
	for _, one := range []struct {
		controller string
		asked      int64
		apply      func(dir string, n int64) (note string, err error)
	}{
		{"cpu", l.CPUMillis, limitCPU},
		{"memory", l.MemoryBytes, s.limitMemory},
		{"pids", l.Pids, limitPids},
	} {
		if one.asked <= 0 {
			continue
		}
		dir, ok := at[one.controller]
		if !ok {
			notes = append(notes, one.controller+": no cgroup controller is delegated")
			continue
		}
		note, err := one.apply(dir, one.asked)
		if err != nil {
			note = fmt.Sprintf("%s: %v", one.controller, err)
		}
		if note != "" {
			notes = append(notes, note)
		}
	}
	return notes
}

func limitCPU(dir string, millis int64) (string, error) {
	// The kernel takes no quota below a millisecond.
	quota := strconv.FormatInt(max(millis*period/1000, 1000), 10)
	if exists(dir, "cpu.max") {
		return "", write(dir, "cpu.max", quota+" "+strconv.Itoa(period))
	}
	if err := write(dir, "cpu.cfs_period_us", strconv.Itoa(period)); err != nil {
		return "", err
	}
	return "", write(dir, "cpu.cfs_quota_us", quota)
}

func (s System) limitMemory(dir string, n int64) (string, error) {
	memory, swap, swapValue := "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", strconv.FormatInt(n, 10)
	if exists(dir, "memory.max") {
		memory, swap, swapValue = "memory.max", "memory.swap.max", "0"
	}
	if err := write(dir, memory, strconv.FormatInt(n, 10)); err != nil {
		return "", err
	}
	if !exists(dir, swap) {
		if s.hasSwap() {
			return "memory: this kernel does not count swap, which comes on top", nil
		}
		return "", nil
	}
	return "", write(dir, swap, swapValue)
}

func limitPids(dir string, n int64) (string, error) {
	return "", write(dir, "pids.max", strconv.FormatInt(n, 10))
}

func (s System) proc(name string) string {
	if s.Proc != "" {
		return filepath.Join(s.Proc, name)
	}
	if name == "swaps" {
		return "/proc/swaps"
	}
	return "/proc/self/" + name
}

// hasSwap reports whether anything could be swapped out at this moment.
func (s System) hasSwap() bool {
	b, err := os.ReadFile(s.proc("swaps"))
	return err != nil || strings.Count(string(b), "\n") > 1 // a heading, then areas
}

// hierarchies lists the mounted trees, those with v1 controllers first: where
// both exist the controllers are there.
func (s System) hierarchies() ([]hierarchy, error) {
	own, err := s.ownGroups()
	if err != nil {
		return nil, err
	}
	f, err := os.Open(s.proc("mountinfo"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var first, last []hierarchy
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		// 36 35 98:0 /root /mount options - type source superoptions
		left, right, ok := strings.Cut(lines.Text(), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 5 || len(r) < 3 {
			continue
		}
		h := hierarchy{mount: unescape(l[4])}
		root := unescape(l[3])
		switch r[0] {
		case "cgroup2":
			h.unified = true
			h.own = within(h.mount, root, own[""])
			last = append(last, h)
		case "cgroup":
			h.controllers = strings.Split(r[2], ",")
			for _, c := range h.controllers {
				if o, ok := own[c]; ok {
					h.own = within(h.mount, root, o)
				}
			}
			first = append(first, h)
		}
	}
	return append(first, last...), lines.Err()
}

// within returns the directory of group p in a mount of the tree from root.
func within(mount, root, p string) string {
	rel, err := filepath.Rel(root, p)
	if err != nil || strings.HasPrefix(rel, "..") {
		return mount
	}
	return filepath.Join(mount, rel)
}

// ownGroups maps controllers, and "" for the unified tree, to this process's
// groups.
func (s System) ownGroups() (map[string]string, error) {
	b, err := os.ReadFile(s.proc("cgroup"))
	if err != nil {
		return nil, err
	}
	own := map[string]string{}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		for c := range strings.SplitSeq(f[1], ",") {
			own[c] = f[2]
		}
	}
	return own, nil
}

// wanted returns those controllers of h that limits need.
func (h hierarchy) wanted() []string {
	var want []string
	for _, c := range []string{"cpu", "memory", "pids"} {
		if h.unified || slices.Contains(h.controllers, c) {
			want = append(want, c)
		}
	}
	return want
}

// bases returns where in h groups may be made, best first: at its top, else as
// high above our own group as we may write.
func (h hierarchy) bases() []string {
	bases := []string{h.mount}
	var up []string
	for d := h.own; d != h.mount && strings.HasPrefix(d, h.mount+"/"); d = filepath.Dir(d) {
		up = append(up, d)
	}
	slices.Reverse(up)
	return append(bases, up...)
}

// make makes the group and, in the unified tree, has as many of want as
// possible passed down to it.
func (h hierarchy) make(name string, want []string) (string, error) {
	var dir string
	err := errors.New("nowhere to make groups")
	for _, base := range h.bases() {
		if unix.Access(base, unix.W_OK) != nil {
			continue
		}
		above := filepath.Join(base, parent)
		dir = filepath.Join(above, name)
		for range 10 { // another process may be removing the empty parent
			if err = mkdir(above); err == nil {
				if err = mkdir(dir); err == nil {
					break
				}
			}
		}
		if err != nil {
			continue
		}
		if h.unified {
			for _, d := range []string{base, above} {
				have := words(d, "cgroup.controllers")
				on := words(d, "cgroup.subtree_control")
				for _, c := range want {
					if slices.Contains(have, c) && !slices.Contains(on, c) {
						// Refused where a group with processes of its
						// own would pass controllers down.
						_ = write(d, "cgroup.subtree_control", "+"+c)
					}
				}
			}
		}
		return dir, nil
	}
	return "", err
}

func mkdir(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// Remove ends what is left in the groups called name and removes them, and
// their common parent with the last of them. made are the directories that
// Make returned, if it came to that: another process may look elsewhere.
func (s System) Remove(name string, made []string) error {
	dirs := slices.Clone(made)
	if hs, err := s.hierarchies(); err == nil {
		for _, h := range hs {
			for _, base := range h.bases() {
				dir := filepath.Join(base, parent, name)
				if exists(dir, "") && !slices.Contains(dirs, dir) {
					dirs = append(dirs, dir)
				}
			}
		}
	}
	var errs []error
	for _, dir := range dirs {
		if err := remove(dir); err != nil {
			errs = append(errs, err)
			continue
		}
		_ = os.Remove(filepath.Dir(dir)) // fails while others are in it
	}
	return errors.Join(errs...)
}

// remove retries for as long as the kernel needs to let go of ended processes.
func remove(dir string) error {
	end := time.Now().Add(10 * time.Second)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := removeTree(dir)
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("removing the control group %s: %w", dir, err)
		}
		if exists(dir, "cgroup.kill") {
			_ = write(dir, "cgroup.kill", "1")
		}
		for _, p := range words(dir, "cgroup.procs") {
			// Never ourselves: a thread may have been here to start one.
			if pid, err := strconv.Atoi(p); err == nil && pid > 1 && pid != os.Getpid() {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		time.Sleep(pause)
	}
}

func removeTree(dir string) error {
	err := unix.Rmdir(dir)
	if err == nil || err == unix.ENOENT {
		return nil
	}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(dir); err != nil && err != unix.ENOENT {
		return err
	}
	return nil
}

// write sets a value; the file exists or the feature does not.
func write(dir, name, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

func exists(dir, name string) bool {
	_, err := os.Stat(filepath.Join(dir, name))
	return err == nil
}

func words(dir, name string) []string {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return nil
	}
	return strings.Fields(string(b))
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// Unified reports whether the system's only tree is the unified one, mounted
// where programs look for it.
func (s System) Unified() bool {
	hs, err := s.hierarchies()
	return err == nil && len(hs) == 1 && hs[0].unified && hs[0].mount == "/sys/fs/cgroup"
}

// Check says, without changing anything, which of l cannot hold. What it does
// not name may still turn out not to when Make tries.
func (s System) Check(l Limits) []string {
	hs, err := s.hierarchies()
	if err != nil {
		hs = nil
	}
	var notes []string
	for _, one := range []struct {
		controller string
		asked      int64
	}{{"cpu", l.CPUMillis}, {"memory", l.MemoryBytes}, {"pids", l.Pids}} {
		if one.asked > 0 && !slices.ContainsFunc(hs, func(h hierarchy) bool { return h.offers(one.controller) }) {
			notes = append(notes, one.controller+": no cgroup controller is delegated")
		}
	}
	return notes
}

// offers reports whether a group of h could have controller c.
func (h hierarchy) offers(c string) bool {
	if !slices.Contains(h.wanted(), c) {
		return false
	}
	for _, base := range h.bases() {
		if unix.Access(base, unix.W_OK) == nil && (!h.unified || slices.Contains(words(base, "cgroup.controllers"), c)) {
			return true
		}
	}
	return false
}
