package gpu_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/gpu"
	"github.com/kitbox-dev/kitbox/internal/needs"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// tree is a made-up host with files and, for names below dev, character devices.
func tree(t *testing.T, files map[string]string, nodes ...string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		p := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if len(nodes) > 0 {
		needs.Root(t, "only root makes device nodes")
	}
	for _, name := range nodes {
		p := filepath.Join(dir, "dev", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), unix.Mknod(p, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 7)))); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// chosen is what selector chooses: names of GPUs, and after each its nodes.
func chosen(f gpu.Found, selector string) (string, error) {
	gs, err := f.Select(selector)
	var out []string
	for _, g := range gs {
		var nodes []string
		for _, d := range g.Devices {
			nodes = append(nodes, d.Path)
		}
		out = append(out, g.Name+" "+strings.Join(nodes, " "))
	}
	return strings.Join(out, "; "), err
}

func expect(t *testing.T, f gpu.Found, selector, want string) {
	t.Helper()
	if got, err := chosen(f, selector); err != nil || got != want {
		t.Errorf("%s: %q, %v; want %q", selector, got, err, want)
	}
}

func refuse(t *testing.T, f gpu.Found, selector string, says ...string) {
	t.Helper()
	got, err := chosen(f, selector)
	if err == nil {
		t.Errorf("%s: %q, want a refusal", selector, got)
		return
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%s: %v; want a word about %q", selector, err, s)
		}
	}
}

func TestGPUsAreFoundByTheirNodes(t *testing.T) {
	root := tree(t, map[string]string{
		"sys/class/drm/renderD128/device/vendor": "0x10de\n",
		"sys/class/drm/renderD129/device/vendor": "0x1002\n",
		"sys/class/drm/renderD130/device/vendor": "0x8086\n",
		"dev/nvidia7":                            "no device\n",
	}, "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "nvidia-caps", "nvidiax", "kfd", "dri/renderD130", "dri/renderD128", "dri/renderD129", "dri/card0", "sda")
	f := gpu.Host{Root: root, SpecDirs: []string{root + "/none"}}.Find()
	const (
		two, ten = "nvidia2 /dev/nvidia2 /dev/nvidiactl /dev/nvidia-uvm", "nvidia10 /dev/nvidia10 /dev/nvidiactl /dev/nvidia-uvm"
		radeon   = "renderD129 /dev/dri/renderD129 /dev/kfd"
		intel    = "renderD130 /dev/dri/renderD130"
	)
	expect(t, f, "all", strings.Join([]string{two, ten, radeon, intel}, "; "))
	expect(t, f, "1", two)
	expect(t, f, "2", two+"; "+ten)
	expect(t, f, "renderD130,nvidia10,/dev/nvidia10", intel+"; "+ten)
	expect(t, f, "index=2", radeon)
	refuse(t, f, "5", "has 4", "nvidia2, nvidia10, renderD129, renderD130")
	refuse(t, f, "index=4", "nvidia2")
	refuse(t, f, "nvidia7", "no nvidia7")
	refuse(t, f, "sda", "no sda")
	refuse(t, f, "renderD128", "renderD129")
	if got := f.GPUs[0].Devices[0]; got != (plan.Device{Source: root + "/dev/nvidia2", Path: "/dev/nvidia2"}) {
		t.Errorf("device %+v", got)
	}

	// Without nodes of the driver's own, its card is one like any other.
	root = tree(t, map[string]string{"sys/class/drm/renderD128/device/vendor": "0x10de\n"}, "dri/renderD128")
	expect(t, gpu.Host{Root: root, SpecDirs: []string{root}}.Find(), "1", "renderD128 /dev/dri/renderD128")
}

func TestSelectorsThatAreNoneSayWhatOneIs(t *testing.T) {
	f := gpu.Found{GPUs: []gpu.GPU{{Name: "nvidia0"}}}
	for _, s := range []string{"0", "01", "-1", "1.5", "99999999999999999999", "all,nvidia0", "nvidia0,", "1,2", "device 0", "index=", "index=-1", "index=x", "../dev/sda x", "a\nb", strings.Repeat("a", 2000)} {
		refuse(t, f, s, "no selector", "a count such as 1", "all", "nvidia.com/gpu=0", "index=N")
	}
	// As for a machine that has none: what is wrong comes before what is missing.
	refuse(t, gpu.Found{}, "0", "no selector")
}

func TestWithoutGPUsTheRefusalSaysWhereTheyWereLookedFor(t *testing.T) {
	root := tree(t, map[string]string{"cdi/broken.yaml": "cdiVersion: 0.6.0\nkind: 7\n"})
	f := gpu.Host{Root: root, SpecDirs: []string{root + "/cdi"}}.Find()
	for _, s := range []string{"1", "all", "nvidia0", "index=0"} {
		refuse(t, f, s, "none", root+"/cdi", "/dev/nvidia0", "/dev/dri/renderD", "broken.yaml", "nvidia-ctk")
	}
	if f := (gpu.Host{Root: root}).Find(); !strings.Contains(f.Looked, "/etc/cdi") || !strings.Contains(f.Looked, "/var/run/cdi") {
		t.Errorf("looked for %s", f.Looked)
	}
}

// spec describes two GPUs as NVIDIA's tool does: by number, by another name, and all
// together.
const spec = `{"cdiVersion": "0.6.0", "kind": "example.com/gpu", "devices": [
  {"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/gpu0", "hostPath": "/dev/full"}, {"path": "/dev/gpu1", "hostPath": "/dev/zero"}]}},
  {"name": "1", "containerEdits": {"deviceNodes": [{"path": "/dev/gpu1", "hostPath": "/dev/zero", "permissions": "r"}], "hooks": [{"hookName": "createContainer", "path": "/usr/bin/touch", "args": ["touch", "/HOOK"]}]}},
  {"name": "GPU-7", "containerEdits": {"deviceNodes": [{"path": "/dev/gpu0", "hostPath": "/dev/full"}]}},
  {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/gpu0", "hostPath": "/dev/full", "type": "c", "permissions": "rw"}]}}],
 "containerEdits": {"env": ["GPU_LIB=/opt/gpu"], "deviceNodes": [{"path": "/dev/gpuctl", "hostPath": "/dev/null"}],
  "mounts": [{"hostPath": "LIB", "containerPath": "/opt/gpu", "options": ["rw", "rbind"]}, {"hostPath": "SOCKET", "containerPath": "/run/gpu.sock"}]}}`

// other describes what is no GPU.
const other = `{"cdiVersion": "0.6.0", "kind": "example.com/disk", "devices": [
  {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/disk0", "hostPath": "/dev/full"}]}}]}`

func described(t *testing.T, spec string, usable func(string) error) (gpu.Found, string) {
	t.Helper()
	dir := tree(t, map[string]string{"lib/libgpu.so": "library\n", "cdi/disk.json": other}, "nvidia0")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: dir + "/s"}); err != nil {
		t.Fatal(err)
	}
	spec = strings.NewReplacer("LIB", dir+"/lib", "SOCKET", dir+"/s").Replace(spec)
	spec = strings.Replace(spec, "GPU_"+dir+"/lib", "GPU_LIB", 1)
	if err := os.WriteFile(dir+"/cdi/gpu.json", []byte(spec), 0o644); err != nil {
		t.Fatal(err)
	}
	return gpu.Host{Root: dir, SpecDirs: []string{dir + "/cdi"}, Usable: usable}.Find(), dir
}

