package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	ggcr "github.com/google/go-containerregistry/pkg/registry"
)

const (
	theUser, thePassword, theToken = "synthetic-user", "synthetic-password", "synthetic-token"
)

// A hub is a registry, its token service and a CDN, at one address of this machine.
type hub struct {
	addr string
	ca   string // file with the certificate of who signs for it

	mu   sync.Mutex
	seen []string // guarded by mu; host, path and authorization of each request
}

// newHub serves TLS for names; certificates are signed by an authority of its own.
func newHub(t *testing.T, names ...string) *hub {
	t.Helper()
	now := time.Now()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	root := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "hub"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, root, root, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: names, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature}
	signed, err := x509.CreateCertificate(rand.Reader, leaf, root, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	h := &hub{ca: filepath.Join(t.TempDir(), "ca.pem")}
	if err := os.WriteFile(h.ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644); err != nil {
		t.Fatal(err)
	}
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{signed}, PrivateKey: key}}})
	if err != nil {
		t.Fatal(err)
	}
	h.addr = ln.Addr().String()
	store := ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0)))
	s := &http.Server{ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		h.seen = append(h.seen, r.Host+r.URL.Path+" "+r.Header.Get("Authorization"))
		h.mu.Unlock()
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		switch {
		case host == "auth.hub.test":
			if u, p, _ := r.BasicAuth(); u != theUser || p != thePassword {
				http.Error(w, "no", http.StatusUnauthorized)
				return
			}
			json.NewEncoder(w).Encode(map[string]any{"token": theToken, "expires_in": 300})
		case host == "cdn.hub.test":
			r.Host = "registry.hub.test"
			store.ServeHTTP(w, r)
		case r.Header.Get("Authorization") != "Bearer "+theToken:
			w.Header().Set("Www-Authenticate", `Bearer realm="https://auth.hub.test/token",service="registry.hub.test"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
		case r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/sha256:"):
			http.Redirect(w, r, "https://cdn.hub.test"+r.URL.Path, http.StatusTemporaryRedirect)
		default:
			store.ServeHTTP(w, r)
		}
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(ln) }()
	t.Cleanup(func() { s.Close(); <-done })
	return h
}

func (h *hub) requests() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.seen, "\n")
}

func TestARegistryLoginIsUsedAndNeverShown(t *testing.T) {
	h := newHub(t, "registry.hub.test", "auth.hub.test", "cdn.hub.test")
	docker := t.TempDir()
	login := base64.StdEncoding.EncodeToString([]byte(theUser + ":" + thePassword))
	if err := os.WriteFile(filepath.Join(docker, "config.json"), []byte(`{"auths":{"registry.hub.test":{"auth":"`+login+`"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DOCKER_CONFIG", docker)
	t.Setenv("KITBOX_UPSTREAM_CA", h.ca)
	auth := "  - type: com.docker.sandbox/docker-auth@1\n    config: {registry: %s}\n"
	network := "  - type: com.docker.sandbox/network-policy@1\n    config: {install: {allow: ['*.hub.test:443']}, runtime: {allow: ['*.hub.test:443']}}\n"
	// Install hooks log in as well.
	byHand := `auth=$(sed -n 's/.*"auth": "\(.*\)".*/\1/p' ~agent/.docker/config.json)
curl -sS -o /dev/null --max-time 10 https://registry.hub.test/v2/
curl -sS --max-time 10 -H "Authorization: Basic $auth" "https://auth.hub.test/token?service=registry.hub.test"`
	hook := fmt.Sprintf("  - type: com.docker.sandbox/lifecycle@1\n    config: {install: [{command: %q}]}\n", "{\n"+byHand+"\n} > /var/installed 2>&1")

	// Without a login: required refuses, optional is left out.
	if o := kitbox(t, "create", "--name", "nologin", "-q", kit(t, fmt.Sprintf(auth, "ghcr.io"))); o.Code != 2 || !strings.Contains(o.Stderr, "docker login ghcr.io") {
		t.Errorf("without a login: %+v", o)
	}
	if o := kitbox(t, "plan", kit(t, strings.Replace(fmt.Sprintf(auth, "ghcr.io"), "docker-auth@1\n", "docker-auth@1\n    optional: true\n", 1))); o.Code != 0 || !strings.Contains(o.Stdout+o.Stderr, "skipped") {
		t.Errorf("optional without a login: %+v", o)
	}

	args := []string{"-q"}
	for _, name := range []string{"registry", "auth", "cdn"} {
		args = append(args, "--route", name+".hub.test="+h.addr)
	}
	ok(t, "build", "-q", "-t", "pushed:1", piece(t))
	t.Cleanup(func() { kitbox(t, "image", "rm", "pushed:1") })
	create(t, "loggedin", append(args, kit(t, network+fmt.Sprintf(auth, "registry.hub.test")+registered+hook))...)

	// A real client, with the configuration that it finds: kitbox itself. It
	// pushes and pulls a Kit, whose layers come from a CDN.
	program, err := os.ReadFile(filepath.Join(bin, "kit-engine"))
	if err != nil {
		t.Fatal(err)
	}
	if o := kitboxIn(t, program, "exec", "-u", "root", "-i", "loggedin", "--", "sh", "-c", "cat > /usr/local/bin/kitbox && chmod 755 /usr/local/bin/kitbox && mkdir -p /root/.docker && cp ~agent/.docker/config.json /root/.docker/"); o.Code != 0 {
		t.Fatalf("%+v", o)
	}
	in := func(script string) string {
		t.Helper()
		o := kitbox(t, "exec", "-u", "root", "loggedin", "--", "sh", "-c", "export KITBOX_HOME=/tmp/kb; "+script)
		return strings.TrimSpace(o.Stdout + o.Stderr)
	}
	if got := in("cat /var/installed"); !strings.Contains(got, "kitbox-token-") {
		t.Errorf("an install hook that logs in: %s", got)
	}
	ok(t, "tag", "pushed:1", "kitbox.local/kits/pushed:1")
	t.Cleanup(func() { kitbox(t, "image", "rm", "kitbox.local/kits/pushed:1") })
	if got := in("kitbox pull $KIT_REGISTRY/kits/pushed:1 && kitbox push $KIT_REGISTRY/kits/pushed:1 as registry.hub.test/team/piece:1 && rm -r /tmp/kb && kitbox pull registry.hub.test/team/piece:1 && echo finished"); !strings.Contains(got, "\nfinished") {
		t.Fatalf("push and pull: %s\n%s", got, h.requests())
	}
	// Nothing inside knows the login or a token.
	if got := in("cat ~agent/.docker/config.json; env; stat -c %U:%a ~agent/.docker/config.json"); !strings.Contains(got, "registry.hub.test") || !strings.Contains(got, "agent:600") || strings.Contains(got, "synthetic") || strings.Contains(got, login) {
		t.Errorf("inside: %s", got)
	}
	curl := in(`auth=$(sed -n 's/.*"auth": "\(.*\)".*/\1/p' ~agent/.docker/config.json)
curl -sS -D- --max-time 10 -H "Authorization: Basic $auth" "https://auth.hub.test/token?service=registry.hub.test"
curl -sS --max-time 10 -H "Authorization: Basic $auth" https://cdn.hub.test/v2/ https://registry.hub.test/v2/ https://auth.hub.test/other`)
	if !strings.Contains(curl, "kitbox-token-") || strings.Contains(curl, "synthetic") || strings.Contains(curl, login) {
		t.Errorf("by hand: %s", curl)
	}
	// Whom the login was shown to, and the token.
	seen := h.requests()
	if !strings.Contains(seen, "auth.hub.test/token Basic "+login) || !strings.Contains(seen, "Bearer "+theToken) {
		t.Errorf("requests:\n%s", seen)
	}
	for line := range strings.Lines(seen) {
		if strings.Contains(line, login) && !strings.HasPrefix(line, "auth.hub.test/token ") || strings.Contains(line, theToken) && !strings.HasPrefix(line, "registry.hub.test/v2/") {
			t.Errorf("shown to the wrong one: %s", line)
		}
	}
	log := ok(t, "policy", "log", "loggedin", "--json")
	if !strings.Contains(log, `"credential": "docker-auth registry.hub.test"`) || strings.Contains(log, "synthetic") {
		t.Errorf("log:\n%s", log)
	}
	for _, show := range [][]string{{"inspect", "loggedin"}, {"policy", "ls", "loggedin"}} {
		if got := ok(t, show...); strings.Contains(got, thePassword) || strings.Contains(got, login) {
			t.Errorf("%v shows the login", show)
		}
	}
	// The next keeper knows the token service, for a client that goes there at once.
	killKeeper(t, "loggedin")
	asked := len(h.requests())
	if got := in(strings.Replace(byHand, "curl -sS -o /dev/null --max-time 10 https://registry.hub.test/v2/\n", "", 1)); !strings.Contains(got, "kitbox-token-") || !strings.Contains(h.requests()[asked:], "auth.hub.test/token Basic "+login) {
		t.Errorf("after the keeper was killed: %s", got)
	}
	// The network policy decides first: a name that is not allowed stays so.
	ok(t, "policy", "deny", "--sandbox", "loggedin", "auth.hub.test")
	if got := in("rm -rf /tmp/kb; kitbox pull registry.hub.test/team/piece:1"); strings.Contains(got, "finished") || !strings.Contains(got, "auth.hub.test") {
		t.Errorf("a denied token service: %s", got)
	}
}

// killKeeper ends the keeper of a sandbox as a crash does.
func killKeeper(t *testing.T, name string) {
	t.Helper()
	var status struct {
		KeeperPID int `json:"keeperPid"`
	}
	if err := json.Unmarshal([]byte(ok(t, "status", "--json", name)), &status); err != nil || status.KeeperPID < 2 {
		t.Fatalf("no keeper: %+v, %v", status, err)
	}
	if err := syscall.Kill(status.KeeperPID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}
