package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

type hostMount struct {
	Handle, Path, Dir, Identity string
	Sandboxes                   []string
}

func hostMounts(t *testing.T) []hostMount {
	t.Helper()
	var ms []hostMount
	if err := json.Unmarshal([]byte(ok(t, "mount", "ls", "--json")), &ms); err != nil {
		t.Fatal(err)
	}
	return ms
}

// TestHostMountsBelongToTheKit has another Kit with the same path as its control.
func TestHostMountsBelongToTheKit(t *testing.T) {
	const entry = "  - type: com.docker.sandbox/host-mount@1\n    config: {path: /shared, mode: \"0750\"}\n"
	mine, other := kit(t, entry), kit(t, entry)
	if ok(t, "plan", mine); len(hostMounts(t)) != 0 {
		t.Error("a plan made a directory")
	}
	create(t, "first", "-q", mine)
	create(t, "second", "-q", mine)
	create(t, "stranger", "-q", other)
	if out := ok(t, "exec", "first", "--", "stat", "-c", "%a %u", "/shared"); out != "750 1000\n" {
		t.Errorf("a new directory: %q", out)
	}
	ok(t, "exec", "first", "--", "sh", "-c", "echo from first > /shared/f; ln -s /etc/shadow /shared/out; ln -s f /shared/in; mkfifo /shared/pipe")
	if out := ok(t, "exec", "second", "--", "cat", "/shared/f"); out != "from first\n" {
		t.Errorf("the second sandbox reads %q", out)
	}
	if o := sh(t, "stranger", "", "cat /shared/f"); o.Code == 0 {
		t.Errorf("another Kit reads it: %+v", o)
	}
	ms := hostMounts(t)
	at := slices.IndexFunc(ms, func(m hostMount) bool { return strings.HasSuffix(m.Identity, mine) })
	if len(ms) != 2 || at < 0 || strings.Join(ms[at].Sandboxes, " ") != "first second" {
		t.Fatalf("%+v", ms)
	}
	h := ms[at].Handle
	t.Cleanup(func() {
		for _, m := range hostMounts(t) {
			kitbox(t, "rm", "first", "second", "stranger", "third")
			ok(t, "mount", "rm", m.Handle)
		}
	})
	for _, file := range []string{"f", "in"} {
		if out := ok(t, "mount", "read", h, file); out != "from first\n" {
			t.Errorf("read %s: %q", file, out)
		}
	}
	for _, file := range []string{"out", "../mount.json", "/etc/passwd", "pipe", "nothing"} {
		if o := kitbox(t, "mount", "read", h, file); o.Code == 0 || o.Stdout != "" {
			t.Errorf("read %s: %+v", file, o)
		}
	}
	if o := kitbox(t, "mount", "rm", h); o.Code != 2 || !strings.Contains(o.Stderr, "first, second") {
		t.Errorf("removing one in use: %+v", o)
	}
	if o := kitbox(t, "mount", "rm", "../../etc"); o.Code != 1 || !strings.Contains(o.Stderr, "not found") {
		t.Errorf("a handle that is none: %+v", o)
	}
	ok(t, "rm", "first", "second")

	// A new version of the Kit has the directory, and it keeps its mode.
	p := filepath.Join(mine, "kit.yaml")
	b, err := os.ReadFile(p)
	if err != nil {
		t.Fatal(err)
	}
	newer := strings.NewReplacer(`"1.0.0"`, `"2.0.0"`, `"0750"`, `"0777"`).Replace(string(b))
	if err := os.WriteFile(p, []byte(newer), 0o644); err != nil {
		t.Fatal(err)
	}
	create(t, "third", "-q", mine)
	if out := ok(t, "exec", "third", "--", "sh", "-c", "cat /shared/f; stat -c %a /shared"); out != "from first\n750\n" {
		t.Errorf("after an update: %q", out)
	}
	ok(t, "rm", "third")
	if out := ok(t, "mount", "read", h, "f"); out != "from first\n" {
		t.Errorf("after its last sandbox: %q", out)
	}
	ok(t, "mount", "rm", h)
	if _, err := os.Stat(ms[at].Dir); err == nil || len(hostMounts(t)) != 1 {
		t.Errorf("a removed directory is left: %v", err)
	}
}

func TestOnePathHasOneOwner(t *testing.T) {
	mount := "  - type: com.docker.sandbox/host-mount@1\n    config: {path: /shared}\n"
	mixin := write(t, map[string]string{"mixin.yaml": "schemaVersion: \"3\"\nkind: mixin\nversion: \"1.0.0\"\nprovides: [m]\n" +
		"build: |\n  FROM scratch\ncapabilities:\n  - type: com.docker.sandbox/volume@1\n    config: {path: /shared}\n"})
	if o := kitbox(t, "plan", kit(t, mount), "--kit", mixin); o.Code != 2 || !strings.Contains(o.Stderr, "/shared") {
		t.Errorf("a volume and a host mount at one path: %+v", o)
	}
}