func TestGPUsAreTakenAsTheyAreDescribed(t *testing.T) {
	f, dir := described(t, spec, nil)
	const zero, one = "example.com/gpu=0 /dev/gpuctl /dev/gpu0", "example.com/gpu=1 /dev/gpuctl /dev/gpu1"
	expect(t, f, "1", zero)
	expect(t, f, "all", zero+"; "+one) // and not the one that is called so, once more
	expect(t, f, "2", zero+"; "+one)
	expect(t, f, "index=1", one)
	expect(t, f, "example.com/gpu=1", one)
	expect(t, f, "example.com/gpu=GPU-7", zero)
	expect(t, f, "example.com/gpu=all", "example.com/gpu=all /dev/gpuctl /dev/gpu0 /dev/gpu1")
	refuse(t, f, "3", "has 2")
	refuse(t, f, "nvidia0", "no nvidia0")                                  // nodes count where nothing is described
	refuse(t, f, "example.com/disk=0", "no example.com/disk=0", zero[:17]) // whatever else the operator describes

	gs, err := f.Select("example.com/gpu=1")
	if err != nil {
		t.Fatal(err)
	}
	g := gs[0]
	if want := []plan.Device{{Source: "/dev/null", Path: "/dev/gpuctl"}, {Source: "/dev/zero", Path: "/dev/gpu1", ReadOnly: true}}; !slices.Equal(g.Devices, want) {
		t.Errorf("devices %+v", g.Devices)
	}
	if len(g.Mounts) != 1 || g.Mounts[0].Source != dir+"/lib" || g.Mounts[0].Path != "/opt/gpu" || !g.Mounts[0].ReadOnly || g.Mounts[0].Kind != plan.MountBind {
		t.Errorf("mounts %+v", g.Mounts)
	}
	if !slices.Equal(g.Env, []string{"GPU_LIB=/opt/gpu"}) {
		t.Errorf("env %q", g.Env)
	}
	notes := strings.Join(g.Notes, "\n")
	for _, s := range []string{"hooks of its specification (1) are not run", dir + "/s is left out"} {
		if !strings.Contains(notes, s) {
			t.Errorf("notes %q say nothing of %q", notes, s)
		}
	}
}

