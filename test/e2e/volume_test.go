package e2e

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

type volume struct {
	Sandbox, Path, Dir string
	SizeBytes          int64
	Mounted            bool
}

func volumesOf(t *testing.T, name string) map[string]volume {
	t.Helper()
	var vs []volume
	if err := json.Unmarshal([]byte(ok(t, "volume", "ls", "--json", name)), &vs); err != nil {
		t.Fatal(err)
	}
	m := map[string]volume{}
	for _, v := range vs {
		m[v.Path] = v
	}
	return m
}

func TestVolumesAreListedAndRemovedByName(t *testing.T) {
	dir := kit(t, "  - type: com.docker.sandbox/volume@1\n    config: {path: /a, size: 1g}\n  - type: com.docker.sandbox/volume@1\n    config: {path: /b}\n"+
		"  - type: com.docker.sandbox/volume@1\n    config: {path: /m, tmpfs: true}\n")
	if ok(t, "plan", "--name", "vols", dir); len(volumesOf(t, "vols")) != 0 {
		t.Error("a plan made a volume")
	}
	create(t, "vols", "-q", dir)
	ok(t, "exec", "vols", "--", "sh", "-c", "echo x > /a/f; echo y > /b/f")
	vs := volumesOf(t, "vols")
	if len(vs) != 2 || !vs["/a"].Mounted || vs["/a"].SizeBytes != 1<<30 || vs["/b"].Sandbox != "vols" {
		t.Fatalf("%+v", vs)
	}
	if out := ok(t, "volume", "inspect", "vols", "/a/"); !strings.Contains(out, "1073741824") {
		t.Errorf("inspect: %s", out)
	}
	if o := kitbox(t, "volume", "inspect", "vols", "/none"); o.Code != 1 || !strings.Contains(o.Stderr, "/none") {
		t.Errorf("inspecting none: %+v", o)
	}
	for _, args := range [][]string{{"vols"}, {"vols", "/a"}} {
		if o := kitbox(t, append([]string{"volume", "rm"}, args...)...); o.Code != 1 || !strings.Contains(o.Stderr, "kitbox rm vols") {
			t.Errorf("removing what is mounted: %+v", o)
		}
	}
	if o := kitbox(t, "volume", "rm", "../vols"); o.Code == 0 {
		t.Errorf("a name that is none: %+v", o)
	}
	ok(t, "stop", "vols")
	ok(t, "prune")
	ok(t, "start", "vols")
	if out := ok(t, "exec", "vols", "--", "cat", "/a/f", "/b/f"); out != "x\ny\n" {
		t.Errorf("after a prune: %q", out)
	}
	if out := ok(t, "events", "vols"); !strings.Contains(out, "stopped on request") || strings.Count(out, "running") != 2 {
		t.Errorf("events:\n%s", out)
	}
	ok(t, "rm", "vols")
	for range 2 { // twice comes to the same
		ok(t, "volume", "rm", "vols", "/a")
	}
	left := volumesOf(t, "vols")
	if len(left) != 1 || left["/b"].Mounted {
		t.Errorf("%+v", left)
	}
	if b, err := os.ReadFile(left["/b"].Dir + "/f"); err != nil || string(b) != "y\n" {
		t.Errorf("the other volume: %q, %v", b, err)
	}
	ok(t, "volume", "rm", "vols")
	ok(t, "volume", "rm", "vols")
	if _, err := os.Stat(left["/b"].Dir); err == nil || len(volumesOf(t, "vols")) != 0 {
		t.Error("a removed volume is left")
	}
}
