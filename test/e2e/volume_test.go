package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/needs"
)

type volume struct {
	Sandbox, Path, Dir string
	SizeBytes          int64
	UsedBytes          int64
	Bounded, Mounted   bool
	Note               string
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
		if o := kitbox(t, append([]string{"volume", "rm"}, args...)...); o.Code != 2 || !strings.Contains(o.Stderr, "kitbox rm vols") {
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

// boundsVolumes says whether this machine can hold a size; in CI it must.
func boundsVolumes(t *testing.T) {
	t.Helper()
	needs.Root(t, "only the system's root mounts filesystems in files")
	needs.File(t, "/dev/loop-control", "modprobe loop")
}

// loopDevices lists the files below our state directory that have one.
func loopDevices(t *testing.T) []string {
	t.Helper()
	var out []string
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(b), home+"/") {
			out = append(out, strings.TrimSpace(string(b)))
		}
	}
	return out
}

func TestAVolumeHoldsItsSizeAndNoMore(t *testing.T) {
	boundsVolumes(t)
	dir := kit(t, "  - type: com.docker.sandbox/volume@1\n    config: {path: /data, size: 16m, mode: \"0750\"}\n")
	for _, driver := range []string{"namespace", "oci"} {
		t.Run(driver, func(t *testing.T) {
			name := "bounded-" + driver
			create(t, name, "-q", "--driver", driver, dir)
			if o := sh(t, name, "", `stat -c "%U %a" /data; ls -A /data; echo kept >/data/f && sync /data/f`); o.Stdout != "agent 750\n" || o.Code != 0 {
				t.Errorf("fresh: %+v", o)
			}
			if o := sh(t, name, "", "dd if=/dev/zero of=/data/big bs=1M count=32"); o.Code == 0 || !strings.Contains(o.Stderr, "No space left") {
				t.Errorf("32 MiB in 16: %+v", o)
			}
			if o := sh(t, name, "", "rm /data/big; dd if=/dev/zero of=/data/fits bs=1M count=10 2>/dev/null && rm /data/fits"); o.Code != 0 {
				t.Errorf("10 MiB in 16: %+v", o)
			}
			v := volumesOf(t, name)["/data"]
			if !v.Bounded || v.Note != "" || v.UsedBytes <= 0 || v.UsedBytes > 16<<20 {
				t.Errorf("listed as %+v", v)
			}
			ok(t, "stop", name)
			ok(t, "start", name)
			ok(t, "recreate", name)
			if o := sh(t, name, "", "cat /data/f"); o.Stdout != "kept\n" {
				t.Errorf("after stop, start and recreate: %+v", o)
			}
			// All of it is killed at once and comes up again.
			for _, p := range []string{"keeperPid", "pid"} {
				pid := statusOf(t, name)[p].(float64)
				if err := syscall.Kill(int(pid), syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			ok(t, "start", name)
			if o := sh(t, name, "", "cat /data/f && echo more >/data/g"); o.Stdout != "kept\n" || o.Code != 0 {
				t.Errorf("after a crash: %+v", o)
			}
			ok(t, "rm", name)
			waitFor(t, "loop devices to go", func() bool { return len(loopDevices(t)) == 0 })
			create(t, name, "-q", "--driver", driver, dir)
			if o := sh(t, name, "", "cat /data/f /data/g"); o.Stdout != "kept\nmore\n" {
				t.Errorf("in the next sandbox of the name: %+v", o)
			}
			ok(t, "rm", name)
			ok(t, "volume", "rm", name)
			if len(volumesOf(t, name)) != 0 {
				t.Error("it is left")
			}
			waitFor(t, "loop devices to go", func() bool { return len(loopDevices(t)) == 0 })
		})
	}
}

func statusOf(t *testing.T, name string) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(ok(t, "status", name, "--json")), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestADiskLimitHolds(t *testing.T) {
	boundsVolumes(t)
	if out := ok(t, "plan", "--disk", "48m", probe); !strings.Contains(out, "disk") || !strings.Contains(out, "48 MiB") {
		t.Errorf("plan: %s", out)
	}
	for _, driver := range []string{"namespace", "oci"} {
		t.Run(driver, func(t *testing.T) {
			name := "disk-" + driver
			create(t, name, "-q", "--driver", driver, "--disk", "48m", probe)
			if o := sh(t, name, "0", "dd if=/dev/zero of=/big bs=1M count=64"); o.Code == 0 || !strings.Contains(o.Stderr, "No space left") {
				t.Errorf("64 MiB in 48: %+v", o)
			}
			if o := sh(t, name, "0", "rm /big; echo kept >/kept; dd if=/dev/zero of=/fits bs=1M count=24 2>/dev/null"); o.Code != 0 {
				t.Errorf("24 MiB in 48: %+v", o)
			}
			if s := statusOf(t, name); s["unenforced"] != nil {
				t.Errorf("status: %v", s)
			}
			ok(t, "restart", name)
			if o := sh(t, name, "0", "cat /kept; stat -c %s /fits; dd if=/dev/zero of=/big bs=1M count=48 2>/dev/null && echo no limit"); o.Stdout != "kept\n25165824\n" {
				t.Errorf("after a restart: %+v", o)
			}
			ok(t, "recreate", name)
			if o := sh(t, name, "0", "ls /kept; dd if=/dev/zero of=/big bs=1M count=64 2>/dev/null || echo limited"); o.Stdout != "limited\n" {
				t.Errorf("after recreate: %+v", o)
			}
			ok(t, "rm", name)
			waitFor(t, "loop devices to go", func() bool { return len(loopDevices(t)) == 0 })
		})
	}
}