func TestAGPUThatCannotBeHadIsNotChosen(t *testing.T) {
	f, _ := described(t, spec, func(p string) error {
		if p == "/dev/full" {
			return errors.New("it is for others")
		}
		return nil
	})
	expect(t, f, "1", "example.com/gpu=1 /dev/gpuctl /dev/gpu1")
	refuse(t, f, "2", "example.com/gpu=0 cannot be had: it is for others")
	refuse(t, f, "all", "it is for others")
	refuse(t, f, "example.com/gpu=0", "it is for others")

	for edits, says := range map[string]string{
		`{"deviceNodes": [{"path": "/dev/x", "hostPath": "/dev/full", "type": "b"}]}`: "character devices",
		`{"deviceNodes": [{"path": "/etc/x", "hostPath": "/dev/full"}]}`:              "below /dev",
		`{"deviceNodes": [{"path": "/dev/../etc/x", "hostPath": "/dev/full"}]}`:       "below /dev",
		`{"env": ["A=b"]}`: "no device node",
		`{"deviceNodes": [{"path": "/dev/full"}], "mounts": [{"hostPath": "/none/such", "containerPath": "/opt"}]}`:             "make it anew",
		`{"deviceNodes": [{"path": "/dev/full"}], "mounts": [{"hostPath": "/etc", "containerPath": "/"}]}`:                      "mounts something at /",
		`{"deviceNodes": [{"path": "/dev/full"}], "mounts": [{"hostPath": "/etc", "containerPath": "/opt/../proc/sys"}]}`:       "mounts something at",
		`{"deviceNodes": [{"path": "/dev/full"}], "mounts": [{"hostPath": "/etc", "containerPath": "/dev/shm/x"}]}`:             "mounts something at",
		`{"deviceNodes": [{"path": "/dev/full"}], "mounts": [{"hostPath": "tmpfs", "containerPath": "/opt", "type": "tmpfs"}]}`: "type \"tmpfs\"",
		`{"deviceNodes": [{"path": "/dev/full"}], "mounts": [{"hostPath": "etc", "containerPath": "/opt"}]}`:                    "no absolute path",
	} {
		f, _ := described(t, `{"cdiVersion": "0.6.0", "kind": "example.com/gpu", "devices": [{"name": "0", "containerEdits": `+edits+`}]}`, nil)
		refuse(t, f, "1", "example.com/gpu=0 cannot be had", says)
	}
}

// Whatever is among the specifications is neither waited for nor held as a whole, and
// stands for no GPU by its node.
func TestSpecificationsAreBounded(t *testing.T) {
	needs.Root(t, "only root makes device nodes")
	for what, make := range map[string]func(name string) error{
		"no file":  func(name string) error { return unix.Mkfifo(name, 0o600) },
		"too long": func(name string) error { return errors.Join(os.WriteFile(name, nil, 0o600), os.Truncate(name, 1<<40)) },
	} {
		t.Run(what, func(t *testing.T) {
			dir := tree(t, map[string]string{"cdi/disk.json": other}, "nvidia0")
			host := gpu.Host{Root: dir, SpecDirs: []string{dir + "/cdi"}}
			expect(t, host.Find(), "1", "nvidia0 /dev/nvidia0")
			if err := make(dir + "/cdi/odd.yaml"); err != nil {
				t.Fatal(err)
			}
			refuse(t, host.Find(), "1", dir+"/cdi/odd.yaml is "+what)
			// What is not read is not looked at.
			if err := os.Rename(dir+"/cdi/odd.yaml", dir+"/cdi/odd"); err != nil {
				t.Fatal(err)
			}
			expect(t, host.Find(), "1", "nvidia0 /dev/nvidia0")
		})
	}
}

func TestAGPUIsRefusedThatComesWithWhatNoSandboxIsGiven(t *testing.T) {
	needs.Root(t, "only root makes device nodes")
	f, dir := described(t, spec, nil)
	expect(t, f, "example.com/gpu=0", "example.com/gpu=0 /dev/gpuctl /dev/gpu0")
	var asked []string
	f = gpu.Host{Root: dir, SpecDirs: []string{dir + "/cdi"}, Mountable: func(p string) error {
		asked = append(asked, p)
		return errors.New("it commands the host")
	}}.Find()
	for _, s := range []string{"1", "all", "example.com/gpu=0"} {
		refuse(t, f, s, "it commands the host")
	}
	if slices.Contains(asked, dir+"/s") || !slices.Contains(asked, dir+"/lib") {
		t.Errorf("asked about %q", asked)
	}
}
