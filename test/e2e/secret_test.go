package e2e

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const creds = "./test/e2e/testdata/kits/creds"

// A service is an HTTPS server of the host that writes down what it is sent.
type service struct {
	addr string

	mu   sync.Mutex
	seen []http.Header // guarded by mu
	path []string      // guarded by mu
	body []string      // guarded by mu

	answer func(w http.ResponseWriter, r *http.Request, body string) // nil: says that it served
}

// secure starts a service that answers for names below cred.test and others,
// with a certificate of an authority that keepers started by this test accept.
func secure(t *testing.T, names ...string) *service {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	root := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of a test"}, IsCA: true, BasicConstraintsValid: true,
		NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign}
	rootDER, err := x509.CreateCertificate(rand.Reader, root, root, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: names, NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, leaf, root, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "roots.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: rootDER}), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KITBOX_UPSTREAM_CA", file)
	s := new(service)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.seen, s.path, s.body = append(s.seen, r.Header.Clone()), append(s.path, r.Host+r.URL.Path), append(s.body, string(body))
		s.mu.Unlock()
		if s.answer != nil {
			s.answer(w, r, string(body))
			return
		}
		if r.URL.Path == "/echo" {
			w.Header().Set("X-Echo", r.Header.Get("Authorization"))
			_ = r.Header.Write(w)
			return
		}
		fmt.Fprintf(w, "served %s\n", r.Host)
	}))
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	s.addr = srv.Listener.Addr().String()
	return s
}

// last returns the header of the last request for a host and path.
func (s *service) last(t *testing.T, path string) http.Header {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.path) - 1; i >= 0; i-- {
		if s.path[i] == path {
			return s.seen[i]
		}
	}
	t.Fatalf("nothing asked for %s; seen are %q", path, s.path)
	return nil
}

// store keeps a secret, and takes it back with the test.
func store(t *testing.T, name, value string, args ...string) {
	t.Helper()
	o := kitboxIn(t, []byte(value+"\n"), append([]string{"secret", "set", name}, args...)...)
	if o.Code != 0 || o.Stdout != "" || o.Stderr != "" {
		t.Fatalf("secret set %s: %+v", name, o)
	}
	args = slices.DeleteFunc(slices.Clone(args), func(a string) bool { return a == "--oauth" })
	t.Cleanup(func() {
		// One for a sandbox goes with it.
		if o := kitbox(t, append([]string{"secret", "rm", name}, args...)...); o.Code != 0 && !strings.Contains(o.Stderr, "not found") {
			t.Errorf("secret rm %s: %+v", name, o)
		}
	})
}

// values are secrets as a test stores them; none is a part of another.
func values() (main, second, setup, silent string) {
	tag := fmt.Sprint(time.Now().UnixNano())
	return "REAL-main-" + tag, "REAL-second-" + tag, "REAL-setup-" + tag, "REAL-silent-" + tag
}

