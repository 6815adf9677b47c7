package app

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/driver/cgroup"
	"github.com/kitbox-dev/kitbox/internal/needs"
	"github.com/kitbox-dev/kitbox/internal/store"
	"github.com/kitbox-dev/kitbox/sandbox"
)

func TestDoctorJudgesTheClock(t *testing.T) {
	kept := func(*unix.Timex) (int, error) { return unix.TIME_OK, nil }
	if f := clock(time.Date(1970, 1, 1, 0, 0, 9, 0, time.UTC), kept); f.OK || !strings.Contains(f.Detail, "before") || f.Remedy == "" {
		t.Errorf("in 1970: %+v", f)
	}
	if f := clock(time.Now(), kept); !f.OK {
		t.Errorf("now: %+v", f)
	}
}

// TestDoctorFindsAHomeThatOthersCanChange holds it against what the commands say.
func TestDoctorFindsAHomeThatOthersCanChange(t *testing.T) {
	dir := t.TempDir() + "/home"
	t.Setenv("KITBOX_HOME", dir)
	if f := guarded(); !f.OK {
		t.Errorf("not made yet: %+v", f)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if f := guarded(); !f.OK {
		t.Errorf("mode 0700: %+v", f)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	f := guarded()
	if f.OK || !f.Required || !strings.Contains(f.Remedy, "chmod go-w "+dir) {
		t.Errorf("mode 0777: %+v", f)
	}
	if _, err := store.Open(dir); err == nil || !strings.Contains(err.Error(), f.Detail) {
		t.Errorf("the store says %v", err)
	}
}

func TestDoctorNamesTheCommandThatGivesIDs(t *testing.T) {
	for _, c := range []struct {
		uids, gids string
		want       string // in the remedy; empty: all is well
	}{
		{"ann:100000:65536\n", "ann:100000:65536\n", ""},
		{"1000:100000:65536\n", "1000:100000:65536\n", ""},
		{"", "", "sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 ann"},
		{"bob:100000:65536\n", "bob:100000:65536\nanna:165536:65536\n", "sudo usermod --add-subuids 231072-296607 --add-subgids 231072-296607 ann"},
		{"ann:100000:65536\n", "", "sudo usermod --add-subgids 165536-231071 ann"},
		{"ann:5:1\n", "ann:100000:65536\n", "sudo usermod --add-subuids 165536-231071 ann"},
		{"ann:100000:65535\nann:300000:65535\n", "ann:100000:65536\n", "sudo usermod --add-subuids 365535-431070 ann"},
		{"ann:5:1\nann:100000:65536\n", "ann:100000:70000\n", ""},
		{"# ann:1:1\nann\n", "ann:100000:65536", "sudo usermod --add-subuids 165536-231071 ann"},
	} {
		f := judgeSubids("ann", "1000", [2]string{c.uids, c.gids})
		if f.OK != (c.want == "") || !strings.HasSuffix(f.Remedy, c.want) || f.Detail == "" {
			t.Errorf("%q, %q: %+v", c.uids, c.gids, f)
		}
	}
	if f := judgeSubids("", "1000", [2]string{}); !strings.HasSuffix(f.Remedy, " 1000") {
		t.Errorf("a user without a name: %+v", f)
	}
}

// TestEveryFindingSaysWhatWasFound has no machine that everything is right on.
func TestEveryFindingSaysWhatWasFound(t *testing.T) {
	t.Setenv("KITBOX_HOME", t.TempDir()+"/not/yet")
	for _, f := range (doctor{}).Examine(t.Context()) {
		if f.Name == "" || f.Detail == "" {
			t.Errorf("%+v", f)
		}
		if !f.OK && f.Remedy == "" {
			t.Errorf("%s says not what to do", f.Name)
		}
	}
	if f := disk(unix.Statfs); !strings.Contains(f.Detail, "free in") {
		t.Errorf("%+v", f)
	}
}

// What is started in namespaces is a program that is named, and never the one that
// runs: that would be this test, which would start itself again.
func TestNamespacesAreTriedWithAnotherProgram(t *testing.T) {
	if err := startInNamespaces("")(t.Context()); err == nil || !strings.Contains(err.Error(), "kit-guest") {
		t.Errorf("without a program: %v", err)
	}
	script := filepath.Join(t.TempDir(), "kit-guest")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n[ \"$1\" = hold ] && exit 7\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := startInNamespaces(script)(t.Context()); os.Geteuid() == 0 && (err == nil || err.Error() != "exit status 7") {
		t.Errorf("the program's end: %v", err)
	}
}

// A program that hangs is ended, with what it started, and is a finding.
func TestWhatHangsIsEnded(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	c := exec.Command("sh", "-c", "sleep 1000 & sleep 1000")
	c.ExtraFiles = []*os.File{write}
	_, err = tryInside(t.Context(), 50*time.Millisecond, c)
	write.Close()
	if err == nil || !strings.Contains(err.Error(), "did not end within 50ms") {
		t.Errorf("said %v", err)
	}
	// Its end is that of all who have it.
	if err := read.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := read.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("something it started runs on: %v", err)
	}

	needs.Root(t, "ids are shifted by root")
	script := filepath.Join(t.TempDir(), "kit-guest")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := tryIDMap(script, t.TempDir()); err != nil {
		t.Errorf("an id map with a program that hangs: %v", err)
	}
}

// No command can do anything with such a home, so that it is no matter of room.
func TestAHomeThatCannotBeWrittenToIsMissing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, home := range []string{file, file + "/not/yet"} {
		t.Setenv("KITBOX_HOME", home)
		if f := guarded(); f.OK || !f.Required || !strings.Contains(f.Detail, "not a directory") || !strings.Contains(f.Remedy, "KITBOX_HOME") {
			t.Errorf("%s: %+v", home, f)
		}
	}
	needs.Root(t, "mounts a disk that is read-only")
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_RDONLY, "size=64k,mode=700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	for _, home := range []string{dir, dir + "/not/yet"} {
		t.Setenv("KITBOX_HOME", home)
		if f := guarded(); f.OK || !f.Required || !strings.Contains(f.Detail, "read-only") || !strings.Contains(f.Remedy, "KITBOX_HOME") {
			t.Errorf("%s: %+v", home, f)
		}
	}
}

