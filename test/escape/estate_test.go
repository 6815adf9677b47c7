package escape

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/internal/engine/kittest"
)

// A kind is whose the sandboxes of an estate are, and what makes them. It is a
// part of marks.
type kind string

const (
	roots    kind = "root"
	users    kind = "user" // an ordinary user's
	runtimes kind = "oci"  // root's, made by an OCI runtime
	behind   kind = "via"  // root's, on a host that reaches the outside through a proxy
)

// An estate is a host with four sandboxes on it.
type estate struct {
	dir, home, libexec, program string
	kind                        kind
	out                         *outside
	worlds                      map[place]world
}

// An ordinary user, who exists in the mount namespace of these tests only.
const userID, userName = 20001, "kitboxtest"

func newEstate(t *testing.T, out *outside, kind kind) *estate {
	t.Helper()
	// Not below t.TempDir, which only root may enter.
	dir, err := os.MkdirTemp("", "kitbox-escape-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	e := &estate{dir: dir, home: filepath.Join(dir, "home"), kind: kind, out: out, worlds: map[place]world{}}
	e.programs(t)
	if kind == users {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		err := filepath.Walk(e.home, func(p string, _ os.FileInfo, err error) error {
			if err != nil {
				return err
			}
			return os.Lchown(p, userID, userID)
		})
		if err != nil {
			t.Fatal(err)
		}
	}

	canary := filepath.Join(e.dir, "canary")
	if err := os.WriteFile(canary, []byte("canary of the host"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, service := range []string{"vault", "setupv", "badv"} {
		if _, _, err := e.kitboxIn(t.Context(), []byte(out.secret+"\n"), "secret", "set", service); err != nil {
			t.Fatal(err)
		}
	}
	for _, service := range []string{"idp", "fails"} {
		if _, _, err := e.kitboxIn(t.Context(), out.tokens(), "secret", "set", service, "--oauth"); err != nil {
			t.Fatal(err)
		}
	}
	docker := filepath.Join(e.home, ".docker")
	if err := os.Mkdir(docker, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(docker, "config.json"), out.dockerConfig(), 0o600); err != nil {
		t.Fatal(err)
	}
	if kind == users {
		for _, p := range []string{docker, filepath.Join(docker, "config.json")} {
			if err := os.Lchown(p, userID, userID); err != nil {
				t.Fatal(err)
			}
		}
	}
	stored, err := digests(filepath.Join(e.home, "images/blobs/sha256"))
	if err != nil {
		t.Fatal(err)
	}
	w := world{Home: e.home, Digests: stored, Secret: []byte(out.secret), Canary: canary, Abstract: out.abstract, Neighbour: "the neighbour says " + t.Name(), Segment: out.segment}
	e.worlds[host] = w
	for _, p := range []place{neighbour, plain, strong, rough} {
		e.create(t, p, w)
	}
	return e
}

// programs finds or builds the guest, and the program that attacks: a test under
// the race detector is not static, and would not run where there is nothing else.
func (e *estate) programs(t *testing.T) {
	t.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	build := func(args ...string) {
		c := exec.Command("go", args...)
		c.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	if bytes.Contains(self, []byte("ld-linux")) && bytes.Contains(self, []byte("__tsan_init")) {
		static := filepath.Join(e.dir, "static")
		build("test", "-c", "-o", static, "github.com/kitbox-dev/kitbox/test/escape")
		if self, err = os.ReadFile(static); err != nil {
			t.Fatal(err)
		}
	}
	e.libexec = filepath.Join(e.dir, "libexec")
	if err := os.Mkdir(e.libexec, 0o755); err != nil {
		t.Fatal(err)
	}
	if from := os.Getenv("KITBOX_LIBEXEC"); from != "" {
		e.copy(t, filepath.Join(from, "kit-guest"), "kit-guest")
	} else {
		build("build", "-o", e.libexec+"/", "github.com/kitbox-dev/kitbox/cmd/kit-guest")
	}
	e.program = e.copy(t, "/proc/self/exe", "kitbox")
	for ref, descriptor := range map[string]string{"plain:1": fmt.Sprintf(kit, vaultKit+tokenKit+grantKit), "strong:1": fmt.Sprintf(kit, vaultKit+tokenKit+grantKit+`{"type":"com.docker.sandbox/privileged@1"},`)} {
		err := kittest.Push(t.Context(), e.home, kittest.Kit{Ref: ref, Descriptor: descriptor, Base: true,
			Config: ocispec.ImageConfig{User: "agent", Entrypoint: []string{"/bin/sh"}},
			Files:  map[string]kittest.File{"/bin/" + attackerName: {Content: string(self), Mode: 0o755}}})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// copy puts a program where everybody may run it.
func (e *estate) copy(t *testing.T, from, name string) string {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(e.libexec, name)
	if err := os.WriteFile(to, b, 0o755); err != nil {
		t.Fatal(err)
	}
	return to
}

// Names that the Kits below allow, and what answers under them.
const (
	openName   = "open.test"   // every request, over every port
	boundName  = "bound.test"  // GET and POST below /ok, but for /ok/shut and below /ok/closed
	otherName  = "other.test"  // GET below /ok
	clName     = "cl.test"     // bounded, a server that believes Content-Length
	teName     = "te.test"     // bounded, a server that believes Transfer-Encoding
	setupName  = "setup.test"  // at install only
	setupBound = "setupb.test" // at install only, bounded
	rebindName = "rebind.test" // whose address changes
	deniedName = "denied.test" // no rule
)

// kit is a workload. Its install hook leaves a process behind that tries to use
// later what was open then.
const kit = `{"schemaVersion":"3","kind":"workload","provides":["w@1"],"capabilities":[%s
 {"type":"com.docker.sandbox/network-policy@2","config":{
  "install":{"allow":["setup.test","setupv.test",{"hosts":["setupb.test"],"methods":["GET","POST"],"paths":["/ok/**"]}]},
  "runtime":{"allow":["open.test","*.wild.test","rebind.test","*.lie.test","vault.test","badv.test","setupv.test","auth.test","fail.test","res.test","reg.test","tok.test","mirror.test",
   {"hosts":["bound.test","cl.test","te.test"],"methods":["GET","POST"],"paths":["/ok/**"]},
   {"hosts":["other.test","front.test"],"methods":["GET"],"paths":["/ok/**"]}],
  "deny":[{"hosts":["bound.test"],"methods":["ANY"],"paths":["/ok/shut","/ok/closed/**"]}]}}},
 {"type":"com.docker.sandbox/lifecycle@1","config":{"install":[{"command":"setsid attacker linger </dev/null >/tmp/linger.log 2>&1 & until test -e /tmp/lingers; do usleep 5000; done","env":["SETUP_TOKEN"]}]}}]}`

// command is one of kitbox, of the estate's owner.
func (e *estate) command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, e.program, args...)
	if e.kind == users {
		c = exec.CommandContext(ctx, "setpriv", append([]string{"--reuid", fmt.Sprint(userID), "--regid", fmt.Sprint(userID), "--clear-groups",
			"--inh-caps=-all", "--bounding-set=-sys_resource", e.program}, args...)...)
	}
	c.Dir = e.dir
	c.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + e.home, "USER=" + userName, "KITBOX_HOME=" + e.home, "KITBOX_LIBEXEC=" + e.libexec,
		"KITBOX_UPSTREAM_CA=" + e.out.roots, "NO_COLOR=1"}
	if e.kind == behind {
		c.Env = append(c.Env, proxied()...)
	}
	return c
}

// kitbox runs the command.
func (e *estate) kitbox(ctx context.Context, args ...string) (string, int, error) {
	return e.kitboxIn(ctx, nil, args...)
}

func (e *estate) kitboxIn(ctx context.Context, stdin []byte, args ...string) (string, int, error) {
	c := e.command(ctx, args...)
	c.WaitDelay = 5 * time.Second
	c.Stdin = bytes.NewReader(stdin)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err := c.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return out.String(), exit.ExitCode(), fmt.Errorf("status %d: %s", exit.ExitCode(), strings.TrimSpace(errs.String()))
	}
	return out.String(), 0, err
}

func (e *estate) create(t *testing.T, p place, w world) {
	t.Helper()
	name, ref := string(p), "plain:1"
	args := []string{"create", "-q", "--name", name}
	if p == strong || p == rough {
		ref = "strong:1"
		args = append(args, "--allow-privileged")
	}
	if e.kind == runtimes {
		args = append(args, "--driver", "oci")
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, _, err := e.kitbox(ctx, "rm", name); err != nil {
			t.Errorf("kitbox rm %s: %v", name, err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, _, err := e.kitbox(ctx, append(args, ref)...); err != nil {
		t.Fatalf("kitbox create %s: %v", name, err)
	}
	out, _, err := e.kitbox(ctx, "status", name, "--json")
	var status struct {
		KeeperPID int `json:"keeperPid"`
	}
	if err != nil || json.Unmarshal([]byte(out), &status) != nil || status.KeeperPID == 0 {
		t.Fatalf("kitbox status %s: %v\n%s", name, err, out)
	}
	sockets, _ := filepath.Glob(filepath.Join(e.home, "machines*", "*", "guest.sock"))
	if len(sockets) == 0 {
		t.Fatal("no guest has a socket")
	}
	w.Keeper, w.Guest = status.KeeperPID, sockets[len(sockets)-1]
	e.worlds[p] = w
	if p == neighbour {
		ready := make(chan error, 1)
		e.background(t, ready, "exec", name, "--", "/bin/"+attackerName, "serve", w.Neighbour)
		if err := <-ready; err != nil {
			t.Fatalf("the neighbour does not serve: %v", err)
		}
	}
}

// background runs a kitbox command until the test ends and tells ready when it
// has said something.
func (e *estate) background(t *testing.T, ready chan<- error, args ...string) {
	c := e.command(context.Background(), args...)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	go func() {
		_, err := out.Read(make([]byte, 1))
		ready <- err
	}()
}

// bound is how long an attempt may take.
const bound = 20 * time.Second

// run performs one side of an attempt at p.
func (e *estate) run(t *testing.T, p place, name, kind, mark string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), bound)
	defer cancel()
	w := e.worlds[p]
	w.Mark = mark
	if p == host {
		// It knows as much as the sandbox would.
		w = e.worlds[plain]
		w.Mark = mark
	}
	data, err := json.Marshal(w)
	if err != nil {
		t.Fatal(err)
	}
	var code int
	if p == host {
		c := exec.CommandContext(ctx, "/proc/self/exe", name, kind)
		c.Args[0] = attackerName
		c.Stdin = bytes.NewReader(data)
		var out bytes.Buffer
		c.Stderr = &out
		err = c.Run()
		code = c.ProcessState.ExitCode()
		if err != nil {
			err = errors.New(strings.TrimSpace(out.String()))
		}
	} else {
		_, code, err = e.kitboxIn(ctx, data, "exec", "-i", "-u", "0", string(p), "--", "/bin/"+attackerName, name, kind)
	}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%w: it took more than %v", errBroken, bound)
	case err == nil:
		return nil
	case code == exitMissing:
		return fmt.Errorf("%w: %w", errMissing, err)
	case code != exitHeld:
		return fmt.Errorf("%w: %w", errBroken, err)
	}
	return err
}

// serveNeighbour says text to whoever connects to port 8000.
func serveNeighbour(text string) int {
	l, err := net.Listen("tcp", ":8000")
	if err != nil {
		return exitBroken
	}
	fmt.Println("serving")
	for {
		c, err := l.Accept()
		if err != nil {
			return exitBroken
		}
		fmt.Fprintln(c, text)
		c.Close()
	}
}
