package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestAKitOfSeveralPlatforms builds one by one command, and takes it everywhere an
// index has to go: registry, another store, archive, judge.
func TestAKitOfSeveralPlatforms(t *testing.T) {
	host := validating(t)
	other := "arm64"
	if runtime.GOARCH == "arm64" {
		other = "amd64"
	}
	both := "linux/" + runtime.GOARCH + ",linux/" + other
	dir := piece(t)
	digest := strings.TrimSpace(ok(t, "build", "-q", "--platform", both, "-t", host+"/kits/piece:1", "--push", dir))
	if again := kitbox(t, "build", "--platform", "linux/"+other, "--platform", "linux/"+runtime.GOARCH, dir); strings.TrimSpace(again.Stdout) != digest || strings.Contains(again.Stderr, "building") {
		t.Errorf("again, in another order: %+v", again)
	}
	if one := strings.TrimSpace(ok(t, "build", "-q", dir)); one == digest {
		t.Error("for one platform it is the same")
	}
	var seen struct {
		Root, Platform string
		Platforms      []string
	}
	if err := json.Unmarshal([]byte(ok(t, "image", "inspect", host+"/kits/piece:1")), &seen); err != nil {
		t.Fatal(err)
	}
	if seen.Root != digest || seen.Platform != "linux/"+runtime.GOARCH || strings.Join(seen.Platforms, ",") != "linux/amd64,linux/arm64" {
		t.Errorf("inspect: %+v, want the index %s", seen, digest)
	}
	if judge := finish(t, command(t.Context(), "kit-tck", "validate", host+"/kits/piece:1")); judge.Code != 0 {
		t.Errorf("kit-tck: status %d\n%s%s", judge.Code, judge.Stdout, judge.Stderr)
	}
	if judge := finish(t, command(t.Context(), "kit-tck", "validate", "--platform", "linux/"+other, "kits/piece:1", "--layout", filepath.Join(home, "images"))); judge.Code == 0 {
		t.Errorf("a name that is not there: %+v", judge)
	}
	// Another store has one platform of it, then both.
	there := filepath.Join(t.TempDir(), "there")
	in := func(args ...string) outcome {
		t.Helper()
		cmd := command(t.Context(), "kitbox", args...)
		cmd.Env = append(cmd.Env, "KITBOX_HOME="+there)
		return finish(t, cmd)
	}
	for _, p := range []string{"linux/" + other, "linux/" + runtime.GOARCH} {
		if o := in("pull", "-q", "--platform", p, host+"/kits/piece:1"); strings.TrimSpace(o.Stdout) != digest {
			t.Errorf("pull %s: %+v", p, o)
		}
	}
	tar := filepath.Join(t.TempDir(), "piece.tar")
	if o := in("image", "save", "-o", tar, host+"/kits/piece:1"); o.Code != 0 {
		t.Errorf("save: %+v", o)
	}
	there = filepath.Join(t.TempDir(), "third")
	if o := in("image", "load", "-i", tar); o.Code != 0 {
		t.Errorf("load: %+v", o)
	}
	if o := in("push", "-q", host+"/kits/piece:1", "as", host+"/kits/again:1"); strings.TrimSpace(o.Stdout) != digest {
		t.Errorf("push: %+v", o)
	}
	// What needs an emulator is refused with its line.
	needs := write(t, map[string]string{"kit.yaml": "schemaVersion: \"3\"\nkind: workload\nprovides: [w@1]\n",
		"kit.dockerfile": "FROM kitbox.local/base:1\nUSER root\nRUN true\nCMD [\"sh\"]\n"})
	if o := kitbox(t, "build", "-q", "--platform", both, needs); o.Code == 0 || !strings.Contains(o.Stderr, "kit.dockerfile:") || !strings.Contains(o.Stderr, other) {
		t.Errorf("steps elsewhere: %+v", o)
	}
}

