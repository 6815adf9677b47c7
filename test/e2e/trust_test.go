package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/needs"
)

// brought returns the paths of programs of this machine that a test brings along.
func brought(t *testing.T, programs ...string) (paths []string) {
	t.Helper()
	for _, p := range programs {
		at, err := filepath.EvalSymlinks(needs.Program(t, p, "install what it is part of"))
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, at)
	}
	return paths
}

// A host that is looked into, so that nobody reaches it who does not trust the
// boundary.
const looked = "  - type: com.docker.sandbox/network-policy@2\n    config: {runtime: {allow: [{hosts: [looked.hub.test], methods: [GET]}]}}\n"

func TestJavaTrustsTheBoundary(t *testing.T) {
	tools := brought(t, "java", "javac", "keytool")
	h := newHub(t, "looked.hub.test")
	t.Setenv("KITBOX_UPSTREAM_CA", h.ca)
	work := t.TempDir()
	source := filepath.Join(work, "Fetch.java")
	if err := os.WriteFile(source, []byte(`public class Fetch { public static void main(String[] a) throws Exception {
		var c = (java.net.HttpURLConnection) new java.net.URL("https://looked.hub.test/v2/").openConnection();
		System.out.println("status " + c.getResponseCode()); } }`), 0o600); err != nil {
		t.Fatal(err)
	}
	// A store as JDKs of today come with: PKCS #12 without a password.
	pkcs := filepath.Join(work, "cacerts.p12")
	for _, c := range [][]string{
		{tools[1], "--release", "17", "-d", work, source},
		{tools[2], "-importcert", "-noprompt", "-keystore", pkcs, "-storetype", "pkcs12", "-storepass", "changeit", "-alias", "a", "-file", h.ca,
			"-J-Dkeystore.pkcs12.macAlgorithm=NONE", "-J-Dkeystore.pkcs12.certProtectionAlgorithm=NONE"},
	} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", c, err, out)
		}
	}
	jdk := filepath.Dir(filepath.Dir(tools[0]))
	files := map[string]string{}
	for name, from := range map[string]string{"jks": filepath.Join(jdk, "lib/security/cacerts"), "p12": pkcs, "Fetch.class": filepath.Join(work, "Fetch.class")} {
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(b)
	}
	// Distributions keep the configuration elsewhere.
	mounts := []string{"-q", "-v", jdk + ":/opt/jdk:ro", "--route", "looked.hub.test=" + h.addr}
	if conf, err := filepath.EvalSymlinks(filepath.Join(jdk, "conf/security/java.security")); err == nil && !strings.HasPrefix(conf, jdk) {
		etc := filepath.Dir(filepath.Dir(conf))
		mounts = append(mounts, "-v", etc+":"+etc+":ro")
	}
	files["kit.yaml"] = head + "build: |\n  FROM kitbox.local/base:1\n  COPY jks /opt/java/one/lib/security/cacerts\n  COPY p12 /usr/lib/jvm/two/lib/security/cacerts\n  COPY Fetch.class /opt/\n  USER agent\n  ENTRYPOINT [\"/bin/echo\"]\ncapabilities:\n" + looked
	create(t, "java", append(mounts, write(t, files))...)
	java := func(store string) string {
		o := kitbox(t, "exec", "java", "--", "/opt/jdk/bin/java", "-Djavax.net.ssl.trustStore="+store, "-cp", "/opt", "Fetch")
		return o.Stdout + o.Stderr
	}
	for range 2 { // a second start changes nothing
		for _, store := range []string{"/opt/java/one/lib/security/cacerts", "/usr/lib/jvm/two/lib/security/cacerts"} {
			if got := java(store); got != "status 401\n" {
				t.Errorf("with %s: %s", store, got)
			}
		}
		if got := java("/nowhere"); !strings.Contains(got, "SSLHandshakeException") && !strings.Contains(got, "trustAnchors") {
			t.Errorf("without a store: %s", got)
		}
		ok(t, "restart", "java")
	}
}

// libraries are the shared libraries of a program, by name.
func libraries(t *testing.T, program string) map[string]string {
	t.Helper()
	out, err := exec.Command("ldd", program).Output()
	if err != nil {
		t.Fatal(err)
	}
	libs := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) > 2 && f[1] == "=>" {
			libs[f[0]] = f[2]
		}
	}
	return libs
}

