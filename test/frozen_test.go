package test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/keeper/link"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// A listing takes no longer because of sandboxes that do not answer, in whatever
// way they are held, and says which they are.
func TestAListingIsNotHeldUpByFrozenSandboxes(t *testing.T) {
	h := newHost(t)
	h.push("w:1", plain)
	h.must("run", "-q", "--rm", "--exec", "w:1", "--", "true") // unpacks
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if _, err := h.run("create", "-q", "--name", fmt.Sprintf("s%02d", i), "w:1"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	quickest := func() (time.Duration, map[string]sandbox.Info) {
		var best time.Duration
		states := map[string]sandbox.Info{}
		for i := range 5 {
			begun := time.Now()
			out := h.must("ls", "--json")
			if took := time.Since(begun); i == 0 || took < best {
				best = took
			}
			var list []sandbox.Info
			if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 20 {
				t.Fatalf("%d sandboxes, %v", len(list), err)
			}
			for _, i := range list {
				// On a machine that is very busy one that lives may be late once.
				if old, ok := states[i.Name]; !ok || old.State == sandbox.Unknown {
					states[i.Name] = i
				}
			}
		}
		return best, states
	}
	before, _ := quickest()

	// The keeper stops, what is inside stops, both, and the kernel freezes it.
	stop := func(pid int) {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	}
	stop(h.info("s03").KeeperPID)
	stop(h.info("s04").PID)
	both := h.info("s05")
	stop(both.KeeperPID)
	stop(both.PID)
	frozen := []string{"s03", "s04", "s05"}
	h.hang("s07")
	frozen = append(frozen, "s07")
	if thaw := freeze(t, h.info("s06").PID); thaw != nil {
		defer thaw()
		frozen = append(frozen, "s06")
	}

	took, states := quickest()
	t.Logf("ls of 20: %v, with frozen ones %v", before, took)
	// The bound of the promise where the machine lets it be seen, and otherwise
	// what the frozen ones may add to what it takes without them.
	if took > max(300*time.Millisecond, before+260*time.Millisecond) {
		t.Errorf("ls takes %v, and %v without frozen ones", took, before)
	}
	for name, i := range states {
		want := sandbox.Ready
		for _, f := range frozen {
			if f == name {
				want = sandbox.Unknown
			}
		}
		if i.State != want || want == sandbox.Unknown && len(i.Problems) == 0 {
			t.Errorf("%s is %+v, want %s", name, i, want)
		}
	}
	if out := h.must("status", "s04", "--json"); !strings.Contains(out, `"unknown"`) {
		t.Errorf("status: %s", out)
	}
	// Stopped ones can be removed as they are.
	h.must("rm", "s03", "s04", "s05")
	h.must("rm", "s07")
}

// hang has a process in the place of the keeper of a sandbox that takes every call
// and answers none. It is not stopped, and does nothing.
func (h *host) hang(name string) {
	h.t.Helper()
	kill(h.t, h.info(name).KeeperPID)
	l, err := link.Bind(filepath.Join(h.home, "sandboxes", name))
	if err != nil {
		h.t.Fatal(err)
	}
	defer l.Close()
	f, err := l.File()
	if err != nil {
		h.t.Fatal(err)
	}
	defer f.Close()
	c := exec.Command("/proc/self/exe")
	c.Args = []string{link.ProcessName, hangs}
	c.ExtraFiles = []*os.File{f}
	if err := c.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
}

// hangs is the argument of a keeper that hang starts.
const hangs = "hangs"

// hangOn is what that one does.
func hangOn() {
	err := syscall.Listen(3, 128) // whoever listens last is who callers see
	var l net.Listener
	if err == nil {
		l, err = net.FileListener(os.NewFile(3, "listener"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	calls := map[net.Conn]bool{} // or they would be closed
	for {
		c, err := l.Accept()
		if err != nil {
			os.Exit(1)
		}
		calls[c] = true
	}
}

// freeze holds the processes of pid's machine by their control group; nil where
// there is no freezer. The returned function lets them go.
func freeze(t *testing.T, pid int) func() {
	t.Helper()
	// v2: the machine's own group has a switch.
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 || f[1] != "" || f[2] == "/" {
			continue
		}
		for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
			name := filepath.Join(mount, f[2], "cgroup.freeze")
			if os.WriteFile(name, []byte("1"), 0) == nil {
				return func() { _ = os.WriteFile(name, []byte("0"), 0) }
			}
		}
	}
	// v1: a group made for it.
	dir := fmt.Sprintf("/sys/fs/cgroup/freezer/kitbox-test-%d", os.Getpid())
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Logf("nothing freezes here: %v", err)
		return nil
	}
	thaw := func() {
		_ = os.WriteFile(dir+"/freezer.state", []byte("THAWED"), 0)
		procs, _ := os.ReadFile(dir + "/cgroup.procs")
		for _, p := range strings.Fields(string(procs)) {
			_ = os.WriteFile("/sys/fs/cgroup/freezer/cgroup.procs", []byte(p), 0)
		}
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	}
	if err := os.WriteFile(dir+"/cgroup.procs", []byte(strconv.Itoa(pid)), 0); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(dir+"/freezer.state", []byte("FROZEN"), 0); err != nil {
		t.Error(err)
	}
	return thaw
}