func basic(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

func TestSecretsStayOutsideAndReachTheirServices(t *testing.T) {
	main, second, setup, silent := values()
	s := secure(t, "*.cred.test", "elsewhere.test")
	var routes []string
	for _, n := range []string{"api", "git", "setup", "silent", "other", "absent"} {
		routes = append(routes, "--route", n+".cred.test="+s.addr)
	}
	routes = append(routes, "--route", "elsewhere.test="+s.addr)

	// Without the required secret nothing is made, and the next step is named.
	o := kitbox(t, append([]string{"create", "--name", "creds", creds}, routes...)...)
	if o.Code != 2 || !strings.Contains(o.Stderr, "'kitbox secret set cred-main'") {
		t.Fatalf("without its secret: %+v", o)
	}
	store(t, "cred-main", main)
	store(t, "cred-second", second)
	store(t, "cred-setup", setup)
	store(t, "cred-silent", silent)
	create(t, "creds", append([]string{creds}, routes...)...)

	env := func(text, name string) string {
		for _, l := range strings.Split(text, "\n") {
			if v, ok := strings.CutPrefix(l, name+"="); ok {
				return v
			}
		}
		return ""
	}
	read := func(file string) string { return ok(t, "exec", "-u", "0", "creds", "--", "cat", file) }

	// The sentinels are there in their phases and nowhere else.
	installed, startup, now, launched := read("/install-env.txt"), read("/home/agent/startup-env.txt"), ok(t, "exec", "creds", "--", "env"), ok(t, "attach", "creds")
	mainIs, setupIs := env(installed, "MAIN_TOKEN"), env(installed, "SETUP_TOKEN")
	if mainIs == "" || setupIs == "" || mainIs == main || setupIs == setup {
		t.Fatalf("while installing:\n%s", installed)
	}
	for when, text := range map[string]string{"startup": startup, "exec": now, "workload": launched} {
		if env(text, "MAIN_TOKEN") != mainIs || env(text, "SECOND_TOKEN") == "" {
			t.Errorf("%s lacks a sentinel:\n%s", when, text)
		}
		if strings.Contains(text, "SETUP_TOKEN") {
			t.Errorf("%s has the sentinel of the install phase:\n%s", when, text)
		}
	}
	if strings.Contains(installed, "SECOND_TOKEN") {
		t.Errorf("the install hook has a sentinel of the runtime phase:\n%s", installed)
	}
	for _, text := range []string{installed, startup, now} {
		if strings.Contains(text, "cred-silent") || strings.Contains(text, "ABSENT_TOKEN") {
			t.Errorf("a credential without a name, or one that is not bound, left a trace:\n%s", text)
		}
	}
	secondIs := env(now, "SECOND_TOKEN")

	// The install hook's requests carried the secrets of its phase.
	if got := s.last(t, "api.cred.test/install").Get("Authorization"); got != "Bearer "+main {
		t.Errorf("while installing, the service got %q", got)
	}
	if got := s.last(t, "setup.cred.test/install").Get("X-Setup"); got != setup {
		t.Errorf("while installing, the service got %q", got)
	}

	curl := func(args string) outcome { return sh(t, "creds", "", "curl -sS --max-time 10 "+args) }
	must := func(args, host string) {
		t.Helper()
		if o := curl(args); o.Code != 0 || o.Stdout != "served "+host+"\n" {
			t.Fatalf("curl %s: %+v", args, o)
		}
	}
	for _, c := range []struct{ args, host, header, want string }{
		{`-H "Authorization: Bearer $MAIN_TOKEN" https://api.cred.test/a`, "api.cred.test", "Authorization", "Bearer " + main},
		{`-H "Authorization: Bearer $SECOND_TOKEN" https://api.cred.test/b`, "api.cred.test", "Authorization", "token " + second},
		{`https://api.cred.test/c`, "api.cred.test", "Authorization", ""},                              // two could be meant
		{`-H "Authorization: mine" https://api.cred.test/d`, "api.cred.test", "Authorization", "mine"}, // the client's own
		{`-u "me:$MAIN_TOKEN" https://api.cred.test/e`, "api.cred.test", "Authorization", basic("me", main)},
		{`-u "me:$MAIN_TOKEN" https://git.cred.test/a`, "git.cred.test", "Authorization", basic("x-access-token", main)},
		{`https://git.cred.test/b`, "git.cred.test", "Authorization", basic("x-access-token", main)},
		{`https://silent.cred.test/a`, "silent.cred.test", "X-Silent", silent},
		{`--http2 -H "Authorization: Bearer $MAIN_TOKEN" https://api.cred.test/f`, "api.cred.test", "Authorization", "Bearer " + main},

		// Not for these: another header, another host, one whose phase is over.
		{`-H "X-Other: $MAIN_TOKEN" -H "Authorization: x" https://api.cred.test/g`, "api.cred.test", "X-Other", mainIs},
		{`-H "Authorization: Bearer $MAIN_TOKEN" https://other.cred.test/a`, "other.cred.test", "Authorization", "Bearer " + mainIs},
		{`-H "Authorization: Bearer $MAIN_TOKEN" https://elsewhere.test/a`, "elsewhere.test", "Authorization", "Bearer " + mainIs},
		{`-H "X-Setup: ` + setupIs + `" https://setup.cred.test/a`, "setup.cred.test", "X-Setup", setupIs},
	} {
		at := c.args[strings.LastIndexByte(c.args, '/')+1:]
		insecure := "" // hosts without a credential show their own certificate, of the test's authority
		if c.host == "other.cred.test" || c.host == "elsewhere.test" || c.host == "setup.cred.test" {
			insecure = "-k "
		}
		must(insecure+c.args, c.host)
		if got := s.last(t, c.host+"/"+at).Get(c.header); got != c.want {
			t.Errorf("curl %s: the service got %q, want %q", c.args, got, c.want)
		}
	}

	// A service that repeats what it was sent gives nothing away by that.
	for _, args := range []string{`-H "Authorization: Bearer $MAIN_TOKEN" https://api.cred.test/echo`, `-u "x:$MAIN_TOKEN" https://api.cred.test/echo`, `--compressed https://git.cred.test/echo`} {
		o := curl("-i " + args)
		payload := strings.TrimPrefix(basic("x-access-token", main), "Basic ")
		if o.Code != 0 || strings.Contains(o.Stdout, main) || strings.Contains(o.Stdout, payload[:20]) || strings.Count(o.Stdout, "*****") < 2 {
			t.Errorf("curl %s: %+v", args, o)
		}
	}

	// A name that leads to the host of a credential is not that host.
	for _, args := range []string{
		`-k --connect-to api.cred.test:443:elsewhere.test:443 -H "Authorization: Bearer $MAIN_TOKEN" https://api.cred.test/fronted`, // SNI of another name
		`-k --connect-to elsewhere.test:443:api.cred.test:443 -H "Authorization: Bearer $MAIN_TOKEN" https://elsewhere.test/fronted`,
		`-H "Host: elsewhere.test" -H "Authorization: Bearer $MAIN_TOKEN" https://api.cred.test/fronted`, // another authority
	} {
		if o := curl("-f " + args); o.Code == 0 {
			t.Errorf("curl %s: %+v", args, o)
		}
	}
	// Without TLS the sentinel stays.
	if o := curl(`-H "Authorization: Bearer $MAIN_TOKEN" http://api.cred.test:443/plain`); strings.Contains(o.Stdout, "served") {
		t.Errorf("plain HTTP reached a server of TLS: %+v", o)
	}
	s.mu.Lock()
	for i, p := range s.path {
		if strings.Contains(p, "fronted") {
			t.Errorf("%s arrived with %q", p, s.seen[i])
		}
	}
	s.mu.Unlock()

	// The log says which requests carried what, and never what it is.
	log := ok(t, "policy", "log", "creds", "--json")
	var events []struct{ Host, Path, Credential, Reason string }
	if err := json.Unmarshal([]byte(log), &events); err != nil {
		t.Fatal(err)
	}
	carried := map[string]string{}
	for _, e := range events {
		if e.Path != "" {
			carried[e.Host+e.Path] = e.Credential
		}
	}
	for at, want := range map[string]string{"api.cred.test/a": "cred-main", "api.cred.test/b": "cred-second", "api.cred.test/d": "", "silent.cred.test/a": "cred-silent", "api.cred.test/install": "cred-main"} {
		if got, known := carried[at]; !known || got != want {
			t.Errorf("the log says of %s %q, want %q", at, got, want)
		}
	}

	if out := ok(t, "policy", "check", "creds", "api.cred.test"); !strings.Contains(out, "the credential cred-main, cred-second") {
		t.Errorf("policy check: %s", out)
	}
	if out := ok(t, "plan", "--json", creds); strings.Contains(out, main) || !strings.Contains(out, `"service": "cred-main"`) {
		t.Errorf("plan: %s", out)
	}

	// Nothing of any secret is inside, nor on the host outside the vault.
	all := []string{main, second, setup, silent}
	leaksInside(t, "creds", all...)
	leaksOutside(t, all...)

	// A skipped one says what would bind it.
	if out := ok(t, "status", "creds"); !strings.Contains(out, "cred-absent") {
		t.Errorf("status does not say that a credential was left out:\n%s", out)
	}

	// What is taken back is not presented any more; what is changed, is changed.
	ok(t, "secret", "rm", "cred-second")
	must(`-H "Authorization: Bearer $SECOND_TOKEN" https://api.cred.test/revoked`, "api.cred.test")
	if got := s.last(t, "api.cred.test/revoked").Get("Authorization"); got != "Bearer "+secondIs {
		t.Errorf("after secret rm the service got %q", got)
	}
	store(t, "cred-main", main+"-2")
	must(`-H "Authorization: Bearer $MAIN_TOKEN" https://api.cred.test/changed`, "api.cred.test")
	if got := s.last(t, "api.cred.test/changed").Get("Authorization"); got != "Bearer "+main+"-2" {
		t.Errorf("after secret set the service got %q", got)
	}
	// One for the sandbox wins, at once.
	store(t, "cred-main", main+"-3", "--sandbox", "creds")
	must(`-H "Authorization: Bearer $MAIN_TOKEN" https://api.cred.test/own`, "api.cred.test")
	if got := s.last(t, "api.cred.test/own").Get("Authorization"); got != "Bearer "+main+"-3" {
		t.Errorf("with a secret of its own the service got %q", got)
	}

	// A keeper that died, and a restart, change nothing of it.
	if err := keeperPID(t, "creds").Kill(); err != nil {
		t.Fatal(err)
	}
	must(`-H "Authorization: Bearer $MAIN_TOKEN" https://api.cred.test/again`, "api.cred.test")
	ok(t, "stop", "creds")
	ok(t, "start", "creds")
	if env(ok(t, "exec", "creds", "--", "env"), "MAIN_TOKEN") != mainIs {
		t.Error("a restart changed a sentinel")
	}
	must(`-H "Authorization: Bearer $MAIN_TOKEN" https://api.cred.test/restarted`, "api.cred.test")
	for _, at := range []string{"again", "restarted"} {
		if got := s.last(t, "api.cred.test/"+at).Get("Authorization"); got != "Bearer "+main+"-3" {
			t.Errorf("%s: the service got %q", at, got)
		}
	}
	if got := read("/home/agent/startup-env.txt"); strings.Contains(got, "SETUP_TOKEN") {
		t.Errorf("after a restart:\n%s", got)
	}

	// The sandbox's own secret goes with it.
	ok(t, "rm", "creds")
	if out := ok(t, "secret", "ls"); strings.Contains(out, "sandbox creds") {
		t.Errorf("a secret of a removed sandbox is kept:\n%s", out)
	}
}

// leaksInside looks for values as root in everything that the sandbox can read,
// and sees that the search finds a text that is there.
func leaksInside(t *testing.T, name string, values ...string) {
	t.Helper()
	const planted = "planted-for-the-search"
	ok(t, "exec", "-u", "0", name, "--", "sh", "-c", "echo planted-''for-the-search > /var/tmp/planted")
	// Patterns are put together inside, so that the search does not find itself.
	find := "v=''\n"
	for _, v := range append(values, planted) {
		find += fmt.Sprintf("v=\"$v%s\"'%s\n'\n", v[:8], v[8:])
	}
	find += `v=$(printf %s "$v" | sed '/^$/d')
for p in /proc/[0-9]*; do
  [ "$p" = "/proc/$$" ] || for f in environ cmdline comm status maps mountinfo; do tr '\0' '\n' < $p/$f 2>/dev/null | grep -q -F -- "$v" && echo "$p/$f"; done
done
for m in / $(awk '{print $2}' /proc/mounts); do
  case $m in /proc*|/sys*|/dev/*) ;; *) [ -d $m ] && find $m -xdev -type f -size -20M -print0 2>/dev/null | xargs -0 grep -l -D skip -F -- "$v" 2>/dev/null;; esac
done; true`
	o := sh(t, name, "0", find)
	found := map[string]bool{}
	for _, f := range strings.Fields(o.Stdout) {
		found[f] = true
	}
	if !found["/var/tmp/planted"] {
		t.Errorf("the search finds nothing: %+v", o)
	}
	delete(found, "/var/tmp/planted")
	if o.Code != 0 || len(found) > 0 {
		t.Errorf("a secret is inside the sandbox: %v %s", found, o.Stderr)
	}
	ok(t, "exec", "-u", "0", name, "--", "rm", "/var/tmp/planted")
}

// leaksOutside looks for values in every file of the home but the sealed ones,
// which it must not find there either.
func leaksOutside(t *testing.T, values ...string) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(home, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a socket or a temporary file that has gone
		}
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains([]string{"images", "layers", "builder"}, d.Name()) {
			return fs.SkipDir // made before there were secrets
		}
		if !d.Type().IsRegular() {
			return nil
		}
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		files++
		for _, v := range values {
			if bytes.Contains(b, []byte(v)) || bytes.Contains(b, []byte(base64.RawStdEncoding.EncodeToString([]byte(v))[:16])) {
				t.Errorf("%s holds a secret", path)
			}
		}
		return nil
	})
	if err != nil || files < 5 {
		t.Errorf("looked at %d files: %v", files, err)
	}
}