func TestContainersInsideTrustTheBoundary(t *testing.T) {
	crun := brought(t, "crun", "ldd")[0]
	h := newHub(t, "looked.hub.test")
	t.Setenv("KITBOX_UPSTREAM_CA", h.ca)
	files := map[string]string{}
	bring := func(name, from string) {
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(b)
	}
	bring("crun", crun)
	build := "  FROM kitbox.local/base:1\n  USER root\n  COPY crun /usr/bin/\n"
	for name, from := range libraries(t, crun) {
		bring("lib/"+name, from)
	}
	build += "  COPY lib/ /opt/lib/\n  RUN chmod 755 /usr/bin/crun && echo /opt/lib > /etc/ld.so.conf.d/test.conf && ldconfig && mkdir -p /c/usr /c/etc /c/dev /c/proc && for d in bin sbin lib lib64; do ln -s usr/$d /c/$d; done\n"
	spec := `{"ociVersion":"1.0.2","root":{"path":"/c"},"process":{"user":{"uid":0,"gid":0},"cwd":"/","args":["/bin/sh","-c","env; cat /dev/kitbox-authorities.pem | grep -c BEGIN; echo x 2>/dev/null >/dev/kitbox-authorities.pem || echo read-only; curl -sS -o /dev/null -w status:%%{http_code} --max-time 20 https://looked.hub.test/v2/"],
 "env":["PATH=/usr/bin:/bin","PIP_CERT=/mine"%s]},"x-kept":{"n":12345678901234567890},
 "mounts":[{"destination":"/proc","type":"proc","source":"proc"},{"destination":"/dev","type":"tmpfs","source":"tmpfs","options":["mode=755"]},{"destination":"/usr","type":"bind","source":"/usr","options":["rbind","ro"]}],
 "linux":{"namespaces":[{"type":"pid"},{"type":"mount"},{"type":"ipc"}]}}`
	files["config.json"] = fmt.Sprintf(spec, "")
	files["own.json"] = fmt.Sprintf(spec, `,"SSL_CERT_FILE=/none","CURL_CA_BUNDLE=/none"`)
	files["kit.yaml"] = head + "build: |\n" + build + "  COPY config.json /b/\n  COPY config.json /control/\n  COPY own.json /own/config.json\n  USER root\n  ENTRYPOINT [\"/bin/echo\"]\ncapabilities:\n" + looked + "  - type: com.docker.sandbox/privileged@1\n"
	create(t, "nest", "-q", "--allow-privileged", "--route", "looked.hub.test="+h.addr, write(t, files))
	in := func(script string) string {
		t.Helper()
		o := kitbox(t, "exec", "-u", "root", "nest", "--", "sh", "-c", script)
		return o.Stdout + o.Stderr
	}
	in("cp /etc/resolv.conf /etc/passwd /c/etc/; mount -t cgroup2 none /sys/fs/cgroup || mount -t tmpfs none /sys/fs/cgroup") // which runtimes want to see
	if got := in("command -v crun; crun --version | head -1"); !strings.Contains(got, "/usr/local/sbin/crun\ncrun version") {
		t.Fatalf("the runtime's name leads to %s", got)
	}
	got := in("crun --cgroup-manager=disabled run --no-new-keyring --no-pivot -b /b one")
	if !strings.Contains(got, "status:401") || !strings.Contains(got, "\nSSL_CERT_FILE=/dev/kitbox-authorities.pem\n") || !strings.Contains(got, "\nPIP_CERT=/mine\n") || !strings.Contains(got, "\nread-only\n") {
		t.Errorf("a container: %s", got)
	}
	// What a container says itself stays, and a second run adds nothing.
	if got := in("crun --cgroup-manager=disabled run --no-new-keyring --no-pivot -b /own two; crun --cgroup-manager=disabled run --no-new-keyring --no-pivot -b /own two; grep -o kitbox-authorities /own/config.json | wc -l; grep -c 12345678901234567890 /own/config.json"); strings.Contains(got, "status:401") || !strings.Contains(got, "SSL_CERT_FILE=/none") || strings.Count(got, "status:000") != 2 {
		t.Errorf("a container with variables of its own: %s", got)
	}
	// Without what stands in front, the same container does not trust: the control.
	if got := in("/usr/bin/crun --cgroup-manager=disabled run --no-new-keyring --no-pivot -b /control three"); !strings.Contains(got, "status:000") {
		t.Errorf("the control: %s", got)
	}
	// The hook of podman and its kin does the same to what it is given.
	if got := in("grep -q precreate /usr/share/containers/oci/hooks.d/kitbox-authorities.json && </control/config.json /usr/local/libexec/kitbox/oci-runtime precreate | grep -o '\"destination\":\"/dev/kitbox-authorities.pem\"'"); !strings.Contains(got, `"/dev/kitbox-authorities.pem"`) {
		t.Errorf("the hook: %s", got)
	}
	if got := in("ls -l /run/kitbox/authorities; ls /c/dev"); strings.Count(got, ".pem") != 1 {
		t.Errorf("left behind: %s", got)
	}
}
