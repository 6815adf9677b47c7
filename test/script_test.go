// Package test runs the kitbox program as a user does, against the real engine,
// driver, boundary and guest, on Kits that are made of busybox.
package test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kitbox-dev/kitbox/internal/app"
	"github.com/kitbox-dev/kitbox/internal/engine/kittest"
	"github.com/kitbox-dev/kitbox/internal/job"
	"github.com/kitbox-dev/kitbox/internal/keeper/link"
	"github.com/kitbox-dev/kitbox/internal/needs"
	"github.com/kitbox-dev/kitbox/internal/registry/registrytest"
)

// libexec is where kit-guest is; empty when it could not be built.
var libexec string

func TestMain(m *testing.M) {
	halt()
	if len(os.Args) == 2 && os.Args[0] == link.ProcessName && os.Args[1] == hangs {
		hangOn()
	}
	if len(os.Args) == 2 && os.Args[0] == link.ProcessName && os.Args[1] == spinsFor {
		spinOn()
	}
	if len(os.Args) > 0 && (os.Args[0] == link.ProcessName || os.Args[0] == job.ProcessName) {
		os.Exit(app.Main(os.Args))
	}
	testscript.Main(withGuest{m}, map[string]func(){
		"kitbox":         func() { os.Exit(app.Main(append([]string{"kitbox"}, os.Args[1:]...))) },
		"kit-engine":     func() { os.Exit(app.Main(os.Args)) },
		link.ProcessName: func() { os.Exit(app.Main(os.Args)) },
	})
}

// withGuest builds the guest before the tests and removes it afterwards.
type withGuest struct{ m *testing.M }

func (w withGuest) Run() int {
	if dir := os.Getenv("KITBOX_LIBEXEC"); dir != "" {
		if _, err := os.Stat(filepath.Join(dir, "kit-guest")); err == nil {
			libexec = dir
			return w.m.Run()
		}
	}
	dir, err := os.MkdirTemp("", "kitbox-guest-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	build := exec.Command("go", "build", "-o", dir+"/", "github.com/kitbox-dev/kitbox/cmd/kit-guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building kit-guest: %v\n%s", err, out)
		return 1
	}
	libexec = dir
	return w.m.Run()
}

// canRun skips, or under CI fails, when this machine cannot run sandboxes.
func canRun(t *testing.T) {
	t.Helper()
	why := ""
	if os.Geteuid() != 0 {
		why = "these tests run as root"
	} else if _, err := exec.LookPath("busybox"); err != nil {
		why = kittest.ErrNoBusybox.Error()
	}
	if why != "" {
		needs.Lacks(t, "%s", why)
	}
}

func TestScripts(t *testing.T) {
	canRun(t)
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		// Its own would stay when only some scripts are run.
		WorkdirRoot: t.TempDir(),
		Setup:       setup,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"push":     push,
			"serve":    serve,
			"registry": registry,
			"setenv":   setEnv,
			"field":    field,
			"nothing":  nothing,
			"waitfile": waitFile,
		},
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}

func setup(e *testscript.Env) error {
	home := filepath.Join(e.WorkDir, "home")
	e.Setenv("KITBOX_HOME", home)
	e.Setenv("KITBOX_LIBEXEC", libexec)
	e.Setenv("SECRET_OF_THE_HOST", "must not travel")
	e.Defer(func() { clean(e.T(), home) })
	return nil
}

// clean removes what a failed script left, and fails when anything of the home
// is still alive afterwards.
func clean(t testscript.T, home string) {
	for range 3 {
		names, err := os.ReadDir(filepath.Join(home, "sandboxes"))
		if err != nil {
			break
		}
		for _, n := range names {
			if strings.HasPrefix(n.Name(), ".") {
				continue
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			c := exec.CommandContext(ctx, "/proc/self/exe", "rm", n.Name())
			c.Args[0] = "kitbox"
			c.Env = append(os.Environ(), "KITBOX_HOME="+home, "KITBOX_LIBEXEC="+libexec, "PATH="+os.Getenv("PATH"))
			c.Run()
			cancel()
		}
	}
	if left := alive(home); len(left) > 0 {
		t.Fatal(fmt.Sprintf("left over: %s", strings.Join(left, "; ")))
	}
}

// alive returns the processes, mounts and cgroups that belong to home.
func alive(home string) []string {
	var left []string
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range procs {
		b, err := os.ReadFile(p)
		if err == nil && bytes.HasPrefix(b, []byte(link.ProcessName)) && bytes.Contains(b, []byte(home)) {
			left = append(left, "keeper "+filepath.Base(filepath.Dir(p)))
		}
	}
	left = append(left, guests(home)...)
	loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, l := range loops {
		if b, err := os.ReadFile(l); err == nil && bytes.HasPrefix(b, []byte(home+"/")) {
			left = append(left, "loop device of "+strings.TrimSpace(string(b)))
		}
	}
	for _, dir := range []string{"machines", "machines-oci"} {
		// Named by machine and, in short, by the directory of machines.
		sum := sha256.Sum256([]byte(filepath.Join(home, dir)))
		for _, at := range []string{"/sys/fs/cgroup/kitbox", "/sys/fs/cgroup/*/kitbox"} {
			groups, _ := filepath.Glob(fmt.Sprintf("%s/*-%x", at, sum[:4]))
			left = append(left, groups...)
		}
	}
	if b, err := os.ReadFile("/proc/self/mountinfo"); err == nil && bytes.Contains(b, []byte(home)) {
		left = append(left, "mounts")
	}
	for _, dir := range []string{"machines", "machines-oci", "clones"} {
		files, _ := os.ReadDir(filepath.Join(home, dir))
		for _, f := range files {
			left = append(left, dir+" "+f.Name())
		}
	}
	sandboxes, _ := os.ReadDir(filepath.Join(home, "sandboxes"))
	for _, s := range sandboxes {
		switch s.Name() {
		case ".ids.lock", ".ids.json", ".ids-volatile.json":
		default:
			left = append(left, "sandbox "+s.Name())
		}
	}
	return left
}

// guests finds the guests of home's machines, by their log, which they keep open.
func guests(home string) (out []string) {
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/2")
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && (strings.HasPrefix(target, home+"/machines/") || strings.HasPrefix(target, home+"/machines-oci/")) {
			out = append(out, "guest "+strings.Split(fd, "/")[2])
		}
	}
	return out
}