// TestABaseOfARegistryIsLookedUpAsKitsAre moves the base of an unchanged Kit.
func TestABaseOfARegistryIsLookedUpAsKitsAre(t *testing.T) {
	host := validating(t)
	base := host + "/bases/one:1"
	ok(t, "build", "-q", "-t", base, "--push", piece(t))
	dir := write(t, map[string]string{"kit.yaml": "schemaVersion: \"3\"\nkind: mixin\nprovides: [m@1]\n", "kit.dockerfile": "FROM scratch\nCOPY --from=" + base + " /piece.txt /opt/piece.txt\n"})
	first := kitbox(t, "build", "--progress", "plain", dir)
	if first.Code != 0 || !strings.Contains(first.Stderr, base+" is sha256:") {
		t.Fatalf("%+v", first)
	}
	if again := kitbox(t, "build", dir); again.Stdout != first.Stdout || strings.Contains(again.Stderr, "building") {
		t.Errorf("again: %+v", again)
	}
	other := write(t, map[string]string{"kit.yaml": "schemaVersion: \"3\"\nkind: mixin\nprovides: [piece@2]\nbuild: |\n  FROM scratch\n  COPY <<EOT /piece.txt\n  another\n  EOT\n"})
	moved := strings.TrimSpace(ok(t, "build", "-q", "-t", host+"/bases/two:1", other))
	ok(t, "push", "-q", host+"/bases/two:1", "as", base)
	if o := kitbox(t, "build", "-q", "--pull", "missing", dir); o.Stdout != first.Stdout {
		t.Errorf("missing: %+v", o)
	}
	o := kitbox(t, "build", dir)
	if o.Code != 0 || o.Stdout == first.Stdout || !strings.Contains(o.Stderr, moved) {
		t.Errorf("a base that moved: %+v", o)
	}
	if err := os.WriteFile(filepath.Join(dir, "kit.dockerfile"), []byte("FROM scratch\nCOPY --from="+host+"/bases/none:1 /x /opt/x\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]string{{"never", "--pull never"}, {"always", "not found"}} {
		if o := kitbox(t, "build", "-q", "--pull", c[0], dir); o.Code != 1 || !strings.Contains(o.Stderr, "kit.dockerfile:2: ") || !strings.Contains(o.Stderr, "/bases/none:1") || !strings.Contains(o.Stderr, c[1]) {
			t.Errorf("%s, of what is not there: %+v", c[0], o)
		}
	}
}

// TestALoginKeptForARegistry is presented to that registry, for Kits and for bases,
// and to nobody else.
func TestALoginKeptForARegistry(t *testing.T) {
	host := validatingBehind(t, "me", "s3cr:et")
	p := newPrivate(t)
	in := func(stdin string, args ...string) outcome {
		t.Helper()
		cmd := command(t.Context(), "kitbox", args...)
		cmd.Env = append(cmd.Env, "KITBOX_HOME="+p.home)
		cmd.Stdin = strings.NewReader(stdin)
		return finish(t, cmd)
	}
	dir := piece(t)
	ref := host + "/kits/piece:1"
	if o := in("", "build", "-q", "-t", ref, "--push", dir); o.Code != 1 || !strings.Contains(o.Stderr, "kitbox secret set --registry "+host) {
		t.Errorf("without a login: %+v", o)
	}
	if o := in("me", "secret", "set", "--registry", host); o.Code == 0 || !strings.Contains(o.Stderr, "USER:PASSWORD") {
		t.Errorf("half a login: %+v", o)
	}
	if o := in("", "secret", "set", "--registry", host, "--command", "echo me:x", "--approve"); o.Code == 0 || !strings.Contains(o.Stderr, "credential helper") {
		t.Errorf("a command: %+v", o)
	}
	if o := in("me:s3cr:et\n", "secret", "set", "--registry", host); o.Code != 0 {
		t.Fatalf("%+v", o)
	}
	if o := in("", "secret", "ls"); !strings.Contains(o.Stdout, "registry "+host) || strings.Contains(o.Stdout, "s3cr") {
		t.Errorf("%+v", o)
	}
	if o := in("", "build", "-q", "-t", ref, "--push", dir); o.Code != 0 {
		t.Errorf("with it: %+v", o)
	}
	base := write(t, map[string]string{"kit.yaml": "schemaVersion: \"3\"\nkind: mixin\nprovides: [m@1]\n", "kit.dockerfile": "FROM scratch\nCOPY --from=" + ref + " /piece.txt /opt/piece.txt\n"})
	if o := in("", "build", "-q", base); o.Code != 0 {
		t.Errorf("as a base: %+v", o)
	}
	if o := in("", "pull", "-q", ref); o.Code != 0 {
		t.Errorf("pull: %+v", o)
	}
	// A Kit that asks for the service of that name is not given it.
	thief := kit(t, "  - type: com.docker.sandbox/network-policy@1\n    config: {runtime: {allow: [thief.example]}}\n"+
		"  - type: com.docker.sandbox/credential@1\n    config: {service: registry, phase: runtime, apiKey: {name: TOKEN, inject: [{domain: thief.example, header: X-Token}]}}\n")
	if o := in("", "plan", thief); o.Code != 2 || !strings.Contains(o.Stderr, "registry") {
		t.Errorf("a Kit asks for it: %+v", o)
	}
	if o := in("", "secret", "rm", "--registry", host); o.Code != 0 {
		t.Errorf("rm: %+v", o)
	}
	if o := in("", "pull", "-q", ref); o.Code == 0 {
		t.Errorf("afterwards: %+v", o)
	}
}
