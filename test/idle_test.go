package test

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/sandbox"
)

// job waits for the end of a detached command and returns how it ended.
func (h *host) job(name, id string) (end sandbox.Job) {
	h.t.Helper()
	h.eventually("the job to end", func() string {
		var jobs []sandbox.Job
		if err := json.Unmarshal([]byte(h.must("job", "ls", "--json", name)), &jobs); err != nil {
			h.t.Fatal(err)
		}
		for _, j := range jobs {
			if j.ID == id && !j.Running {
				end = j
				return ""
			}
		}
		return "it runs"
	})
	return end
}

// Sessions are known to the keeper alone, and those that it had when it was killed
// go on: the next one must not take their sandbox for idle, and must stop it when
// they have ended.
func TestSessionsThatOutliveTheirKeeperHoldTheSandbox(t *testing.T) {
	h := newHost(t)
	h.push("w:1", plain)
	// Several times as long as the silence that would stop it.
	const busy = "sleep 4; echo done"
	for name, begin := range map[string]func() (end func() string){
		"a job": func() func() string {
			id := strings.TrimSpace(h.must("exec", "-d", "x", "--", "sh", "-c", busy))
			return func() string {
				if j := h.job("x", id); j.ExitCode == nil || *j.ExitCode != 0 {
					t.Errorf("the job: %+v", j)
				}
				return h.must("logs", "x", id)
			}
		},
		"a command": func() func() string {
			c := h.command("exec", "x", "--", "sh", "-c", busy)
			var out strings.Builder
			c.Stdout, c.Stderr = &out, &out
			h.begin(c, "x")
			return func() string {
				if err := c.Wait(); err != nil {
					t.Error(err)
				}
				return out.String()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h.must("create", "-q", "--name", "x", "--idle-timeout", "1s", "w:1")
			end := begin()
			before := h.info("x")
			kill(t, before.KeeperPID)
			h.must("exec", "x", "--", "true")
			after := h.info("x")
			if after.KeeperPID == before.KeeperPID || after.State != sandbox.Busy || after.Commands != 1 {
				t.Errorf("under the next keeper: %+v", after)
			}
			if out := end(); out != "done\n" {
				t.Errorf("it said %q", out)
			}
			h.eventually("the sandbox to stop", func() string {
				if i := h.info("x"); i.State != sandbox.Stopped || !strings.HasPrefix(i.Reason, "idle") {
					return string(i.State) + " " + i.Reason
				}
				return ""
			})
			h.must("rm", "x")
		})
	}
}

// begin starts c and waits until it runs in the sandbox.
func (h *host) begin(c *exec.Cmd, name string) {
	h.t.Helper()
	if err := c.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.eventually("a command to run", func() string {
		if i := h.info(name); i.Commands == 0 {
			return string(i.State)
		}
		return ""
	})
}

// A sandbox that may stop at any moment is started again for whoever attaches to it,
// and is not stopped before its workload has begun: no error is tolerated.
func TestAttachingNeverRacesTheIdleStop(t *testing.T) {
	h := newHost(t)
	h.push("w:1", plain)
	h.must("create", "-q", "--name", "brief", "--idle-timeout", "1ms", "w:1")
	for i := range 20 {
		if out := h.must("attach", "brief", "--", "-c", fmt.Sprint("echo ", i)); out != fmt.Sprintln(i) {
			t.Errorf("attach %d said %q", i, out)
		}
	}
	// Several at once, each of which may find it stopping at the end of another.
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 5 {
				out, err := h.run("attach", "brief", "--", "-c", fmt.Sprint("echo ", i))
				if err != nil || out != fmt.Sprintln(i) {
					t.Errorf("attach %d said %q: %v", i, out, err)
				}
			}
		})
	}
	wg.Wait()
	h.must("rm", "brief")
}

// The sandbox of a run is kept, stopped, and its name can be used again at once.
func TestRunsInALoopNeverRaceTheIdleStop(t *testing.T) {
	h := newHost(t)
	h.push("w:1", plain)
	for i := range 20 {
		if out := h.must("run", "-q", "--name", "same", "--idle-timeout", "1ms", "w:1", "--", "-c", fmt.Sprint("echo ", i)); out != fmt.Sprintln(i) {
			t.Errorf("run %d said %q", i, out)
		}
		if s := h.info("same"); s.State != sandbox.Stopped {
			t.Errorf("after run %d: %+v", i, s)
		}
		if out := h.must("attach", "same", "--", "-c", "echo again"); out != "again\n" {
			t.Errorf("attach %d said %q", i, out)
		}
		h.must("rm", "same")
	}
}

// When a sandbox will stop is known, and to ask, however often, puts it off no further.
func TestStatusSaysWhenASandboxStops(t *testing.T) {
	h := newHost(t)
	h.push("w:1", plain)
	h.push("l:1", `{"schemaVersion":"3","kind":"workload","provides":["w@1"],"capabilities":[{"type":"com.docker.sandbox/long-running@1"}]}`)
	h.must("create", "-q", "--name", "brief", "--idle-timeout", "5s", "w:1")
	h.must("create", "-q", "--name", "ever", "--idle-timeout", "0", "w:1")
	h.must("create", "-q", "--name", "serves", "--idle-timeout", "5s", "l:1")
	c := h.command("exec", "brief", "--", "sleep", "2")
	h.begin(c, "brief")
	if i := h.info("brief"); i.IdleMs != 5000 || !i.IdleSince.IsZero() || !i.StopsAt.IsZero() {
		t.Errorf("while it is used: %+v", i)
	}
	if out := h.must("status", "brief"); !strings.Contains(out, "idle       stopped 5s after its last session\n") {
		t.Errorf("status:\n%s", out)
	}
	for _, name := range []string{"ever", "serves"} {
		if i := h.info(name); i.IdleMs != 0 || i.IdleSince.IsZero() || !i.StopsAt.IsZero() {
			t.Errorf("%s: %+v", name, i)
		}
		if out := h.must("status", name); !strings.Contains(out, "idle       never") {
			t.Errorf("status of %s:\n%s", name, out)
		}
	}
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
	i := h.info("brief")
	if i.IdleSince.IsZero() || i.StopsAt.Sub(i.IdleSince) != 5*time.Second {
		t.Fatalf("afterwards: %+v", i)
	}
	if out := h.must("status", "brief"); !strings.Contains(out, "stops in ") || !strings.Contains(out, i.StopsAt.Local().Format(time.RFC3339)) {
		t.Errorf("status:\n%s", out)
	}
	stops := i.StopsAt
	h.eventually("it to stop while it is asked for", func() string {
		i = h.info("brief")
		if i.State == sandbox.Ready && !i.StopsAt.Equal(stops) {
			t.Fatalf("it was to stop at %v, and now at %v", stops, i.StopsAt)
		}
		if i.State != sandbox.Stopped {
			return string(i.State)
		}
		return ""
	})
	if !i.StopsAt.IsZero() || !i.IdleSince.IsZero() || i.IdleMs != 5000 || !strings.HasPrefix(i.Reason, "idle") {
		t.Errorf("stopped: %+v", i)
	}
	for _, name := range []string{"brief", "ever", "serves"} {
		h.must("rm", name)
	}
}
