package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const keeps = `  - type: com.docker.sandbox/volume@1
    config: {path: /data}
  - type: com.docker.sandbox/volume@1
    config: {path: /scratch, tmpfs: true}
  - type: com.docker.sandbox/lifecycle@1
    config:
      install:
        - command: "echo installed >> /data/installs"
      startup:
        - command: "date > /tmp/started"
`

func rewrite(t *testing.T, dir, old, by string) {
	t.Helper()
	p := filepath.Join(dir, "kit.yaml")
	b, err := os.ReadFile(p)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(b), old) {
		t.Fatalf("%s has no %q", p, old)
	}
	if err := os.WriteFile(p, []byte(strings.ReplaceAll(string(b), old, by)), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestRecreateKeepsVolumesAndAsksForMore(t *testing.T) {
	dir := kit(t, keeps)
	create(t, "again", "-q", dir)
	id := ok(t, "exec", "again", "--", "sh", "-c", "echo kept > /data/f; echo gone > /tmp/f; echo gone > /scratch/f; hostname")
	all := func() string {
		return ok(t, "exec", "again", "--", "sh", "-c", "cat /data/f; cat /data/installs; ls /tmp /scratch; hostname")
	}
	before := all()

	// Refused, and nothing changed: other terms for the volume.
	rewrite(t, dir, "{path: /data}", "{path: /data, mode: \"0700\"}")
	if o := kitbox(t, "recreate", "-q", "again"); o.Code != 2 || !strings.Contains(o.Stderr, "/data") || !strings.Contains(o.Stderr, "mode") {
		t.Errorf("other terms: %+v", o)
	}
	// Refused, and nothing changed: more authority.
	rewrite(t, dir, "{path: /data, mode: \"0700\"}", "{path: /data}")
	rewrite(t, dir, "capabilities:\n", "capabilities:\n  - type: com.docker.sandbox/network-policy@1\n    config: {runtime: {allow: [new.test]}}\n")
	o := kitbox(t, "recreate", "-q", "again")
	if o.Code != 3 || !strings.Contains(o.Stderr, "new.test") || !strings.Contains(o.Stderr, "--approve") {
		t.Errorf("a widening: %+v", o)
	}
	if after := all(); after != before {
		t.Errorf("a refused recreation changed something: %q, was %q", after, before)
	}

	// What will not run is not shown either.
	if o := kitbox(t, "recreate", "--approve", "again"); o.Code != 0 || !strings.Contains(o.Stderr, "1 startup") || strings.Contains(o.Stderr, "install") {
		t.Errorf("recreate: %+v", o)
	}
	if out := all(); out != "kept\ninstalled\n/scratch:\n\n/tmp:\nstarted\n"+id {
		t.Errorf("afterwards: %q", out)
	}
	if in := ok(t, "inspect", "again"); !strings.Contains(in, "new.test") {
		t.Error("the new grant is not recorded")
	}
	// What is granted now needs no approval again, also from a stop; a
	// destination that is no longer declared is kept for later.
	ok(t, "stop", "again")
	rewrite(t, dir, "    config: {path: /data}", "    config: {path: /else}")
	if o := kitbox(t, "recreate", "-q", "again"); o.Code != 3 || !strings.Contains(o.Stderr, "/else") {
		t.Errorf("a new path is a widening: %+v", o)
	}
	rewrite(t, dir, "    config: {path: /else}", "    config: {path: /data}")
	ok(t, "recreate", "-q", "again")
	if out := ok(t, "exec", "again", "--", "cat", "/data/f", "/data/installs"); out != "kept\ninstalled\n" {
		t.Errorf("after another: %q", out)
	}
	ok(t, "restart", "again")
	if out := ok(t, "exec", "again", "--", "cat", "/data/f"); out != "kept\n" {
		t.Errorf("after a restart: %q", out)
	}

	// The setup of a Kit that is new is not left out without a word, also
	// after another recreation, and not when its other version comes.
	late := write(t, map[string]string{"late/late.yaml": strings.NewReplacer("workload", "mixin", "[w]", "[late]").Replace(head) + "capabilities:\n  - type: com.docker.sandbox/lifecycle@1\n    config: {install: [{command: touch /data/late}]}\n"}) + "/late"
	said := "kit " + late + " came with a recreation, and its install hooks run at create alone"
	if o := kitbox(t, "recreate", "again", dir, "--kit", late); o.Code != 0 || !strings.Contains(o.Stderr, said) || strings.Contains(o.Stderr, "kit "+dir+" came") {
		t.Errorf("a new Kit with install hooks: %+v", o)
	}
	if out := ok(t, "exec", "again", "--", "sh", "-c", "test -e /data/late || echo none"); out != "none\n" {
		t.Errorf("its hook: %q", out)
	}
	for range 2 {
		if out := ok(t, "status", "again"); !strings.Contains(out, said) {
			t.Errorf("status: %s", out)
		}
		ok(t, "recreate", "-q", "again")
	}
	ok(t, "recreate", "-q", "again", dir)
	if out := ok(t, "status", "again"); strings.Contains(out, "came with a recreation") {
		t.Errorf("status without it: %s", out)
	}

	// Other Kits under the same name find the volume.
	other := kit(t, "  - type: com.docker.sandbox/volume@1\n    config: {path: /data}\n")
	ok(t, "recreate", "-q", "again", other)
	if out := ok(t, "exec", "again", "--", "sh", "-c", "cat /data/f; test -d /scratch || echo none"); out != "kept\nnone\n" {
		t.Errorf("with another Kit: %q", out)
	}
}

// TestARecreationThatWasCutShortIsFinished puts a sandbox where a kill leaves it.
func TestARecreationThatWasCutShortIsFinished(t *testing.T) {
	dir := kit(t, keeps)
	create(t, "cut", "-q", dir)
	ok(t, "exec", "cut", "--", "sh", "-c", "echo kept > /data/f; echo gone > /tmp/f")
	ok(t, "recreate", "-q", "cut")
	ok(t, "exec", "cut", "--", "sh", "-c", "echo gone > /tmp/f")
	ok(t, "stop", "cut")
	state := filepath.Join(home, "sandboxes", "cut")
	plan, err := os.ReadFile(filepath.Join(state, "plan.json"))
	if err != nil {
		t.Fatal(err)
	}
	lock, err := os.ReadFile(filepath.Join(state, "lock.json"))
	if err != nil {
		t.Fatal(err)
	}
	sel, err := os.ReadFile(filepath.Join(state, "selection.json"))
	if err != nil {
		t.Fatal(err)
	}
	next := `{"version":1,"plan":` + string(plan) + `,"lock":` + string(lock) + `,"selection":` + string(sel) + `}`

	// Before it was decided: it is forgotten.
	if err := os.WriteFile(filepath.Join(state, "next.json"), []byte(next), 0o600); err != nil {
		t.Fatal(err)
	}
	ok(t, "start", "cut")
	if out := ok(t, "exec", "cut", "--", "cat", "/data/f", "/tmp/f"); out != "kept\ngone\n" {
		t.Errorf("one that had not begun: %q", out)
	}
	ok(t, "stop", "cut")
	// Afterwards: it is finished, by whatever command comes.
	if err := os.WriteFile(filepath.Join(state, "next.json"), []byte(next), 0o600); err != nil {
		t.Fatal(err)
	}
	j, err := os.OpenFile(filepath.Join(state, "journal.jsonl"), os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if _, err := j.WriteString("{\"time\":\"2026-01-01T00:00:00Z\",\"phase\":\"recreating\",\"pid\":1}\n"); err != nil {
		t.Fatal(err)
	}
	ok(t, "start", "cut")
	if o := sh(t, "cut", "", "cat /data/f; cat /tmp/f"); o.Stdout != "kept\n" {
		t.Errorf("one that had begun: %+v", o)
	}
	if _, err := os.Stat(filepath.Join(state, "next.json")); err == nil {
		t.Error("next.json is left")
	}
}

// What a directory's steps could reach when the sandbox was made they can reach when it
// is made again, as it is rebuilt then; other Kits ask anew.
func TestRecreateBuildsWithTheNetworkThatWasConsentedTo(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // the kernel connects whoever comes
	step := func(n string) string {
		return fmt.Sprintf("  RUN bash -c 'echo > /dev/tcp/127.0.0.1/%d' && echo step %s > /home/agent/step\n", l.Addr().(*net.TCPAddr).Port, n)
	}
	withStep := func(n string) string {
		return write(t, map[string]string{"kit.yaml": head + recipe + step(n) + "capabilities:\n  - type: com.docker.sandbox/volume@1\n    config: {path: /data}\n"})
	}
	dir := withStep("one")
	if o := kitbox(t, "create", "-q", "--name", "reached", dir); o.Code == 0 {
		t.Fatal("a step reached the host without a network")
	}
	create(t, "reached", "-q", "--build-network", "host", dir)
	rewrite(t, dir, "step one", "step two")
	o := kitbox(t, "recreate", "reached")
	if got := ok(t, "exec", "reached", "--", "cat", "/home/agent/step"); o.Code != 0 || got != "step two\n" || !strings.Contains(o.Stderr, "host: RUN steps") {
		t.Fatalf("recreated with status %d, and has %q\n%s", o.Code, got, o.Stderr)
	}
	rewrite(t, dir, "step two", "step three")
	if o := kitbox(t, "recreate", "-q", "--build-network", "none", "reached"); o.Code == 0 {
		t.Error("--build-network none gave one")
	}
	other := withStep("other")
	if o := kitbox(t, "recreate", "-q", "reached", other); o.Code == 0 {
		t.Error("another Kit had the network that was for the first")
	}
	if got := ok(t, "exec", "reached", "--", "cat", "/home/agent/step"); got != "step two\n" {
		t.Errorf("a recreation that failed left %q", got)
	}
	ok(t, "recreate", "-q", "--build-network", "host", "reached", other)
	rewrite(t, other, "step other", "step last")
	ok(t, "recreate", "-q", "reached")
	if got := ok(t, "exec", "reached", "--", "cat", "/home/agent/step"); got != "step last\n" {
		t.Errorf("made again: %q", got)
	}
}
