package test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/needs"
)

// wants is a Kit that asks for GPUs.
func wants(selector, more string) string {
	return fmt.Sprintf(`{"schemaVersion":"3","kind":"workload","provides":["w@1"],"capabilities":[
 {"type":"com.docker.sandbox/resources@1"%s,"config":{"gpu":%q}}]}`, more, selector)
}

// described makes a host with two GPUs, as its operator's specification says: a node
// that is full when it is written to and that only root may open, and one of zeros.
// The machine that runs this has none, and harmless devices take their place.
func described(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	spec := strings.ReplaceAll(`{"cdiVersion": "0.6.0", "kind": "example.com/gpu", "devices": [
  {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/fakegpu0", "hostPath": "DIR/full"}], "hooks": [{"hookName": "createRuntime", "path": "/bin/touch", "args": ["touch", "DIR/hook-ran"]}]}},
  {"name": "1", "containerEdits": {"deviceNodes": [{"path": "/dev/fakegpu1", "hostPath": "/dev/zero"}]}}],
 "containerEdits": {"env": ["FAKE_GPU=yes"], "mounts": [{"hostPath": "DIR/lib", "containerPath": "/opt/fakegpu"}]}}`, "DIR", dir)
	if err := errors.Join(
		unix.Mknod(dir+"/full", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 7))),
		os.Mkdir(dir+"/lib", 0o755), os.WriteFile(dir+"/lib/libgpu.so", []byte("library\n"), 0o644),
		os.Mkdir(dir+"/cdi", 0o755), os.WriteFile(dir+"/cdi/fake.json", []byte(spec), 0o644),
	); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KITBOX_CDI_DIRS", dir+"/cdi")
	return dir
}

// look prints which of the GPUs' nodes there are, what the first does, and what came
// with it.
const look = `ls /dev/fakegpu* 2>/dev/null; head -c 2 /dev/fakegpu0 2>/dev/null | wc -c; { echo x >/dev/fakegpu0; } 2>&1 | grep -o 'No space left on device'
cat /opt/fakegpu/libgpu.so 2>/dev/null; (echo x >/opt/fakegpu/libgpu.so) 2>/dev/null && echo written; echo "gpu=$FAKE_GPU"`

const (
	seesFirst = "/dev/fakegpu0\n2\nNo space left on device\nlibrary\ngpu=yes\n"
	seesNone  = "0\ngpu=\n"
)

func TestGPUsThatAreChosenArePassedAndNoOther(t *testing.T) {
	h := newHost(t)
	dir := described(t)
	h.push("one:1", wants("1", ""))
	h.push("both:1", wants("all", ""))
	h.push("plain:1", plain)

	if out := h.must("plan", "one:1"); !strings.Contains(out, "example.com/gpu=0 (/dev/fakegpu0); asked for as 1 by one:1") || strings.Contains(out, "fakegpu1") || !strings.Contains(out, "hooks of its specification (1) are not run") {
		t.Errorf("plan says\n%s", out)
	}
	for _, driver := range []string{"namespace", "oci"} {
		if driver == "oci" {
			needs.Program(t, "crun", "apt-get install crun")
		}
		t.Run(driver, func(t *testing.T) {
			h.must("create", "-q", "--driver", driver, "--name", "one", "one:1")
			h.must("create", "-q", "--driver", driver, "--name", "both", "both:1")
			h.must("create", "-q", "--driver", driver, "--name", "plain", "plain:1")
			for name, want := range map[string]string{"one": seesFirst, "both": strings.Replace(seesFirst, "gpu0\n", "gpu0\n/dev/fakegpu1\n", 1), "plain": seesNone} {
				// As the agent, who has no group of the host's and is nobody there.
				if got := h.must("exec", name, "--", "sh", "-c", look); got != want {
					t.Errorf("%s sees %q, want %q", name, got, want)
				}
			}
			if got := h.must("exec", "both", "--", "sh", "-c", "head -c 2 /dev/fakegpu1 | wc -c"); got != "2\n" {
				t.Errorf("the second is not the other: %q", got)
			}
			if i := h.info("both"); len(i.GPUs) != 2 || i.GPUs[1].Name != "example.com/gpu=1" || i.GPUs[1].Devices[0] != "/dev/fakegpu1" || len(i.Unenforced) != 0 {
				t.Errorf("status of both: %+v, %q", i.GPUs, i.Unenforced)
			}
			if out := h.must("status", "one"); !strings.Contains(out, "gpu        example.com/gpu=0 (/dev/fakegpu0)") {
				t.Errorf("status says\n%s", out)
			}
			h.must("stop", "one")
			h.must("start", "one")
			if got := h.must("exec", "one", "--", "sh", "-c", look); got != seesFirst {
				t.Errorf("after a restart: %q", got)
			}
			h.must("rm", "one")
			h.must("rm", "both")
			h.must("rm", "plain")
		})
	}
	if _, err := os.Stat(dir + "/hook-ran"); err == nil {
		t.Error("a hook of the specification ran")
	}
}

