package test

import (
	"strings"
	"testing"
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
