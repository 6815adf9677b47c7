package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/needs"
)

// write makes a Kit directory out of name → content.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "kit")
	for name, content := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const head = "schemaVersion: \"3\"\nkind: workload\nversion: \"1.0.0\"\nprovides: [w]\n"
const recipe = "build: |\n  FROM kitbox.local/base:1\n  USER agent\n  ENTRYPOINT [\"/bin/echo\"]\n"

// TestBadInput holds the promise of one clear line: it names the thing and the
// next step, the status is the documented one, and nothing is left behind.
func TestBadInput(t *testing.T) {
	mixin := strings.Replace(head, "workload", "mixin", 1)
	for _, c := range []struct {
		name  string
		files map[string]string
		args  []string
		code  int
		says  []string
	}{
		{"an unknown key", map[string]string{"kit.yaml": head + "colour: red\n" + recipe}, nil, 2, []string{"colour", "kit.yaml:5"}},
		{"a second workload", map[string]string{"kit.yaml": head + recipe}, []string{"--kit", probe}, 2, []string{"workload", "probe"}},
		{"a missing requirement", map[string]string{"kit.yaml": head + "requires: [\"database >= 2\"]\n" + recipe}, nil, 2, []string{"database"}},
		{"a required capability that nothing implements", map[string]string{"kit.yaml": head + recipe + "capabilities:\n  - type: com.docker.sandbox/privileged@1\n"}, nil, 2, []string{"com.docker.sandbox/privileged@1"}},
		{"a required capability that nobody knows", map[string]string{"kit.yaml": head + recipe + "capabilities:\n  - type: com.example/levitation@1\n    config: {height: 3}\n"}, nil, 2, []string{"com.example/levitation@1"}},
		{"a recipe that fails", map[string]string{"kit.yaml": head, "kit.dockerfile": "FROM kitbox.local/base:1\nRUN echo so sorry >&2 && exit 9\nENTRYPOINT [\"/bin/sh\"]\n"}, nil, 1, []string{"kit.dockerfile:2", "exit code: 9"}},
		{"a base that does not exist", map[string]string{"kit.yaml": head, "kit.dockerfile": "FROM kitbox.local/nothing:1\nENTRYPOINT [\"/bin/sh\"]\n"}, nil, 1, []string{"kitbox.local/nothing:1"}},
		{"a mixin alone", map[string]string{"kit.yaml": mixin}, nil, 2, []string{"workload"}},
		{"an argument nobody declared", map[string]string{"kit.yaml": head + recipe}, []string{"--arg", "colour=red"}, 2, []string{"colour"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := write(t, c.files)
			o := kitbox(t, append([]string{"run", "--rm", "-q", "--name", "bad", dir}, c.args...)...)
			if o.Code != c.code {
				t.Errorf("status %d, want %d\n%s", o.Code, c.code, o.Stderr)
			}
			if o.Stdout != "" {
				t.Errorf("stdout: %q", o.Stdout)
			}
			for _, s := range c.says {
				if !strings.Contains(o.Stderr, s) {
					t.Errorf("the error does not say %q:\n%s", s, o.Stderr)
				}
			}
			if strings.Contains(o.Stderr, "goroutine ") {
				t.Errorf("a panic:\n%s", o.Stderr)
			}
			if kitbox(t, "status", "bad").Code == 0 {
				t.Error("the sandbox is left")
			}
		})
	}
	if o := kitbox(t, "run", "./no/such/kit"); o.Code != 1 || !strings.Contains(o.Stderr, "no/such/kit") {
		t.Errorf("a Kit that is not there: %+v", o)
	}
}

func TestFailedInstallHookFailsTheCreate(t *testing.T) {
	dir := write(t, map[string]string{"kit.yaml": head + recipe + `capabilities:
  - type: com.docker.sandbox/lifecycle@1
    config:
      install:
        - command: "true"
        - command: echo the mirror is down >&2; exit 32
`})
	o := kitbox(t, "create", "--name", "hookless", dir)
	if o.Code != 1 || !strings.Contains(o.Stderr, "install hook 1") || !strings.Contains(o.Stderr, "the mirror is down") {
		t.Errorf("%+v", o)
	}
	if kitbox(t, "status", "hookless").Code == 0 {
		t.Error("the sandbox is left")
	}
}

func TestFailedStartupHookIsReportedAndExecStaysPossible(t *testing.T) {
	dir := write(t, map[string]string{"kit.yaml": head + recipe + `capabilities:
  - type: com.docker.sandbox/lifecycle@1
    config:
      startup:
        - command: echo no luck today; exit 3
`})
	o := kitbox(t, "create", "--name", "limping", dir)
	t.Cleanup(func() { kitbox(t, "rm", "limping") })
	if o.Code != 1 || !strings.Contains(o.Stderr, "startup hook 0") {
		t.Errorf("%+v", o)
	}
	if out := ok(t, "exec", "limping", "--", "echo", "usable"); out != "usable\n" {
		t.Errorf("exec: %q", out)
	}
	if out := ok(t, "logs", "limping"); !strings.Contains(out, "no luck today") {
		t.Errorf("the hook's output was not kept:\n%s", out)
	}
}

func TestFullDiskIsSaid(t *testing.T) {
	needs.Root(t, "a small filesystem is mounted")
	dir := t.TempDir()
	// A private mount namespace, so that nothing is left mounted whatever happens.
	// The builder, if one came up, ends in there too: nobody else sees its socket.
	script := "mount -t tmpfs -o size=2m,mode=0700 none " + dir + " || exit; " + filepath.Join(bin, "kitbox") + " create --name full ./examples/hello; s=$?; " +
		filepath.Join(bin, "kit-builder") + " stop >/dev/null 2>&1; exit $s"
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "--propagation", "private", "sh", "-c", script)
	cmd.Dir = repo
	cmd.Env = append(os.Environ(), "KITBOX_HOME="+dir, "KITBOX_LIBEXEC="+bin)
	o := finish(t, cmd)
	if o.Code != 1 || !(strings.Contains(o.Stderr, "space") || strings.Contains(o.Stderr, "kitbox base create")) {
		t.Errorf("%+v", o)
	}
}

func TestUnwritableStateDirectoryIsSaid(t *testing.T) {
	o := finishWithHome(t, "/proc/kitbox", "run", "./examples/hello")
	if o.Code != 1 || !strings.Contains(o.Stderr, "/proc/kitbox") {
		t.Errorf("%+v", o)
	}
}

func finishWithHome(t *testing.T, home string, args ...string) outcome {
	t.Helper()
	cmd := command(t.Context(), "kitbox", args...)
	cmd.Env = append(cmd.Env, "KITBOX_HOME="+home)
	return finish(t, cmd)
}

func TestNoUserNamespacesIsSaid(t *testing.T) {
	needs.Root(t, "they are turned off in a namespace of their own")
	// The limit is per user namespace, so the machine's own stays as it is.
	script := "echo 0 > /proc/sys/user/max_user_namespaces && exec " + filepath.Join(bin, "kitbox") + " run --rm --exec " + probe + " -- true"
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
	same := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 65536}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS, UidMappings: same, GidMappings: same}
	cmd.Dir = repo
	cmd.Env = append(os.Environ(), "KITBOX_HOME="+home, "KITBOX_LIBEXEC="+bin)
	o := finish(t, cmd)
	if o.Code != 1 || !strings.Contains(o.Stderr, "user namespace") {
		t.Errorf("%+v", o)
	}
}
