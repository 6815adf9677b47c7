package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/needs"
)

// serve starts an HTTP server on the host's loopback and counts what reaches
// it.
func serve(t *testing.T, body string) (addr string, hits *atomic.Int64) {
	t.Helper()
	hits = new(atomic.Int64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		io.WriteString(w, body+" "+r.Host+"\n")
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), hits
}

// TestEgressFollowsThePolicy has its positive controls beside every refusal:
// the same server, reached by a name that is allowed.
func TestEgressFollowsThePolicy(t *testing.T) {
	addr, hits := serve(t, "served")
	create(t, "egress", probe, "--kit", addon,
		"--route", "allowed.test="+addr, "--route", "setup.test="+addr, "--route", "denied.test="+addr,
		"--route", "a.many.test="+addr, "--route", "no.many.test="+addr, "--route", "addon.test="+addr)

	install := ok(t, "exec", "-u", "0", "egress", "--", "cat", "/install-setup.txt", "/install-allowed.txt")
	if !strings.Contains(install, "served setup.test") {
		t.Errorf("the install hook did not reach the host of its phase: %q", install)
	}
	if strings.Contains(install, "served allowed.test") {
		t.Errorf("the install hook reached a host of the runtime phase: %q", install)
	}

	get := func(url string) outcome {
		return sh(t, "egress", "", "curl -sS --max-time 5 "+url)
	}
	for _, url := range []string{"http://allowed.test/", "http://allowed.test:8080/", "http://a.many.test/", "http://addon.test/"} {
		if o := get(url); o.Code != 0 || !strings.HasPrefix(o.Stdout, "served ") {
			t.Errorf("%s: %+v, want it served", url, o)
		}
	}
	before := hits.Load()
	for _, url := range []string{
		"http://setup.test/",       // the install phase is over
		"http://denied.test/",      // a route grants nothing
		"http://many.test/",        // a wildcard does not cover the bare domain
		"http://b.a.many.test/",    // nor two labels
		"http://no.many.test/",     // a deny wins over another Kit's allow
		"http://a.many.test:81/",   // the port is part of the rule
		"http://private.test/",     // allowed, but leads nowhere without a route
		"http://" + addr + "/",     // the host's loopback by address
		"http://127.0.0.1:1/",      //
		"http://169.254.169.254/",  // metadata
		"http://10.0.0.1/",         //
		"http://93.184.216.34/",    // a public address that no rule spells
		"'http://[2606:2800::1]/'", //
		"'http://[fe80::1]/'",      //
	} {
		if o := get(url); o.Code == 0 {
			t.Errorf("%s was reached: %q", url, o.Stdout)
		}
	}
	if n := hits.Load() - before; n != 0 {
		t.Errorf("refused requests reached the server %d times", n)
	}
}

func TestOtherWaysOutAreShut(t *testing.T) {
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	create(t, "ways", probe)
	for _, script := range []string{
		`python3 -c 'import socket; s=socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(2); s.connect(("8.8.8.8",53)); s.send(b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03com\x00\x00\x01\x00\x01"); print(len(s.recv(512)))'`,
		`python3 -c 'import socket; s=socket.create_connection(("1.1.1.1",53),timeout=3); print("connected"); s.send(b"x"); print(len(s.recv(10)) or exit(1))'`,
		fmt.Sprintf(`python3 -c 'import socket; s=socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(2); s.sendto(b"x",("127.0.0.1",%d)); s.recv(1)'`, udp.LocalAddr().(*net.UDPAddr).Port),
		`python3 -c 'import socket; s=socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP); s.settimeout(2); s.sendto(b"\x08\x00\xf7\xff\x00\x00\x00\x00",("8.8.8.8",0)); r=s.recv(100); raise SystemExit(0 if r[20]==0 else 1)'`,
		`python3 -c 'import socket; s=socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3); s.bind(("eth0",0)); s.settimeout(2); s.send(b"\xff"*60); raise SystemExit(1)'`,
		`python3 -c 'import socket; s=socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM); s.settimeout(2); s.connect((2,22))'`,
	} {
		for _, user := range []string{"", "0"} {
			if o := sh(t, "ways", user, script); o.Code == 0 {
				t.Errorf("as %q: %s\nsucceeded: %q", user, script, o.Stdout)
			}
		}
	}
	udp.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, from, err := udp.ReadFrom(make([]byte, 16)); err == nil {
		t.Errorf("the host's loopback received %d bytes from %v", n, from)
	}
	if o := sh(t, "ways", "0", "ip route add default via 10.9.9.9 2>/dev/null; ip link set eth0 down 2>/dev/null; ip link add x type dummy 2>/dev/null; true"); o.Code != 0 {
		t.Errorf("%+v", o)
	}
}

