package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// fake is a system whose trees are directories. The kernel fills a new group
// with files; here they have to be there before.
type fake struct {
	t    *testing.T
	root string
	System
}

// newFake has the given lines of mountinfo and cgroup, in which ROOT stands for
// its own directory.
func newFake(t *testing.T, mountinfo, cgroup string) *fake {
	t.Helper()
	f := &fake{t: t, root: t.TempDir()}
	f.Proc = filepath.Join(f.root, "proc")
	for name, content := range map[string]string{"proc/mountinfo": mountinfo, "proc/cgroup": cgroup, "proc/swaps": "Filename Type\n"} {
		f.write(name, strings.ReplaceAll(content, "ROOT", f.root))
	}
	return f
}

func (f *fake) write(name, content string) {
	f.t.Helper()
	p := filepath.Join(f.root, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fake) want(name, content string) {
	f.t.Helper()
	b, err := os.ReadFile(filepath.Join(f.root, name))
	if err != nil || string(b) != content {
		f.t.Errorf("%s holds %q, %v; want %q", name, b, err, content)
	}
}

// moved is a process that was there before: it has to be moved. No directory of
// a fake system can be born into.
func moved(unified *os.File) (int, error) {
	if unified != nil {
		return 0, unix.EBADF
	}
	return os.Getpid(), nil
}

var limits = Limits{CPUMillis: 1500, MemoryBytes: 1 << 20, Pids: 7}

func TestV2(t *testing.T) {
	f := newFake(t, "30 24 0:26 / ROOT/cg rw - cgroup2 cgroup2 rw\n", "0::/user.slice\n")
	f.write("cg/cgroup.controllers", "cpuset cpu io memory pids\n")
	f.write("cg/cgroup.subtree_control", "")
	f.write("cg/user.slice/cgroup.procs", "")
	for name, content := range map[string]string{
		"kitbox/cgroup.controllers": "cpu memory pids", "kitbox/cgroup.subtree_control": "",
		"kitbox/m/cgroup.controllers": "cpu memory pids", "kitbox/m/cgroup.procs": "", "kitbox/m/cpu.max": "",
		"kitbox/m/memory.max": "", "kitbox/m/memory.swap.max": "", "kitbox/m/pids.max": "",
	} {
		f.write("cg/"+name, content)
	}
	dirs, notes, err := f.Make("m", limits, moved)
	if err != nil || len(notes) > 0 || !slices.Equal(dirs, []string{f.root + "/cg/kitbox/m"}) {
		t.Fatal(dirs, notes, err)
	}
	f.want("cg/kitbox/m/cgroup.procs", strconv.Itoa(os.Getpid()))
	f.want("cg/kitbox/m/cpu.max", "150000 100000")
	f.want("cg/kitbox/m/memory.max", "1048576")
	f.want("cg/kitbox/m/memory.swap.max", "0")
	f.want("cg/kitbox/m/pids.max", "7")
	f.want("cg/cgroup.subtree_control", "+pidsry") // three writes over each other: "+cpu", "+memory", "+pids"
	f.want("cg/kitbox/cgroup.subtree_control", "+pidsry")
	if notes := f.Check(limits); len(notes) > 0 {
		t.Errorf("Check: %q", notes)
	}
}

func TestV1TreesHoldTheLimitsAndTheUnifiedOneTheGroup(t *testing.T) {
	f := newFake(t, `
31 24 0:27 / ROOT/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
32 24 0:28 / ROOT/mem rw - cgroup cgroup rw,memory
33 24 0:29 / ROOT/pids rw - cgroup cgroup rw,pids
34 24 0:30 / ROOT/unified rw - cgroup2 cgroup2 rw
`, "4:memory:/a\n3:cpu,cpuacct:/\n2:pids:/\n0::/\n")
	for _, name := range []string{"cpu,cpuacct/kitbox/m/cpu.cfs_quota_us", "cpu,cpuacct/kitbox/m/cpu.cfs_period_us",
		"mem/kitbox/m/memory.limit_in_bytes", "mem/kitbox/m/memory.memsw.limit_in_bytes", "pids/kitbox/m/pids.max",
		"cpu,cpuacct/kitbox/m/cgroup.procs", "mem/kitbox/m/cgroup.procs", "pids/kitbox/m/cgroup.procs", "unified/kitbox/m/cgroup.procs"} {
		f.write(name, "")
	}
	dirs, notes, err := f.Make("m", limits, moved)
	if err != nil || len(notes) > 0 || len(dirs) != 4 {
		t.Fatal(dirs, notes, err)
	}
	f.want("cpu,cpuacct/kitbox/m/cpu.cfs_quota_us", "150000")
	f.want("mem/kitbox/m/memory.limit_in_bytes", "1048576")
	f.want("mem/kitbox/m/memory.memsw.limit_in_bytes", "1048576")
	f.want("pids/kitbox/m/pids.max", "7")
	f.want("unified/kitbox/m/cgroup.procs", strconv.Itoa(os.Getpid()))
}

// systemd must not take a machine for a part of the session it was started in.
func TestAMachineLeavesItsSession(t *testing.T) {
	const v1 = "35 24 0:31 / ROOT/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
	f := newFake(t, v1, "1:name=systemd:/session\n")
	f.write("systemd/kitbox/m/cgroup.procs", "")
	if dirs, _, err := f.Make("m", Limits{}, moved); err != nil || !slices.Equal(dirs, []string{f.root + "/systemd/kitbox/m"}) {
		t.Error(dirs, err)
	}
	f = newFake(t, v1+"34 24 0:30 / ROOT/unified rw - cgroup2 cgroup2 rw\n", "1:name=systemd:/session\n0::/session\n")
	f.write("unified/kitbox/m/cgroup.procs", "")
	if dirs, _, err := f.Make("m", Limits{}, moved); err != nil || !slices.Equal(dirs, []string{f.root + "/unified/kitbox/m"}) {
		t.Error(dirs, err)
	}
}

func TestWhatDoesNotHoldIsNoted(t *testing.T) {
	// No tree at all.
	f := newFake(t, "", "")
	dirs, notes, err := f.Make("m", limits, moved)
	if err != nil || len(dirs) > 0 || len(notes) != 3 {
		t.Fatal(dirs, notes, err)
	}
	for i, c := range []string{"cpu: ", "memory: ", "pids: "} {
		if !strings.HasPrefix(notes[i], c) {
			t.Errorf("note %q, want one about %s", notes[i], c)
		}
	}
	if again := f.Check(limits); !slices.Equal(again, notes) {
		t.Errorf("Check = %q, Make noted %q", again, notes)
	}
	if notes := f.Check(Limits{}); len(notes) > 0 {
		t.Errorf("nothing was asked: %q", notes)
	}

	// A v2 tree that passes only pids down.
	f = newFake(t, "30 24 0:26 / ROOT/cg rw - cgroup2 cgroup2 rw\n", "0::/\n")
	f.write("cg/cgroup.controllers", "pids")
	f.write("cg/kitbox/m/cgroup.controllers", "pids")
	f.write("cg/kitbox/m/cgroup.procs", "")
	f.write("cg/kitbox/m/pids.max", "")
	if _, notes, err := f.Make("m", limits, moved); err != nil || len(notes) != 2 {
		t.Error(notes, err)
	}
	if notes := f.Check(limits); len(notes) != 2 {
		t.Errorf("Check: %q", notes)
	}

	// Swap that is not counted, once there is some.
	f = newFake(t, "32 24 0:28 / ROOT/mem rw - cgroup cgroup rw,memory\n", "4:memory:/\n")
	f.write("mem/kitbox/m/cgroup.procs", "")
	f.write("mem/kitbox/m/memory.limit_in_bytes", "")
	memory := Limits{MemoryBytes: 1 << 20}
	if _, notes, err := f.Make("m", memory, moved); err != nil || len(notes) > 0 {
		t.Error(notes, err)
	}
	f.write("proc/swaps", "Filename Type\n/swap file\n")
	if _, notes, err := f.Make("m", memory, moved); err != nil || len(notes) != 1 || !strings.Contains(notes[0], "swap") {
		t.Error(notes, err)
	}
}

// What an ordinary user may write begins below the top, where a login puts it.
func TestADelegatedTreeIsUsedFromItsHighestGroup(t *testing.T) {
	f := newFake(t, "30 24 0:26 / ROOT/cg rw - cgroup2 cgroup2 rw\n", "0::/user.slice/user@1.service/app.slice/run.scope\n")
	hs, err := f.hierarchies()
	if err != nil || len(hs) != 1 {
		t.Fatal(hs, err)
	}
	var want []string
	for _, d := range []string{"", "/user.slice", "/user.slice/user@1.service", "/user.slice/user@1.service/app.slice", "/user.slice/user@1.service/app.slice/run.scope"} {
		want = append(want, f.root+"/cg"+d)
	}
	if got := hs[0].bases(); !slices.Equal(got, want) {
		t.Errorf("bases %q, want %q", got, want)
	}
}

// In a container a tree is mounted from a group on, and names are escaped.
func TestMountsBeginAnywhere(t *testing.T) {
	f := newFake(t, `32 24 0:28 /docker/x ROOT/with\040space rw - cgroup cgroup rw,memory`+"\n", "4:memory:/docker/x/y\n")
	hs, err := f.hierarchies()
	if err != nil || len(hs) != 1 || hs[0].mount != f.root+"/with space" || hs[0].own != f.root+"/with space/y" {
		t.Errorf("%+v, %v", hs, err)
	}
	if got := within("/m", "/docker/x", "/elsewhere"); got != "/m" {
		t.Errorf("a group outside the mount is %s", got)
	}
}

// On this system, whatever it has.
func TestGroupsOfThisSystemComeAndGo(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("control groups need root")
	}
	name := "test-" + strconv.Itoa(os.Getpid())
	cmd := exec.Command("sleep", "1000")
	reaped := make(chan struct{})
	s := System{}
	before, err := os.ReadFile("/proc/thread-self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	dirs, notes, err := s.Make(name, limits, func(unified *os.File) (int, error) {
		if unified != nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(unified.Fd())}
		}
		if err := cmd.Start(); err != nil {
			return 0, err
		}
		go func() { _ = cmd.Wait(); close(reaped) }()
		return cmd.Process.Pid, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	in, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", cmd.Process.Pid))
	if n := strings.Count(string(in), "/"+parent+"/"+name+"\n"); err != nil || n != len(dirs) {
		t.Errorf("the process is in %d of %d groups, %v: %s", n, len(dirs), err, in)
	}
	for _, d := range dirs {
		if procs := words(d, "cgroup.procs"); !slices.Equal(procs, []string{strconv.Itoa(cmd.Process.Pid)}) {
			t.Errorf("%s has %q beside process %d", d, procs, cmd.Process.Pid)
		}
	}
	if after, err := os.ReadFile("/proc/thread-self/cgroup"); err != nil || string(after) != string(before) {
		t.Errorf("and we are in %s, %v; before it was %s", after, err, before)
	}
	t.Logf("%q, not held: %q", dirs, notes)
	// Processes in it end with it.
	if err := s.Remove(name, nil); err != nil {
		t.Error(err)
	}
	if len(dirs) == 0 {
		cmd.Process.Kill()
	}
	<-reaped
	for _, d := range dirs {
		if _, err := os.Stat(d); err == nil {
			t.Errorf("%s is left", d)
		}
	}
	if err := s.Remove(name, dirs); err != nil {
		t.Errorf("again: %v", err)
	}
}

func TestLimitsThatMustHold(t *testing.T) {
	l, unenforced := Of(plan.Limits{DiskBytes: 1})
	if l.Pids != DefaultPids || len(unenforced) != 0 {
		t.Errorf("%+v, %q", l, unenforced)
	}
	unenforced = []string{"pids: no controller"}
	err := &LimitError{ID: "m", Unenforced: unenforced}
	if !errors.Is(err, kiterr.ErrRefused) || !errors.Is(err, kiterr.ErrUnsupported) || kiterr.ExitCode(err) != kiterr.StatusRefused {
		t.Errorf("%v has status %d", err, kiterr.ExitCode(err))
	}
	notes := []string{"pids: a", "memory: b"}
	if got := Asked(nil, notes, plan.Limits{}); !slices.Equal(got, notes[1:]) {
		t.Errorf("got %q: nobody asked for pids", got)
	}
	if got := Asked(notes[:1], notes, plan.Limits{Pids: 1}); !slices.Equal(got, notes) {
		t.Errorf("got %q", got)
	}
}