// TestEveryCheckCanFail has each meet the machine that it is there to find, and be
// right about one that has nothing wrong.
func TestEveryCheckCanFail(t *testing.T) {
	ctx := t.Context()
	t.Setenv("KITBOX_HOME", t.TempDir())
	file := func(content string) string {
		p := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(p, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	proc := func(restrict, label string) string {
		dir := t.TempDir()
		for p, content := range map[string]string{"sys/kernel/apparmor_restrict_unprivileged_userns": restrict, "self/attr/current": label} {
			if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, p)), 0o700), os.WriteFile(filepath.Join(dir, p), []byte(content), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	broken := errors.New("it broke")
	space := func(free, inodes uint64, flags int64) func(string, *unix.Statfs_t) error {
		return func(_ string, st *unix.Statfs_t) error {
			*st = unix.Statfs_t{Bavail: free / 4096, Bsize: 4096, Files: 1 << 30, Ffree: inodes, Flags: flags}
			return nil
		}
	}
	lacks := func(name string) sandbox.Finding {
		t.Helper()
		t.Setenv("PATH", t.TempDir())
		return tool(name, "install it")
	}
	inDir := doctor{libexec: []string{t.TempDir()}}
	mine := t.TempDir()
	if err := os.WriteFile(filepath.Join(mine, "kit-guest"), nil, 0o700); err != nil {
		t.Fatal(err)
	}
	foreign := func() sandbox.Finding {
		dir := t.TempDir()
		t.Setenv("KITBOX_HOME", dir)
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		return guarded()
	}
	failing := func(err error) func(context.Context) error { return func(context.Context) error { return err } }
	kept := func(*unix.Timex) (int, error) { return unix.TIME_OK, nil }
	limited := func(lacking ...string) func(cgroup.Limits) []string {
		return func(l cgroup.Limits) []string {
			if l.CPUMillis == 0 || l.MemoryBytes == 0 || l.Pids == 0 {
				t.Errorf("asked for %+v", l)
			}
			return lacking
		}
	}
	found := map[string]bool{}
	for _, c := range []struct {
		f    sandbox.Finding
		ok   bool
		says string // of the detail
		do   string // of the remedy, if it is not all right
	}{
		{judgeKernel("5.18.19-generic"), false, "5.18", "5.19"},
		{judgeKernel("4.9.0"), false, "4.9", "5.19"},
		{judgeKernel("odd"), false, "odd", "5.19"},
		{judgeKernel("5.19.0-50-generic"), true, "5.19", ""},
		{judgeKernel("6.1"), true, "6.1", ""},
		{userNamespaces(ctx, failing(broken)), false, "it broke", "max_user_namespaces"},
		{userNamespaces(ctx, failing(nil)), true, "started", ""},
		{overlay(broken), false, "it broke", "modprobe overlay"},
		{overlay(nil), true, "mounted", ""},
		{cgroups("/no/such", limited()), false, "no such file", "limits"},
		{cgroups("/sys/fs/cgroup", limited("cpu: no cgroup controller is delegated", "pids: nor this")), false, "cpu: no cgroup controller is delegated; pids: nor this", "limits"},
		{cgroups("/sys/fs/cgroup", limited()), true, "version", ""},
		{ownNamespace(0, broken), false, "it broke", "newuidmap"},
		{ownNamespace(1, nil), false, "1 users", "subordinate"},
		{ownNamespace(65537, nil), true, "65537", ""},
		{sizes(true, func() error { return broken }), false, "it broke", "e2fsprogs"},
		{sizes(false, func() error { return broken }), false, "it broke", "that the system's root makes"},
		{sizes(true, func() error { return nil }), true, "can be made", ""},
		{boundaryWorks(broken), false, "it broke", "nft_tproxy"},
		{boundaryWorks(nil), true, "taken down", ""},
		{inDir.program("kit-guest", true, "is it"), false, "not found in", "KITBOX_LIBEXEC"},
		{inDir.program("kit-engine", true, "is it"), false, "not found in", "KITBOX_LIBEXEC"},
		{inDir.program("kit-builder", false, "is it"), false, "not found in", "KITBOX_LIBEXEC"},
		{doctor{libexec: []string{mine}}.program("kit-guest", true, "is it"), true, "kit-guest", ""},
		{lacks("mmdebstrap"), false, "PATH", "install"}, {lacks("git"), false, "PATH", "install"}, {lacks("newuidmap"), false, "PATH", "install"},
		{judgeSubids("ann", "1000", [2]string{}), false, "none in", "usermod"},
		{judgeSubids("ann", "1000", [2]string{"ann:100000:1\n", "ann:100000:65536\n"}), false, "a range of 1 in /etc/subuid", "usermod"},
		{appArmor(proc("1", "unconfined\n"), false), false, "restricts", "apparmor_parser"},
		{appArmor(proc("1", "unconfined\n"), true), true, "does not concern root", ""},
		{appArmor(proc("1", "kitbox (enforce)\n"), false), true, "under the profile kitbox", ""},
		{appArmor(proc("0", "unconfined\n"), false), true, "does not restrict", ""},
		{appArmor("/no/such", false), true, "does not restrict", ""},
		{idmapped("guest", func(string, string) error { return broken }), false, "it broke", "ext4"},
		{idmapped("", func(string, string) error { return nil }), false, "kit-guest is missing", "ext4"},
		{idmapped("guest", func(string, string) error { return nil }), true, "was made", ""},
		{foreign(), false, "can", "chmod"},
		{disk(space(1<<30, 1<<20, 0)), false, "1.0 GiB", "prune"},
		{disk(space(90<<30, 10, 0)), false, "10 inodes", "prune"},
		{disk(space(90<<30, 1<<20, unix.ST_RDONLY)), false, "read-only", "KITBOX_HOME"},
		{disk(func(string, *unix.Statfs_t) error { return broken }), false, "it broke", "KITBOX_HOME"},
		{disk(space(90<<30, 1<<20, 0)), true, "90.0 GiB", ""},
		{clock(time.Unix(0, 0), kept), false, "before this program", "set it"},
		{clock(time.Now().Add(6*365*24*time.Hour), kept), false, "years after", "newer kitbox"},
		{clock(time.Now(), func(*unix.Timex) (int, error) { return unix.TIME_ERROR, nil }), false, "time server", "set it"},
		{clock(time.Now(), func(x *unix.Timex) (int, error) { x.Status = unix.STA_UNSYNC; return unix.TIME_OK, nil }), false, "time server", "set it"},
		{clock(time.Now(), func(*unix.Timex) (int, error) { return 0, broken }), false, "it broke", "set it"},
		{clock(time.Now(), kept), true, "kept by", ""},
		{watches(file("8192\n")), false, "8192", "max_user_watches"},
		{watches(file("x\n")), false, "0", "max_user_watches"},
		{watches("/no/such"), false, "no such file", "max_user_watches"},
		{watches(file("65536\n")), true, "65536", ""},
	} {
		if c.f.OK != c.ok || !strings.Contains(c.f.Detail, c.says) || !c.ok && !strings.Contains(c.f.Remedy, c.do) {
			t.Errorf("want ok %v, %q and %q; got %+v", c.ok, c.says, c.do, c.f)
		}
		if !c.f.OK {
			found[c.f.Name] = true
		}
	}
	if f := sizes(false, func() error { return broken }); strings.Contains(f.Remedy, "apt-get") {
		t.Errorf("an ordinary user is told to install what does not help: %s", f.Remedy)
	}
	for _, f := range (doctor{}).Examine(ctx) {
		if !found[f.Name] {
			t.Errorf("%q is not seen to fail", f.Name)
		}
	}
}

// What is tried is done for real, and what cannot be done is said.
func TestTrialsAreReal(t *testing.T) {
	if os.Getenv("TRIALS_TEST_INNER") != "" { // this test again, in a user namespace without a single privilege
		if got := tried(t.Context()); got.Overlay == "" || got.Boundary == "" || got.IDs != 1 {
			t.Errorf("%+v", got)
		}
		return
	}
	needs.Root(t, "mounts and network namespaces")
	t.Setenv("TMPDIR", t.TempDir())
	got, err := try(t.Context(), "")
	if err != nil || got.Overlay != "" || got.Boundary != "" || got.IDs < wantIDs {
		t.Errorf("as root: %+v, %v", got, err)
	}
	// Without the privilege nothing of it works.
	setpriv := needs.Program(t, "setpriv", "apt-get install util-linux")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(setpriv, "--bounding-set=-all", "--inh-caps=-all", self, "-test.run=^TestTrialsAreReal$", "-test.v")
	c.Env = append(os.Environ(), "TRIALS_TEST_INNER=1")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}}
	out, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS") {
		t.Errorf("%v\n%s", err, out)
	}
	if left, err := filepath.Glob(os.TempDir() + "/kitbox-doctor-*"); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestAnotherProgramsTrialsAreReadWithCare(t *testing.T) {
	for script, want := range map[string]string{
		`echo '{"overlay":"","boundary":"no","ids":7}'`: "",
		`echo no nsenter >&2; exit 1`:                   "no nsenter",
		`exit 3`:                                        "exit status 3",
		`true`:                                          "without a word",
		`head -c 3000000 /dev/zero | tr '\0' x >&2; exit 1`: "x…",
		`echo hello`:         "invalid character",
		`echo '{"other":1}'`: "unknown field",
	} {
		got, err := tryInside(t.Context(), time.Minute, exec.Command("sh", "-c", script))
		if want == "" && (err != nil || got != trials{Boundary: "no", IDs: 7}) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %+v, %v", script, got, err)
		}
	}
	if _, err := tryInside(t.Context(), time.Minute, exec.Command("sh", "-c", `head -c 3000000 /dev/zero | tr '\0' x >&2; exit 1`)); err == nil || len(err.Error()) > 2*maxSaid {
		t.Errorf("%d bytes of another program are passed on", len(err.Error()))
	}
	if err := outcome("", errors.New("no nsenter")); err == nil || err.Error() != "not tried: no nsenter" {
		t.Error(err)
	}
	if err := outcome("no", nil); err == nil || outcome("", nil) != nil {
		t.Error(err)
	}
}