// nothing fails when anything is left of the script's sandboxes.
func nothing(ts *testscript.TestScript, neg bool, args []string) {
	if left := alive(ts.Getenv("KITBOX_HOME")); len(left) > 0 {
		ts.Fatalf("left over: %s", strings.Join(left, "; "))
	}
}

// push REF DESCRIPTOR [CONFIG] puts a Kit into the store. CONFIG is JSON: the
// image config, and beside it "base" and "files" of kittest.
func push(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: push REF DESCRIPTOR [CONFIG]")
	}
	k := kittest.Kit{Ref: args[0], Descriptor: ts.ReadFile(args[1])}
	if len(args) > 2 {
		var c struct {
			Config ocispec.ImageConfig
			Base   bool
			Files  map[string]struct {
				Content string
				Mode    uint32
			}
		}
		ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[2])), &c))
		k.Config, k.Base, k.Files = c.Config, c.Base, map[string]kittest.File{}
		for name, f := range c.Files {
			k.Files[name] = kittest.File{Content: f.Content, Mode: fs.FileMode(f.Mode)}
		}
	}
	ts.Check(kittest.Push(context.Background(), ts.Getenv("KITBOX_HOME"), k))
}

// serve VAR TEXT answers HTTP with TEXT on the host's loopback until the script
// ends, and sets VAR to the address and VAR_PORT to its port.
func serve(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: serve VAR TEXT")
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	ts.Check(err)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s for %s\n", args[1], r.Host)
	})}
	done := make(chan struct{})
	go func() { defer close(done); s.Serve(l) }()
	ts.Defer(func() { s.Close(); <-done })
	ts.Setenv(args[0], l.Addr().String())
	ts.Setenv(args[0]+"_PORT", strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
}

// registry VAR runs a registry on the host's loopback until the script ends, and
// sets VAR to its host.
func registry(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: registry VAR")
	}
	ctx, stop := context.WithCancel(context.Background())
	s := httptest.NewServer(registrytest.Validating(ctx, ts.MkAbs(".registry-"+args[0])))
	ts.Defer(func() { s.Close(); stop() })
	ts.Setenv(args[0], strings.TrimPrefix(s.URL, "http://"))
	ts.Setenv("DOCKER_CONFIG", ts.MkAbs("no-logins"))
}

var variable = regexp.MustCompile(`\$[A-Z]+`)

// setenv FILE... replaces $NAME in files by the variables of the script.
func setEnv(ts *testscript.TestScript, neg bool, args []string) {
	for _, name := range args {
		text := variable.ReplaceAllStringFunc(ts.ReadFile(name), func(v string) string { return ts.Getenv(v[1:]) })
		ts.Check(os.WriteFile(ts.MkAbs(name), []byte(text), 0o644))
	}
}

// field VAR FILE PATH sets VAR to a member of a JSON document: names and
// indexes, separated by dots.
func field(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 3 {
		ts.Fatalf("usage: field VAR FILE PATH")
	}
	var v any
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[1])), &v))
	for _, name := range strings.Split(args[2], ".") {
		switch x := v.(type) {
		case map[string]any:
			v = x[name]
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i >= len(x) {
				ts.Fatalf("%s: no element %s of %d", args[2], name, len(x))
			}
			v = x[i]
		default:
			ts.Fatalf("%s: nothing at %s", args[2], name)
		}
	}
	s, ok := v.(string)
	if !ok {
		b, err := json.Marshal(v)
		ts.Check(err)
		s = string(b)
	}
	ts.Setenv(args[0], s)
}

// waitfile FILE waits until FILE exists.
func waitFile(ts *testscript.TestScript, neg bool, args []string) {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(ts.MkAbs(args[0])); err == nil {
			return
		} else if !errors.Is(err, fs.ErrNotExist) || time.Now().After(deadline) {
			ts.Fatalf("waiting for %s: %v", args[0], err)
		}
	}
}