func TestGPUsThatThereAreNotAreRefusedWithTheReason(t *testing.T) {
	h := newHost(t)
	dir := described(t)
	for selector, says := range map[string]string{"3": "this machine has 2", "example.com/gpu=7": "example.com/gpu=0, example.com/gpu=1", "0": "a count such as 1"} {
		h.push("w:1", wants(selector, ""))
		_, err := h.run("create", "-q", "--name", "w", "w:1")
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "resources@1") {
			t.Errorf("%s: %v, want a refusal about %q", selector, err, says)
		}
		h.push("w:1", wants(selector, `,"optional":true`))
		if out := h.must("plan", "w:1"); !strings.Contains(out, "skipped") || !strings.Contains(out, says) {
			t.Errorf("optional %s:\n%s", selector, out)
		}
	}

	// Neither an image nor the environment of a sandbox names a specification.
	t.Setenv("KITBOX_CDI_DIRS", dir+"/none")
	h.push("w:1", wants("1", ""))
	if _, err := h.run("create", "-q", "--name", "w", "--env", "KITBOX_CDI_DIRS="+dir+"/cdi", "w:1"); err == nil || !strings.Contains(err.Error(), dir+"/none") || !strings.Contains(err.Error(), "/dev/nvidia0") {
		t.Errorf("without any: %v", err)
	}
}

// As no user can give it: kitbox's own state, and what commands the host.
func TestAGPUBringsNothingThatNoSandboxIsGiven(t *testing.T) {
	h := newHost(t)
	dir := described(t)
	h.push("w:1", wants("1", ""))
	h.must("plan", "w:1")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: dir + "/lib/docker.sock"}); err != nil {
		t.Fatal(err)
	}
	file := dir + "/cdi/fake.json"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for source, says := range map[string]string{dir + "/lib": "docker.sock", h.home: "keeps its sandboxes", h.home + "/sandboxes": "keeps its sandboxes", "/proc": "is proc"} {
		if err := os.WriteFile(file, []byte(strings.Replace(string(b), dir+"/lib", source, 1)), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := h.run("create", "-q", "--name", "w", "w:1")
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want a refusal about %q", source, err, says)
		}
	}
}

func TestAGPUThatIsGoneRefusesTheNextStartUnlessItIsOptional(t *testing.T) {
	h := newHost(t)
	dir := described(t)
	h.push("must:1", wants("1", ""))
	h.push("may:1", wants("1", `,"optional":true`))
	h.must("create", "-q", "--name", "must", "must:1")
	h.must("create", "-q", "--name", "may", "may:1")
	h.must("stop", "must")
	h.must("stop", "may")
	if err := os.Remove(filepath.Join(dir, "full")); err != nil {
		t.Fatal(err)
	}
	if _, err := h.run("start", "must"); err == nil || !strings.Contains(err.Error(), dir+"/full") || !strings.Contains(err.Error(), "kitbox recreate") {
		t.Errorf("start: %v", err)
	}
	h.must("start", "may")
	if i := h.info("may"); !strings.Contains(strings.Join(i.Unenforced, "\n"), "device /dev/fakegpu0") {
		t.Errorf("unenforced %q", i.Unenforced)
	}
	// As the refusal says.
	if err := unix.Mknod(dir+"/full2", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 7))); err != nil {
		t.Fatal(err)
	}
	file := dir + "/cdi/fake.json"
	b, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, []byte(strings.Replace(string(b), dir+"/full", dir+"/full2", 1)), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	h.must("recreate", "must")
	if got := h.must("exec", "must", "--", "sh", "-c", look); got != seesFirst {
		t.Errorf("after a recreation: %q", got)
	}
}
