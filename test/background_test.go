package test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/sandbox"
)

// services is a Kit with a service of its own, which a background startup hook
// starts and becomes.
const services = `{"schemaVersion":"3","kind":"workload","provides":["w@1"],"capabilities":[
 {"type":"com.docker.sandbox/long-running@1"},
 {"type":"com.docker.sandbox/volume@1","config":{"path":"/v"}},
 {"type":"com.docker.sandbox/lifecycle@1","config":{
  "startup":[{"command":"echo begun >>/v/begun; trap 'echo ended >>/v/ended' TERM; while :; do echo beat >/v/beat; sleep 0.05; done","background":true}]}}]}`

// A service lives as long as its sandbox, whatever becomes of the keeper that
// started it, and gets to end in order.
func TestABackgroundHookOutlivesItsKeeper(t *testing.T) {
	h := newHost(t)
	h.push("w:1", services)
	h.must("create", "-q", "--name", "b", "w:1")
	beats := func() {
		t.Helper()
		h.must("exec", "b", "--", "rm", "-f", "/v/beat")
		h.reached(strings.TrimSuffix(h.volume("b"), "/") + "/beat")
	}
	beats()
	kill(t, h.info("b").KeeperPID)
	h.must("start", "b")
	beats()
	if out := h.must("exec", "b", "--", "cat", "/v/begun"); out != "begun\n" {
		t.Errorf("it was begun %q", out)
	}
	h.must("stop", "b")
	h.must("start", "b")
	beats()
	if out := h.must("exec", "b", "--", "cat", "/v/begun", "/v/ended"); out != "begun\nbegun\nended\n" {
		t.Errorf("after stop and start: %q", out)
	}
	h.must("rm", "b")
	h.must("volume", "rm", "b")
}

// ends is a Kit with background hooks that end when they are told to: one badly, one
// while no keeper is there.
const ends = `{"schemaVersion":"3","kind":"workload","provides":["w@1"],"capabilities":[
 {"type":"com.docker.sandbox/long-running@1"},
 {"type":"com.docker.sandbox/volume@1","config":{"path":"/v"}},
 {"type":"com.docker.sandbox/lifecycle@1","config":{
  "startup":[{"command":"echo hello; while ! test -e /v/go; do sleep 0.05; done; exit 7","background":true},
             {"command":"while ! test -e /v/gone; do sleep 0.05; done; touch /v/ended; exit 5","background":true},
             {"command":"exit 3","background":true}]}}]}`

// How a background hook ends is logged by whoever keeps the sandbox then, once.
func TestTheEndOfABackgroundHookIsLoggedByTheNextKeeper(t *testing.T) {
	h := newHost(t)
	h.push("w:1", ends)
	h.must("create", "-q", "--name", "b", "w:1")
	codes := func() (out map[int]int) {
		t.Helper()
		out = map[int]int{}
		var runs []sandbox.HookRun
		if err := json.Unmarshal([]byte(h.must("logs", "--json", "b")), &runs); err != nil {
			t.Fatal(err)
		}
		for _, r := range runs {
			if _, twice := out[r.Index]; twice {
				t.Errorf("hook %d is logged twice: %+v", r.Index, runs)
			}
			out[r.Index] = r.ExitCode
		}
		return out
	}
	h.eventually("the hook that ends at once", func() string {
		if codes()[2] != 3 {
			return "it is not logged"
		}
		return ""
	})
	kill(t, h.info("b").KeeperPID)
	// Without a keeper a file of the volume can be made from the host alone.
	h.touch("b", "gone")
	h.reached(h.volume("b") + "/ended")
	h.must("start", "b")
	kill(t, h.info("b").KeeperPID)
	h.must("start", "b")
	h.must("exec", "b", "--", "touch", "/v/go")
	h.eventually("the ends of both to be logged", func() string {
		if c := codes(); c[0] != 7 || c[1] != 5 || c[2] != 3 {
			return "the log has other ends"
		}
		return ""
	})
	problems := strings.Join(h.info("b").Problems, "\n")
	if !strings.Contains(problems, "status 7") {
		t.Errorf("problems: %s", problems)
	}
	h.must("rm", "b")
	h.must("volume", "rm", "b")
}

func (h *host) touch(name, file string) {
	h.t.Helper()
	if err := os.WriteFile(filepath.Join(h.volume(name), file), nil, 0o644); err != nil {
		h.t.Fatal(err)
	}
}

// limps is a Kit whose startup hooks fail at every boot, one in the background.
const limps = `{"schemaVersion":"3","kind":"workload","provides":["w@1"],"capabilities":[
 {"type":"com.docker.sandbox/long-running@1"},
 {"type":"com.docker.sandbox/volume@1","config":{"path":"/v"}},
 {"type":"com.docker.sandbox/lifecycle@1","config":{
  "install":[{"command":"true"}],
  "startup":[{"command":"echo no luck; test -e /v/mended || exit 6"},{"command":"true"},
             {"command":"test -e /v/mended || exit 8","background":true}]}}]}`

// What failed at the boot is a problem of the sandbox for as long as it is up, whoever
// keeps it, and not after a boot at which it did not fail.
func TestAHookThatFailedIsAProblemForTheNextKeeperToo(t *testing.T) {
	h := newHost(t)
	h.push("w:1", limps)
	if _, err := h.run("create", "-q", "--name", "b", "w:1"); err == nil || !strings.Contains(err.Error(), "startup hook 0") {
		t.Errorf("create: %v", err)
	}
	problems := func(want ...string) {
		t.Helper()
		h.eventually("the problems to be known", func() string {
			got := h.info("b").Problems
			all := strings.Join(got, "; ")
			if len(got) != len(want) {
				return fmt.Sprintf("%d: %s", len(got), all)
			}
			for _, w := range want {
				if strings.Count(all, w) != 1 {
					return fmt.Sprintf("no %q: %s", w, all)
				}
			}
			return ""
		})
	}
	problems("status 6", "status 8")
	for range 2 {
		kill(t, h.info("b").KeeperPID)
		h.must("exec", "b", "--", "true")
		problems("status 6", "status 8")
	}
	// Its workload is run all the same.
	kill(t, h.info("b").KeeperPID)
	for range 2 {
		if out := h.must("attach", "b", "--", "-c", "echo works"); out != "works\n" {
			t.Errorf("attach said %q", out)
		}
	}
	h.touch("b", "mended")
	h.must("restart", "b")
	problems()
	kill(t, h.info("b").KeeperPID)
	h.must("exec", "b", "--", "true")
	problems()
	h.must("rm", "b")
	h.must("volume", "rm", "b")
}
