package control_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/boundary/control"
	"github.com/kitbox-dev/kitbox/internal/needs"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

const (
	roleEnv  = "KITBOX_TEST_ROLE"
	routeEnv = "KITBOX_TEST_ROUTE"
)

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "keeper":
		keep()
		return
	case "machine":
		io.Copy(io.Discard, os.Stdin)
		return
	}
	os.Exit(m.Run())
}

// keep is a process that holds a boundary around the namespace on descriptor 3
// until it is killed.
func keep() {
	to := netip.MustParseAddrPort(os.Getenv(routeEnv))
	p := policyOf("runtime allow echo.example")
	_, err := control.Start(context.Background(), control.Config{
		GuestNetNS: os.NewFile(3, "netns"), Phase: plan.Runtime, Policy: p, Routes: []plan.Route{route("echo.example", to)},
	})
	fmt.Println("started", err)
	select {}
}

func TestNothingFlowsOnceTheKeeperIsKilled(t *testing.T) {
	g := newGuest(t)
	at := serve(t, "tcp4", echo)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleEnv+"=keeper", routeEnv+"="+at.String())
	cmd.ExtraFiles = []*os.File{g.ns}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "started <nil>\n" {
		t.Fatalf("keeper: %q, %v", line, err)
	}
	a, err := g.resolve("echo.example", "ip4")
	if err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(a, 80).String()
	live, err := g.dial("tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	speak(t, live)

	cmd.Process.Kill()
	cmd.Wait()
	for _, dest := range []string{to, "192.0.2.1:80", at.String()} {
		d, err := g.dial("tcp", dest)
		if err == nil {
			d.Close()
			t.Errorf("%s can be connected to although the keeper is dead", dest)
		}
	}
	live.SetDeadline(time.Now().Add(5 * time.Second))
	live.Write([]byte("ping\n"))
	if n, err := live.Read(make([]byte, 5)); err == nil {
		t.Errorf("a live connection carried %d bytes although the keeper is dead", n)
	}

	// The next keeper attaches again, whatever the kernel still holds.
	start(t, g, control.Config{Policy: policy(t, "runtime allow echo.example"), Routes: []plan.Route{route("echo.example", at)}})
	again, err := g.dialName("ip4", "echo.example", 80)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	speak(t, again)
}

// TestMachineInAUserNamespace guards a namespace that belongs to a user
// namespace of its own, as that of a machine does.
func TestMachineInAUserNamespace(t *testing.T) {
	needNamespaces(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleEnv+"=machine")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}},
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer in.Close()
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	g := &guest{t: t, ns: ns}
	at := serve(t, "tcp4", echo)
	start(t, g, control.Config{Policy: policy(t, "runtime allow echo.example"), Routes: []plan.Route{route("echo.example", at)}})
	for _, network := range []string{"ip4", "ip6"} {
		c, err := g.dialName(network, "echo.example", 80)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		speak(t, c)
	}
}

// TestRootless runs this package's tests again as an ordinary user of the host
// who is root in a user namespace, with the host's network namespace.
func TestRootless(t *testing.T) {
	if os.Getenv(roleEnv) == "rootless" {
		t.Skip("this is the inner run")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root to map a range of ids; as an ordinary user, run the tests under unshare -Urm")
	}
	if m, err := os.ReadFile("/proc/self/uid_map"); err != nil || len(strings.Fields(string(m))) != 3 || strings.Fields(string(m))[2] != "4294967295" {
		t.Skip("this is a user namespace already, so every other test is a rootless one")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-test.v", "-test.count=1", "-test.timeout=7m")
	cmd.Env = append(os.Environ(), roleEnv+"=rootless", "TMPDIR="+openDir(t), "HOME=/")
	const first, size = 200000, 65536 // of host ids that nobody has
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: first, Size: size}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: first, Size: size}},
		Credential:  &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: true},
		Pdeathsig:   syscall.SIGKILL,
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) {
		needs.Lacks(t, "this host lets nobody make a user namespace: %v", err)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	passed := strings.Count(string(out), "\n--- PASS: ") + strings.Count(string(out), "\n    --- PASS: ")
	if passed < 10 {
		t.Errorf("only %d tests passed:\n%s", passed, out)
	}
	for _, line := range strings.Split(string(out), "\n") {
		if strings.HasPrefix(line, "--- SKIP") && !strings.Contains(line, "TestRootless") {
			t.Errorf("skipped: %s", line)
		}
	}
}

// openDir makes a temporary directory that the ids of a user namespace may use.
func openDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "boundary")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chown(dir, 200000, 200000); err != nil {
		t.Fatal(err)
	}
	return dir
}