func TestTheHostIsOutOfReach(t *testing.T) {
	canary := exec.Command("sleep", "86399")
	if err := canary.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { canary.Process.Kill(); canary.Wait() }()
	secret := filepath.Join(t.TempDir(), "canary-file")
	if err := os.WriteFile(secret, []byte("canary-of-the-host"), 0o644); err != nil {
		t.Fatal(err)
	}
	create(t, "host", probe)
	pid := strconv.Itoa(canary.Process.Pid)
	for _, user := range []string{"", "0"} {
		if o := sh(t, "host", user, "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[s]leep 86399'"); strings.TrimSpace(o.Stdout) != "0" {
			t.Errorf("as %q: the canary process is visible: %+v", user, o)
		}
		if o := sh(t, "host", user, "kill -9 "+pid+" 2>/dev/null; kill -9 -1; true"); o.Code == 125 {
			t.Errorf("%+v", o)
		}
		if !there(canary.Process) {
			t.Fatalf("as %q: the canary is gone", user)
		}
		for _, p := range []string{secret, "/proc/1/root" + secret, "/proc/self/root/../.." + secret, home, "/proc/1/cwd" + secret} {
			if o := sh(t, "host", user, "cat "+p+" 2>/dev/null || ls "+p+" 2>/dev/null"); o.Code == 0 {
				t.Errorf("as %q: %s is readable: %q", user, p, o.Stdout)
			}
		}
		for _, script := range []string{
			"mount -t tmpfs none /mnt", "mount --bind /etc /mnt", "unshare -U true", "unshare -m true",
			"mknod /tmp/dev b 254 0 && cat /tmp/dev", "echo 1 > /proc/sys/kernel/sysrq", "echo c > /proc/sysrq-trigger",
			"cat /proc/kcore | head -c 1 | grep -q .", "dmesg", "chroot / true && mount -t proc proc /proc",
			"echo x > /sys/kernel/profiling", "ls /sys/firmware/*", "insmod /tmp/x.ko", "nsenter -t 1 -m true",
			"cat /dev/mem", "head -c1 /dev/vda", "python3 -c 'import ctypes; import sys; sys.exit(0 if ctypes.CDLL(None).syscall(246,0,0,0,0)==0 else 1)'",
		} {
			if o := sh(t, "host", user, script+" >/dev/null 2>&1"); o.Code == 0 {
				t.Errorf("as %q: %s succeeded", user, script)
			}
		}
		status := sh(t, "host", user, "cat /proc/self/status").Stdout
		for _, want := range []string{"Seccomp:\t2", "NoNewPrivs:\t1"} {
			if !strings.Contains(status, want) {
				t.Errorf("as %q: no %q in /proc/self/status", user, want)
			}
		}
		if fds := sh(t, "host", user, "ls /proc/self/fd | wc -l").Stdout; strings.TrimSpace(fds) != "4" {
			t.Errorf("as %q: ls sees %s descriptors, want its stdio and the directory it reads", user, fds)
		}
	}
	// PID 1 cannot be killed from inside, and says nothing about the host.
	if o := sh(t, "host", "0", "kill -9 1; sleep 0.1; cat /proc/1/environ | wc -c; readlink /proc/1/exe || echo hidden"); o.Stdout != "0\nhidden\n" {
		t.Errorf("PID 1: %+v", o)
	}
}