func TestSecretCommand(t *testing.T) {
	main, _, _, _ := values()
	for _, c := range []struct {
		args  []string
		stdin string
		code  int
		says  string
	}{
		{[]string{"set", "x-svc", main}, "", 1, "no secret"},
		{[]string{"set", "X_SVC"}, main, 1, "lower case"},
		{[]string{"set", "x-svc"}, "", 1, "empty"},
		{[]string{"set", "x-svc"}, "a\nb\n", 1, "several lines"},
		{[]string{"set", "x-svc", "--env", "NO_SUCH_VARIABLE"}, "", 1, "NO_SUCH_VARIABLE"},
		{[]string{"set", "x-svc", "--file", "/nonexistent"}, "", 1, "/nonexistent"},
		{[]string{"set", "x-svc", "--file", "f", "--env", "E"}, "", 1, "env"},
		{[]string{"set", "x-svc", "--command", "echo t"}, "", 3, "--approve"},
		{[]string{"set", "x-svc", "--command", "echo said >&2; exit 4", "--approve"}, "", 1, "exit status 4"},
		{[]string{"rm", "x-svc"}, "", 1, "not found"},
		{[]string{"import", "-", "NAME"}, "", 1, "NAME=SERVICE"},
		{[]string{"import", "-", "A=x-svc", "B=y-svc"}, "A=" + main + "\n", 1, "the file has no B"},
	} {
		o := kitboxIn(t, []byte(c.stdin), append([]string{"secret"}, c.args...)...)
		if o.Code != c.code || !strings.Contains(o.Stderr, c.says) || strings.Contains(o.Stdout+o.Stderr, main) {
			t.Errorf("secret %q: %+v, want status %d and %q", c.args, o, c.code, c.says)
		}
	}
	if out := ok(t, "secret", "ls", "--json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("failures kept something: %s", out)
	}

	t.Setenv("MY_TOKEN", main)
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, []byte(main), 0o600); err != nil {
		t.Fatal(err)
	}
	ok(t, "secret", "set", "x-env", "--env", "MY_TOKEN")
	ok(t, "secret", "set", "x-file", "--file", file)
	ok(t, "secret", "set", "x-cmd", "--command", "echo "+main, "--approve", "--kit", creds)
	if o := kitboxIn(t, []byte("export A='"+main+"' # c\nB=2\n"), "secret", "import", "--sandbox", "not-yet", "-", "A=x-imported"); o.Code != 0 {
		t.Errorf("%+v", o)
	}
	out := ok(t, "secret", "ls") + ok(t, "secret", "ls", "--json")
	for _, want := range []string{"x-env", "env MY_TOKEN", "x-file", "x-cmd", "command echo", "x-imported", "sandbox not-yet", `"scope": "kit"`, "import"} {
		if !strings.Contains(out, want) {
			t.Errorf("ls lacks %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, main) {
		t.Errorf("ls shows a secret:\n%s", out)
	}
	leaksOutside(t, main)
	ok(t, "secret", "rm", "x-env", "x-file")
	ok(t, "secret", "rm", "--kit", creds, "x-cmd")
	ok(t, "secret", "rm", "--sandbox", "not-yet", "x-imported")
	if out := ok(t, "secret", "ls", "--json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("left: %s", out)
	}
}

// TestAHelperOfTheHostPresentsItsToken has the secret of one Kit printed by a
// command.
func TestAHelperOfTheHostPresentsItsToken(t *testing.T) {
	main, _, _, _ := values()
	s := secure(t, "*.cred.test")
	dir := t.TempDir()
	script := filepath.Join(dir, "token")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho run >> "+dir+"/runs\necho '{\"token\":\""+main+"\",\"expiresIn\":3600}'\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	ok(t, "secret", "set", "cred-main", "--kit", creds, "--command", script, "--approve")
	t.Cleanup(func() { kitbox(t, "secret", "rm", "--kit", creds, "cred-main") })
	create(t, "helper", creds, "--route", "api.cred.test="+s.addr)
	for range 3 {
		if o := sh(t, "helper", "", `curl -sS --max-time 10 -H "Authorization: Bearer $MAIN_TOKEN" https://api.cred.test/h`); o.Stdout != "served api.cred.test\n" {
			t.Fatalf("%+v", o)
		}
	}
	if got := s.last(t, "api.cred.test/h").Get("Authorization"); got != "Bearer "+main {
		t.Errorf("the service got %q", got)
	}
	runs, err := os.ReadFile(filepath.Join(dir, "runs"))
	if err != nil || strings.Count(string(runs), "run") != 2 {
		t.Errorf("the helper ran %q, %v; want once when it was set and once for four requests", runs, err)
	}
	leaksInside(t, "helper", main)
}
