package e2e

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"
)

// TestNewcomer types the README's tour.
func TestNewcomer(t *testing.T) {
	o := kitbox(t, "run", "--rm", "--exec", "./examples/hello", "--", "sh", "-c", `id; tr "\0" " " </proc/1/cmdline`)
	if o.Code != 0 || !strings.Contains(o.Stdout, "uid=1000(agent)") || !strings.Contains(o.Stdout, "kit-guest") {
		t.Fatalf("run --exec: %+v", o)
	}
	if !strings.Contains(o.Stderr, "usb-device") {
		t.Errorf("the optional capability that was skipped is not shown:\n%s", o.Stderr)
	}

	create(t, "tour", "./examples/hello", "--kit", "./examples/tool")
	if out := ok(t, "exec", "tour", "--", "cat", "/time.txt"); len(out) < 10 {
		t.Errorf("/time.txt = %q; the mixin's startup hook did not run", out)
	}
	if o := sh(t, "tour", "", "exit 7"); o.Code != 7 {
		t.Errorf("exit 7 gave %d", o.Code)
	}
	if o := kitbox(t, "exec", "tour", "--", "/no/such/program"); o.Code != 125 {
		t.Errorf("a program that is not there gave %d: %s", o.Code, o.Stderr)
	}

	blob := make([]byte, 1_000_000)
	rand.Read(blob)
	sum := sha256.Sum256(blob)
	if o := kitboxIn(t, blob, "exec", "-i", "tour", "--", "sha256sum"); !strings.HasPrefix(o.Stdout, hex.EncodeToString(sum[:])) {
		t.Errorf("sha256sum of stdin = %q (%d) %s, want %x", o.Stdout, o.Code, o.Stderr, sum)
	}
	if o := kitboxIn(t, blob, "exec", "-i", "tour", "--", "cat"); o.Stdout != string(blob) {
		t.Errorf("cat gave %d bytes back, not the %d sent", len(o.Stdout), len(blob))
	}

	if o := kitbox(t, "exec", "tour", "--", "curl", "-sS", "--max-time", "5", "http://denied.example"); o.Code == 0 {
		t.Errorf("denied.example was reached: %+v", o)
	}
	log := ok(t, "policy", "log", "tour", "--json")
	var denied bool
	var events []map[string]any
	if err := json.Unmarshal([]byte(log), &events); err != nil {
		t.Fatalf("policy log --json is not one document: %v\n%s", err, log)
	}
	for _, e := range events {
		if e["host"] == "denied.example" && e["allow"] != true && e["verdict"] != "allow" {
			denied = true
		}
	}
	if !denied {
		t.Errorf("the refusal of denied.example is not in the log:\n%s", log)
	}

	before := ok(t, "exec", "tour", "--", "cat", "/data/kept")
	ok(t, "stop", "tour")
	if o := kitbox(t, "exec", "tour", "--", "true"); o.Code == 0 {
		t.Errorf("exec in a stopped sandbox succeeded")
	}
	ok(t, "start", "tour")
	if after := ok(t, "exec", "tour", "--", "cat", "/data/kept"); after != before {
		t.Errorf("/data/kept was %q and is %q", before, after)
	}
	if boots := ok(t, "exec", "tour", "--", "cat", "/home/agent/.hello-startup"); strings.Count(boots, "started") != 2 {
		t.Errorf("startup hooks ran %q, want twice", boots)
	}

	var list []map[string]any
	if err := json.Unmarshal([]byte(ok(t, "ls", "--json")), &list); err != nil {
		t.Fatalf("ls --json is not one document: %v", err)
	}
	found := false
	for _, s := range list {
		found = found || s["name"] == "tour"
	}
	if !found {
		t.Errorf("ls --json does not show tour: %v", list)
	}
	ok(t, "rm", "tour")
	if o := kitbox(t, "status", "tour"); o.Code == 0 {
		t.Errorf("status of a removed sandbox succeeded: %s", o.Stdout)
	}
	if o := kitbox(t, "run", "./examples/two-workloads"); o.Code != 2 || !strings.Contains(o.Stderr, "two workloads") {
		t.Errorf("two workloads: %+v", o)
	}
}

func TestLaunchAppendsArgumentsUnderBash(t *testing.T) {
	out := ok(t, "run", "--rm", probe, "--", "more", "two words")
	// The image's cmd is part of the launch argv; ARGS come after it.
	if want := "args: entry cmd more two words\nbashenv: sourced\n"; !strings.HasPrefix(out, want) {
		t.Errorf("run printed %q, want %q first", out, want)
	}
}

func TestHooksSeeWhatTheyDeclareAndNothingElse(t *testing.T) {
	t.Setenv("PROBE_SECRET", "of-the-host")
	create(t, "hooks", probe)
	if got := ok(t, "exec", "-u", "0", "hooks", "--", "cat", "/install-uid.txt", "/home/agent/startup-uid.txt"); got != "0\n1000\n" {
		t.Errorf("hook users = %q, want root for install and the agent for startup", got)
	}
	allowed := map[string]bool{"PATH": true, "HOME": true, "HOSTNAME": true, "TERM": true, "PWD": true, "OLDPWD": true, "SHLVL": true, "_": true}
	env := ok(t, "exec", "hooks", "--", "cat", "/install-env.txt")
	for line := range strings.Lines(env) {
		if name, _, _ := strings.Cut(line, "="); !allowed[name] {
			t.Errorf("the install hook saw %s", strings.TrimSpace(line))
		}
	}
	if !strings.Contains(ok(t, "exec", "hooks", "--", "cat", "/home/agent/startup-env.txt"), "PROBE_SAYS=hello\n") {
		t.Error("the startup hook did not see the variable that it declares")
	}
	if got := ok(t, "exec", "hooks", "--", "sh", "-c", "cat conf/probe.conf 2>/dev/null || cat /home/agent/conf/probe.conf; stat -c %U /home/agent/conf/probe.conf"); got != "from = kitbox.local/base:1 $HOME\nagent\n" {
		t.Errorf("file = %q", got)
	}
	vars := ok(t, "exec", "-e", "SANDBOX_NAME=forged", "hooks", "--", "sh", "-c", "echo $SANDBOX_NAME $IS_SANDBOX ${SANDBOX_ID:+id} ${WORKSPACE_DIR-none}")
	if vars != "hooks 1 id /work\n" {
		t.Errorf("owned variables = %q", vars)
	}
}

func TestAMixinBelowHomeLeavesItTheAgents(t *testing.T) {
	create(t, "implied", probe, "--kit", addon)
	if got := ok(t, "exec", "implied", "--", "sh", "-c", "stat -c '%U %a' /home/agent; cat /home/agent/tools/addon.txt; touch /home/agent/mine && echo writable"); !strings.HasPrefix(got, "agent ") || !strings.HasSuffix(got, "added\nwritable\n") {
		t.Errorf("below /home/agent: %q", got)
	}
}

func TestWorkspaceFilesBelongToTheCaller(t *testing.T) {
	dir := t.TempDir()
	out := ok(t, "run", "--rm", "--exec", probe, dir, "--", "sh", "-c", "pwd; echo $WORKSPACE_DIR; id -un; echo hi > made; stat -c %U .")
	if out != "/work\n/work\nagent\nagent\n" {
		t.Errorf("inside: %q", out)
	}
	b, uid := readOwned(t, dir+"/made")
	if !bytes.Equal(b, []byte("hi\n")) || uid != callerUID() {
		t.Errorf("outside: %q owned by %d, want the caller %d", b, uid, callerUID())
	}
}