// TestNothingFlowsWithoutTheKeeper kills the keeper and sees that the sandbox
// lives on without a way out, and gets it back with the next command.
func TestNothingFlowsWithoutTheKeeper(t *testing.T) {
	addr, hits := serve(t, "served")
	create(t, "orphan", probe, "--route", "allowed.test="+addr)
	// A loop inside keeps trying, and writes what it got.
	ok(t, "exec", "orphan", "--", "sh", "-c", `(while :; do curl -sS --max-time 2 http://allowed.test/ >> /data/got 2>&1; sleep 0.1; done) >/dev/null 2>&1 &
echo $! > /data/pid`)
	waitFor(t, "the loop to be served", func() bool { return hits.Load() > 1 })

	pid := keeperPID(t, "orphan")
	if err := pid.Kill(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the keeper to be gone", func() bool { return !there(pid) })
	before := hits.Load()
	time.Sleep(500 * time.Millisecond) // long enough for several tries
	if n := hits.Load() - before; n > 1 {
		t.Errorf("%d requests got out after the keeper was killed", n)
	}
	if out := ok(t, "exec", "orphan", "--", "sh", "-c", "kill -0 $(cat /data/pid) && echo alive"); out != "alive\n" {
		t.Errorf("the sandbox did not live on: %q", out)
	}
	before = hits.Load()
	waitFor(t, "the way out to be back", func() bool { return hits.Load() > before })
}

// TestInterruptedCreateLeavesNothing kills the command at several moments.
func TestInterruptedCreateLeavesNothing(t *testing.T) {
	for i, after := range []time.Duration{5, 20, 40, 60, 90, 140} {
		name := fmt.Sprintf("cut%d", i)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		cmd := command(ctx, "kitbox", "create", "--name", name, probe)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(after * time.Millisecond)
		cmd.Process.Kill()
		cmd.Wait()
		cancel()
		// Either there is nothing of that name, or rm takes it away.
		if o := kitbox(t, "rm", name); o.Code != 0 && kitbox(t, "status", name).Code == 0 {
			t.Errorf("killed after %dms: rm: %+v", after, o)
		}
		if o := kitbox(t, "run", "--rm", "--name", name, "--exec", probe, "--", "echo", "fine"); o.Stdout != "fine\n" {
			t.Errorf("killed after %dms, then run: %+v", after, o)
		}
	}
}

// TestTheOCIDriverKeepsTheSamePromises runs the same Kit on an installed
// runtime.
func TestTheOCIDriverKeepsTheSamePromises(t *testing.T) {
	needs.Root(t, "the oci driver runs as root only")
	addr, hits := serve(t, "served")
	dir := repository(t, 1000, map[string]string{"tracked": "x\n", ".env": "secret\n"})
	create(t, "runtime", probe, dir, "--driver", "oci", "--route", "allowed.test="+addr, "--mask", ".env")
	for _, a := range attacks {
		for _, user := range []string{"", "0"} {
			if o := sh(t, "runtime", user, a); o.Code == 0 {
				t.Errorf("as user %q: %s", user, a)
			}
		}
	}
	if out := ok(t, "exec", "runtime", "--", "cat", ".env", "tracked"); out != "x\n" {
		t.Errorf("it reads %q", out)
	}
	if o := sh(t, "runtime", "", "id -un; curl -sS --max-time 5 http://allowed.test/"); o.Stdout != "agent\nserved allowed.test\n" {
		t.Errorf("%+v", o)
	}
	before := hits.Load()
	if o := sh(t, "runtime", "0", "curl -sS --max-time 5 http://"+addr+"/"); o.Code == 0 || hits.Load() != before {
		t.Errorf("the host's loopback was reached: %+v", o)
	}
	ok(t, "exec", "runtime", "--", "sh", "-c", "echo kept > /data/kept")
	ok(t, "stop", "runtime")
	ok(t, "start", "runtime")
	if out := ok(t, "exec", "runtime", "--", "cat", "/data/kept"); out != "kept\n" {
		t.Errorf("/data/kept = %q", out)
	}
}
