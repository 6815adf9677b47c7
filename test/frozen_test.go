package test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/journal"
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
	before, _ := h.list(20)

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
	h.hang("s07", hangs)
	frozen = append(frozen, "s07")
	if thaw := freeze(t, h.info("s06").PID); thaw != nil {
		defer thaw()
		frozen = append(frozen, "s06")
	}

	took, states := h.list(20)
	t.Logf("ls of 20: %v, with frozen ones %v", before, took)
	if took > before+heldUp {
		t.Errorf("ls takes %v, and %v without frozen ones", took, before)
	}
	unknown(t, states, frozen...)
	if out := h.must("status", "s04", "--json"); !strings.Contains(out, `"unknown"`) {
		t.Errorf("status: %s", out)
	}
	// Stopped ones can be removed as they are.
	h.must("rm", "s03", "s04", "s05")
	h.must("rm", "s07")
}

// heldUp is what sandboxes that do not answer may add to a listing of twenty: with
// what it takes otherwise, less than the 300 milliseconds that it is to take.
const heldUp = 260 * time.Millisecond

// list lists n sandboxes several times, and returns how long that takes in the middle
// and what is said of them.
func (h *host) list(n int) (time.Duration, map[string]sandbox.Info) {
	h.t.Helper()
	var took []time.Duration
	states := map[string]sandbox.Info{}
	for range 5 {
		begun := time.Now()
		out := h.must("ls", "--json")
		took = append(took, time.Since(begun))
		var list []sandbox.Info
		if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != n {
			h.t.Fatalf("%d sandboxes, %v", len(list), err)
		}
		for _, i := range list {
			// On a machine that is very busy one that lives may be late once.
			if old, ok := states[i.Name]; !ok || old.State == sandbox.Unknown {
				states[i.Name] = i
			}
		}
	}
	slices.Sort(took)
	return took[len(took)/2], states
}

// unknown checks that these are the sandboxes of which nothing is known, and the
// others are ready.
func unknown(t *testing.T, states map[string]sandbox.Info, names ...string) {
	t.Helper()
	for name, i := range states {
		want := sandbox.Ready
		if slices.Contains(names, name) {
			want = sandbox.Unknown
		}
		if i.State != want || want == sandbox.Unknown && len(i.Problems) == 0 {
			t.Errorf("%s is %+v, want %s", name, i, want)
		}
	}
}

// A keeper that spins is at work and will never answer, unlike one that waits for a
// processor. It holds up no listing. The control has the same load beside it.
func TestAListingIsNotHeldUpByAKeeperThatSpins(t *testing.T) {
	h := newHost(t)
	h.push("w:1", plain)
	for _, name := range []string{"spins", "works"} {
		h.must("create", "-q", "--name", name, "w:1")
	}
	load := exec.Command("/proc/self/exe")
	load.Args = []string{link.ProcessName, spinsFor}
	if err := load.Start(); err != nil {
		t.Fatal(err)
	}
	end := sync.OnceFunc(func() { _ = load.Process.Kill(); _ = load.Wait() })
	defer end() // if the listing fails: it would spin for ever
	before, _ := h.list(2)
	end()
	h.hang("spins", spinsFor)
	took, states := h.list(2)
	t.Logf("ls beside a process that spins: %v, and where it is a keeper %v", before, took)
	// Where the machine is crowded, one that is late is given as long again as a
	// listing is to take at most.
	if took > before+heldUp+800*time.Millisecond {
		t.Errorf("ls takes %v, and %v without it", took, before)
	}
	unknown(t, states, "spins")
	h.must("rm", "spins")
}

// However many do not answer, they are waited for together.
func TestAListingWaitsForAllAtOnce(t *testing.T) {
	h := newHost(t)
	h.push("w:1", plain)
	h.must("create", "-q", "--name", "works", "w:1")
	var silent []string
	silence := func() *os.File {
		name := fmt.Sprintf("silent%03d", len(silent))
		dir := filepath.Join(h.home, "sandboxes", name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, p := range []journal.Phase{journal.Creating, journal.InstallDone} {
			if err := (journal.Writer{Dir: dir}).Append(p, ""); err != nil {
				t.Fatal(err)
			}
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		l, err := link.Bind(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		f, err := l.File()
		if err != nil {
			t.Fatal(err)
		}
		silent = append(silent, name)
		return f
	}
	h.answerless(hangs, silence())
	one, states := h.list(2)
	unknown(t, states, silent...)
	var more []*os.File
	for range 239 {
		more = append(more, silence())
	}
	h.answerless(hangs, more...)
	all, states := h.list(241)
	unknown(t, states, silent...)
	t.Logf("ls with one that does not answer: %v, with 240: %v", one, all)
	if all > 6*one { // in turns it would be ten times as long
		t.Errorf("ls takes %v with 240 that do not answer, and %v with one", all, one)
	}
}

// hang has a process in the place of the keeper of a sandbox that takes every call
// and answers none. It is not stopped, and does nothing, or spins.
func (h *host) hang(name, how string) {
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
	h.answerless(how, f)
}

// answerless starts a process that is called at these listeners, which it closes here,
// and never answers.
func (h *host) answerless(how string, listeners ...*os.File) {
	h.t.Helper()
	c := exec.Command("/proc/self/exe")
	c.Args = []string{link.ProcessName, how}
	c.ExtraFiles = listeners
	defer func() {
		for _, f := range listeners {
			f.Close()
		}
	}()
	if err := c.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
}

// The arguments of a keeper that hang starts.
const (
	hangs    = "hangs"
	spinsFor = "spins"
)

// spinOn is what the second does. Whoever calls it is queued.
func spinOn() {
	_ = syscall.Listen(3, 128) // it may be there for the load alone
	for {
		continue
	}
}

// hangOn is what the first does. At listeners beyond the first, callers are queued.
func hangOn() {
	// Whoever listens last is who callers see.
	for fd := 3; syscall.Listen(fd, 128) == nil; fd++ {
	}
	l, err := net.FileListener(os.NewFile(3, "listener"))
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
