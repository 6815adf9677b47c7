package test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/engine/kittest"
	"github.com/kitbox-dev/kitbox/internal/needs"
)

// ordinary is a user that exists only in a mount namespace of the tests, with
// subordinate ids.
const ordinary = 20001

// asOrdinary is a script that becomes that user, whose directory is the first argument,
// and goes on with the command after it. It is one process all the way.
const asOrdinary = `set -e
for f in passwd group subuid subgid; do mount --bind $1/$f /etc/$f; done
cd $1/home
dir=$1
shift
exec setpriv --reuid 20001 --regid 20001 --clear-groups --inh-caps=-all --bounding-set=-sys_resource \
  env -i HOME=$dir/home USER=kitboxtest PATH=$dir:/usr/bin:/bin:/usr/sbin:/sbin KITBOX_HOME=$dir/home/kitbox KITBOX_LIBEXEC=$dir KITBOX_CDI_DIRS=$dir/cdi "$@"`

// ordinaryUser makes what that user needs, and returns his directory: his home in it is
// root's until it is given to him.
func ordinaryUser(t *testing.T) (dir string) {
	t.Helper()
	canRun(t)
	for _, p := range []string{"unshare", "setpriv", "newuidmap", "nsenter"} {
		needs.Program(t, p, "apt-get install uidmap util-linux")
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	// Not below t.TempDir, which only root may enter.
	dir, err := os.MkdirTemp("", "kitbox-user-")
	must(err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	home := filepath.Join(dir, "home")
	must(os.Chmod(dir, 0o755))
	must(os.Mkdir(home, 0o755))
	program, err := os.ReadFile("/proc/self/exe")
	must(err)
	must(os.WriteFile(filepath.Join(dir, "kitbox"), program, 0o755))
	must(os.Symlink("kitbox", filepath.Join(dir, "kit-engine")))
	guest, err := os.ReadFile(filepath.Join(libexec, "kit-guest"))
	must(err)
	must(os.WriteFile(filepath.Join(dir, "kit-guest"), guest, 0o755))
	// As after an installation below the user's own directory: to root of a
	// sandbox it is a file of its own.
	must(os.Chown(filepath.Join(dir, "kit-guest"), ordinary, ordinary))
	for name, line := range map[string]string{
		"passwd": fmt.Sprintf("kitboxtest:x:%d:%d::%s:/bin/sh\n", ordinary, ordinary, home), "group": fmt.Sprintf("kitboxtest:x:%d:\n", ordinary),
		"subuid": "kitboxtest:700000:65536\n", "subgid": "kitboxtest:700000:65536\n",
	} {
		old, err := os.ReadFile("/etc/" + name)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if err != nil {
			needs.Lacks(t, "/etc/%s is missing, so nothing can be mounted over it: touch it", name)
		}
		must(os.WriteFile(filepath.Join(dir, name), append(old, line...), 0o644))
	}
	return dir
}

// give gives the user all that is in his home.
func give(t *testing.T, dir string) {
	t.Helper()
	if err := filepath.Walk(filepath.Join(dir, "home"), func(p string, _ os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(p, ordinary, ordinary)
	}); err != nil {
		t.Fatal(err)
	}
}

// TestAnOrdinaryUserRunsAKit lets that user do what root does elsewhere.
func TestAnOrdinaryUserRunsAKit(t *testing.T) {
	dir := ordinaryUser(t)
	kitboxHome := filepath.Join(dir, "home", "kitbox")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(kittest.Push(t.Context(), kitboxHome, kittest.Kit{Ref: "w:1", Base: true,
		Config: ocispec.ImageConfig{User: "agent", WorkingDir: "/home/agent/workspace", Entrypoint: []string{"/bin/sh"}, Env: []string{"PATH=/bin"}},
		Descriptor: `{"schemaVersion":"3","kind":"workload","provides":["w@1"],"capabilities":[
 {"type":"com.docker.sandbox/sbx@1"},{"type":"com.docker.sandbox/volume@1","config":{"path":"/data"}},
 {"type":"com.docker.sandbox/credential@1","optional":true,"config":{"service":"svc","phase":"runtime","apiKey":{"name":"TOKEN","proxyManaged":true}}},
 {"type":"com.docker.sandbox/lifecycle@1","config":{"install":[{"command":"id -u >/data/by"}]}}]}`}))
	must(kittest.Push(t.Context(), kitboxHome, kittest.Kit{Ref: "strong:1", Base: true, Config: ocispec.ImageConfig{Entrypoint: []string{"/bin/sh"}, Env: []string{"PATH=/bin"}},
		Descriptor: `{"schemaVersion":"3","kind":"workload","provides":["w@1"],"capabilities":[{"type":"com.docker.sandbox/privileged@1"}]}`}))
	greeter, err := net.Listen("tcp4", "127.0.0.1:0")
	must(err)
	defer greeter.Close()
	go func() {
		for {
			c, err := greeter.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("hello\n"))
			c.Close()
		}
	}()
	port := greeter.Addr().(*net.TCPAddr).Port
	must(kittest.Push(t.Context(), kitboxHome, kittest.Kit{Ref: "net:1", Base: true, Config: ocispec.ImageConfig{Entrypoint: []string{"/bin/sh"}, Env: []string{"PATH=/bin"}},
		Descriptor: fmt.Sprintf(`{"schemaVersion":"3","kind":"workload","provides":["w@1"],"capabilities":[{"type":"com.docker.sandbox/kit-registry@1"},
 {"type":"com.docker.sandbox/host-port@1","config":{"port":%d}}]}`, port)}))
	// A GPU that everybody may use, and one that only root may.
	must(kittest.Push(t.Context(), kitboxHome, kittest.Kit{Ref: "gpu:1", Base: true, Config: ocispec.ImageConfig{User: "agent", Entrypoint: []string{"/bin/sh"}, Env: []string{"PATH=/bin"}},
		Descriptor: wants("1", "")}))
	must(kittest.Push(t.Context(), kitboxHome, kittest.Kit{Ref: "gpus:1", Base: true, Config: ocispec.ImageConfig{User: "agent", Entrypoint: []string{"/bin/sh"}, Env: []string{"PATH=/bin"}},
		Descriptor: wants("all", "")}))
	must(os.Mkdir(filepath.Join(dir, "cdi"), 0o755))
	must(unix.Mknod(filepath.Join(dir, "root-only"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 7))))
	must(os.WriteFile(filepath.Join(dir, "cdi", "fake.json"), []byte(strings.ReplaceAll(`{"cdiVersion": "0.6.0", "kind": "example.com/gpu", "devices": [
 {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/fakegpu0", "hostPath": "DIR/root-only"}]}},
 {"name": "1", "containerEdits": {"deviceNodes": [{"path": "/dev/fakegpu1", "hostPath": "/dev/full"}]}}],
 "containerEdits": {"mounts": [{"hostPath": "/etc/hostname", "containerPath": "/opt/name"}]}}`, "DIR", dir)), 0o644))
	give(t, dir)
	script := `
trap "kitbox ls --json | sed -n \"s/^    \\\"name\\\": \\\"\\(.*\\)\\\",/\\1/p\" | xargs -r kitbox rm --force >/dev/null 2>&1 || true" EXIT
id -u
kitbox doctor | grep -E "^ok +(user namespaces|overlayfs|network boundary|rootless|subordinate ids) " | cut -c 10-28 | tr -d " "
kitbox run -q --rm --exec w:1 -- sh -c "id -u; cat /data/by; grep -c . /proc/self/uid_map >/dev/null && echo mapped"
kitbox create -q --name t w:1
kitbox exec t -- sh -c "echo kept >/data/f; id -un"
kitbox exec -u 0 t -- id -u
kitbox exec t -- sh -c "echo \${TOKEN:-none}"
kitbox rm t
echo s3cret | kitbox secret set svc
kitbox create -q --name t w:1
kitbox exec t -- sh -c "echo kept >/data/f; case \$TOKEN in kitbox-svc-*) echo sentinel;; esac"
stat -c "%a %u" $KITBOX_HOME/secrets/key
kitbox stop t; kitbox start t
kitbox exec t -- cat /data/f
kill -9 $(kitbox status t --json | sed -n "s/.*\"keeperPid\": \([0-9]*\).*/\1/p")
kitbox exec t -- echo reattached
kitbox logs -f t $(kitbox exec -d t -- echo job)
kitbox cp t:/data/f out && cat out && stat -c %u out && kitbox cp out t:/tmp/in && kitbox exec t -- stat -c %u /tmp/in
kitbox rm t
kitbox create -q --name s --allow-privileged strong:1
kitbox exec -u 0 s -- sh -c "chmod 755 /proc/1/exe 2>&1; chmod 755 /bin/busybox 2>&1 && echo changed" | sed "s/.*: //"
kitbox rm s
kitbox create -q --name n net:1
kitbox exec n -- sh -c "nc host.kitbox.internal $PORT </dev/null; wget -qO- http://\$KIT_REGISTRY/v2/; echo"
kitbox rm n
mkdir ws
echo mine >ws/mine
kitbox create -q --name v w:1
kitbox exec v -- sh -c "echo before >/data/g"
kitbox rm v
kitbox create -q --name v --mask .env w:1 ws
kitbox exec v -- sh -c "id -u; id -un; stat -c %u mine . /home/agent /bin/sh; echo made >made; echo more >>mine; cat /data/g; echo after >>/data/g; stat -c %u /data/g /data/by; echo x >/home/agent/x; mkdir d; echo y >d/.env"
kitbox exec -u 0 v -- sh -c "id -u; echo root >/root-made; stat -c %u /root-made /data; echo root >by-root; stat -c %u by-root"
stat -c "%u %n" ws/mine ws/made ws/d ws/by-root
kitbox stop v; kitbox start v
kitbox exec v -- cat /home/agent/x
kitbox rm v
kitbox create -q --name v w:1
kitbox exec v -- sh -c "cat /data/g; echo end >>/data/g; stat -c %u /data/g"
kitbox rm v
kitbox volume rm v
kitbox volume rm t
echo secret >ws/.env
kitbox create -q --name p --allow-privileged --mask .env strong:1 ws
kitbox exec -u 0 p -- sh -c "mkdir /m && mount -t tmpfs t /m && echo mounts; umount /home/agent/workspace/.env 2>/dev/null || umount /workspace/.env 2>/dev/null || echo locked; find / -xdev -name .env | xargs cat; cat .env"
kitbox rm p
kitbox create -q --name g gpus:1 2>&1 | grep -o "udev rule"
kitbox create -q --name g gpu:1
kitbox exec g -- sh -c "id -u; ls /dev/fakegpu*; head -c 2 /dev/fakegpu1 | wc -c; echo x 2>&1 >/dev/fakegpu1 | grep -o No.space; test -s /opt/name && echo mounted"
kitbox exec -u 0 g -- sh -c "chmod 600 /dev/fakegpu1 2>/dev/null || echo kept; head -c 2 /dev/fakegpu1 | wc -c"
kitbox rm g
kitbox ls --json
`
	c := exec.Command("unshare", "-m", "sh", "-c", asOrdinary, "sh", dir, "PORT="+strconv.Itoa(port), "sh", "-ec", script)
	done := make(chan struct{})
	late := time.AfterFunc(3*time.Minute, func() { c.Process.Kill() })
	defer late.Stop()
	var out []byte
	go func() { defer close(done); out, err = c.CombinedOutput() }()
	<-done
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	got := ""
	kept := 0 // the volumes that a removal names
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "kitbox: the volume ") && strings.Contains(line, " is kept: 'kitbox volume rm ") {
			kept++
			continue
		}
		got += line
	}
	if kept == 0 {
		t.Error("no removal names the volume that it keeps")
	}
	want := "20001\nusernamespaces\noverlayfs\nnetworkboundary\nsubordinateids\nrootless\n1000\n0\nmapped\nt\nagent\n0\nnone\nt\nt\nsentinel\n600 20001\nt\nt\nkept\nreattached\njob\nkept\n20001\n1000\nt\n" +
		// The host's program cannot be changed; the sandbox's own can.
		"s\nRead-only file system\nchanged\ns\n" +
		// A service of the host, and the registry of its Kits.
		"n\nhello\n{}\nn\n" +
		"v\nv\nv\n1000\nagent\n1000\n1000\n1000\n0\nbefore\n1000\n0\n" + // the image's user owns what its caller does
		"0\n0\n1000\n0\n20001 ws/mine\n20001 ws/made\n20001 ws/d\n20001 ws/by-root\nv\nv\nx\nv\n" +
		"v\nbefore\nafter\n1000\nv\n" +
		"p\nmounts\nlocked\np\n" +
		"udev rule\ng\n1000\n/dev/fakegpu1\n2\nNo space\nmounted\nkept\n2\ng\n"
	if !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "[]\n") {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	h := &host{t: t, home: kitboxHome}
	h.nothing()
}
