package escape

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Addresses of the outside. Every address answers; these have a part.
const (
	publicAddr = "93.184.216.34" // behind the names that are allowed
	public6    = "2606:2800:220::1"
	clAddr     = "93.184.216.40" // of clName
	teAddr     = "93.184.216.41" // of teName
	deniedAddr = "93.184.216.99" // of deniedName
	uplink     = "192.0.2.10"    // the host's own
	loopPort   = 7777            // a service on the host's loopback
	udpPort    = 9999            // where datagrams are recorded, on every address
)

// An arrival is a mark that came to where it can be seen.
type arrival struct{ mark, where string }

// outside is what is on the other side of the boundaries.
type outside struct {
	abstract string
	segment  int
	roots    string // file with who signs its certificates
	secret   string // that the host keeps for its sandboxes

	certificate tls.Certificate

	mu   sync.Mutex
	seen []arrival     // guarded by mu
	more chan struct{} // closed and replaced when one is added; guarded by mu
}

var markPattern = regexp.MustCompile(`(attack|control|still)-[a-z0-9-]+-x`)

// record notes the marks in what came.
func (o *outside) record(where string, what []byte) {
	for _, m := range markPattern.FindAll(bytes.ToLower(what), -1) {
		o.mu.Lock()
		if a := (arrival{string(m), where}); !slices.Contains(o.seen, a) {
			o.seen = append(o.seen, a)
		}
		close(o.more)
		o.more = make(chan struct{})
		o.mu.Unlock()
	}
}

func (o *outside) list() []arrival {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.seen)
}

// wait returns whether ok became true in time.
func (o *outside) wait(ok func([]arrival) bool, most time.Duration) bool {
	late := time.After(most)
	for {
		o.mu.Lock()
		done, more := ok(o.seen), o.more
		o.mu.Unlock()
		if done {
			return true
		}
		select {
		case <-more:
		case <-late:
			return false
		}
	}
}

// settle returns when nothing has arrived for a while.
func (o *outside) settle(quiet time.Duration) {
	for {
		n := len(o.list())
		if !o.wait(func(seen []arrival) bool { return len(seen) > n }, quiet) {
			return
		}
	}
}

// newOutside turns the namespace of this process into an internet.
func newOutside(t *testing.T) *outside {
	t.Helper()
	dir, err := os.MkdirTemp("", "kitbox-outside-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	o := &outside{secret: "secret" + rand.Text(), roots: filepath.Join(dir, "roots.pem"), more: make(chan struct{}), abstract: "@kitbox-escape-canary"}
	everyAddress(t)
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"/etc/resolv.conf": "nameserver 127.0.0.1\n", "/etc/hosts": "127.0.0.1 localhost\n::1 localhost\n"}
	for name, line := range map[string]string{
		"/etc/passwd": fmt.Sprintf("%s:x:%d:%d::/:/bin/sh\n", userName, userID, userID), "/etc/group": fmt.Sprintf("%s:x:%d:\n", userName, userID),
		"/etc/subuid": userName + ":700000:65536\n", "/etc/subgid": userName + ":700000:65536\n",
	} {
		// Where there is none, nothing can be mounted over it, and users have
		// no sandboxes.
		if old, err := os.ReadFile(name); err == nil {
			files[name] = string(old) + line
		}
	}
	for name, content := range files {
		file := filepath.Join(dir, filepath.Base(name))
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount(file, name, "", unix.MS_BIND, ""); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		t.Cleanup(func() { unix.Unmount(name, unix.MNT_DETACH) })
	}
	o.certificate = authority(t, o.roots)
	o.resolver(t)
	o.web(t)
	o.victims(t)
	o.proxy(t)
	o.datagrams(t)
	o.others(t)
	return o
}

// everyAddress makes every address of both families one of this namespace's
// loopback, without giving it to an interface.
func everyAddress(t *testing.T) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	// What frames of one's own say is not held against them out here.
	for _, name := range []string{"accept_local", "route_localnet", "accept_source_route"} {
		for _, i := range []string{"all", "lo"} {
			if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+i+"/"+name, []byte("1"), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	own, err := netlink.ParseAddr(uplink + "/24")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrAdd(lo, own); err != nil {
		t.Fatal(err)
	}
	for _, all := range []string{"0.0.0.0/0", "::/0"} {
		_, dst, _ := net.ParseCIDR(all)
		r := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: dst, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST}
		if err := netlink.RouteAdd(r); err != nil {
			t.Fatalf("route for %s: %v", all, err)
		}
	}
}

// shared lets a listener on one address stand beside one on all.
var shared = net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
	var err error
	if e := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) }); e != nil {
		return e
	}
	return err
}}

func listen(t *testing.T, addr string) net.Listener {
	t.Helper()
	l, err := shared.Listen(context.Background(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// answers are what the host's resolver says of names below lie.test: the
// addresses that a name must not lead to.
var answers = map[string]string{
	"loop": "127.0.0.1", "loop6": "::1", "zero": "0.0.0.0", "zero6": "::", "own": uplink, "meta": "169.254.169.254",
	"ten": "10.0.0.1", "cgnat": "100.64.0.1", "ula": "fd00:ec2::254", "mapped": "::ffff:127.0.0.1", "nat64": "64:ff9b::7f00:1",
	"linklocal": "fe80::1", "multicast": "224.0.0.1", "broadcast": "255.255.255.255", "synthetic": "198.18.0.1", "sixtofour": "2002:7f00:1::1",
}

// resolver answers on port 53 of every address.
func (o *outside) resolver(t *testing.T) {
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		r := new(dns.Msg)
		r.SetReply(q)
		name := q.Question[0].Name
		o.record("in a question to the resolver "+w.LocalAddr().String(), []byte(name))
		for _, a := range o.lookup(name) {
			h := dns.RR_Header{Name: name, Class: dns.ClassINET, Ttl: 0}
			if v4 := a.To4(); v4 != nil && len(a) == 4 {
				h.Rrtype = dns.TypeA
				r.Answer = append(r.Answer, &dns.A{Hdr: h, A: v4})
			} else {
				h.Rrtype = dns.TypeAAAA
				r.Answer = append(r.Answer, &dns.AAAA{Hdr: h, AAAA: a})
			}
		}
		r.Answer = slices.DeleteFunc(r.Answer, func(x dns.RR) bool { return x.Header().Rrtype != q.Question[0].Qtype })
		_ = w.WriteMsg(r)
	})
	for _, network := range []string{"udp", "tcp"} {
		up := make(chan struct{})
		s := &dns.Server{Addr: ":53", Net: network, Handler: handler, NotifyStartedFunc: func() { close(up) }}
		failed := make(chan error, 1)
		go func() { failed <- s.ListenAndServe() }()
		select {
		case <-up:
		case err := <-failed:
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Shutdown() })
	}
}

func (o *outside) lookup(name string) []net.IP {
	ip4 := func(s string) net.IP { return net.ParseIP(s).To4() }
	label := name[:max(0, bytes.IndexByte([]byte(name), '.'))]
	switch {
	case name == clName+".":
		return []net.IP{ip4(clAddr)}
	case name == teName+".":
		return []net.IP{ip4(teAddr)}
	case name == frontName+"." || name == twinName+".":
		return []net.IP{ip4(frontAddr)}
	case name == deniedName+".":
		return []net.IP{ip4(deniedAddr)}
	case name == rebindName+".":
		o.mu.Lock()
		defer o.mu.Unlock()
		// It changes once it has been reached.
		if slices.ContainsFunc(o.seen, func(a arrival) bool { return a.mark == "control-rebinding-x" }) {
			return []net.IP{ip4("127.0.0.1")}
		}
		return []net.IP{ip4(publicAddr)}
	case answers[label] != "" && name == label+".lie.test.":
		a := net.ParseIP(answers[label])
		if label != "mapped" && a.To4() != nil {
			a = a.To4()
		}
		return []net.IP{a}
	}
	return []net.IP{ip4(publicAddr), net.ParseIP(public6)}
}

// web serves HTTP and HTTPS on the usual ports of every address, and on one of
// loopback.
func (o *outside) web(t *testing.T) {
	t.Helper()
	s := &http.Server{
		ErrorLog: log.New(io.Discard, "", 0),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			where := "at the web server as " + r.Method + " " + r.Host
			o.record(where, []byte(r.RequestURI+" "+r.Host+" "+fmt.Sprint(r.Header)))
			body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
			o.proof(r, string(body))
			if o.issue(w, r, string(body)) {
				return
			}
			if r.URL.Path == "/ok/redirect" {
				to := "http://" + deniedName + "/"
				if r.URL.Query().Get("to") == "open" {
					to = "https://" + openName + "/"
				}
				http.Redirect(w, r, to, http.StatusFound)
				return
			}
			if how, ok := strings.CutPrefix(r.URL.Path, "/ok/repeat/"); ok {
				repeat(w, r, how, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
				return
			}
			if r.Method == http.MethodTrace {
				fmt.Fprintf(w, "%v\n", r.Header)
				return
			}
			fmt.Fprintf(w, "served %s %s at %v\n", r.Method, r.Host, r.Context().Value(http.LocalAddrContextKey))
		}),
		TLSConfig: &tls.Config{NextProtos: []string{"h2", "http/1.1"}, GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			o.record("as a TLS server name", []byte(h.ServerName))
			return &tls.Config{Certificates: []tls.Certificate{o.certificate}, NextProtos: []string{"h2", "http/1.1"}}, nil
		}},
	}
	// Names that are encrypted are read before all else.
	s.TLSConfig.EncryptedClientHelloKeys = []tls.EncryptedClientHelloKey{{Config: concealConfig(boundName), PrivateKey: concealKey.Bytes()}}
	for _, addr := range []string{":80", ":8080", fmt.Sprintf("127.0.0.1:%d", loopPort), fmt.Sprintf("[::1]:%d", loopPort), fmt.Sprintf("127.0.0.1:%d", grantedUDP)} {
		l := listen(t, addr)
		go func() { _ = s.Serve(l) }()
	}
	for _, addr := range []string{":443", ":853"} {
		l := listen(t, addr)
		go func() { _ = s.ServeTLS(l, "", "") }()
	}
	t.Cleanup(func() { s.Close() })
}

// repeat answers with what a request was given, and proves that it was given it.
func repeat(w http.ResponseWriter, r *http.Request, how, given string) {
	h := w.Header()
	h.Set("X-Proof", proven(given))
	switch how {
	case "compressed":
		// Only if the client takes it: what compresses all the same is beyond
		// what a boundary can look for.
		if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			h.Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			defer z.Close()
			io.WriteString(z, given)
			return
		}
		io.WriteString(w, given)
		return
	case "body":
		h.Set("Content-Length", strconv.Itoa(len(given)+4))
		io.WriteString(w, "it:\n"+given)
		return
	case "halves":
		io.WriteString(w, strings.Repeat("x", 32<<10-5)+given[:3])
		http.NewResponseController(w).Flush()
		io.WriteString(w, given[3:10])
		http.NewResponseController(w).Flush()
		io.WriteString(w, given[10:]+given)
		return
	case "hints":
		h.Set("Link", "</"+given+">; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		h.Del("Link")
	case "trailers":
		h.Set("Trailer", "X-Given")
		defer h.Set(http.TrailerPrefix+"X-More", given)
		defer h.Set("X-Given", given)
	case "header":
		h.Set("X-Given", "it is "+given)
	case "name":
		h["X-"+given] = []string{"x"}
	case "error":
		http.Error(w, given, http.StatusInternalServerError)
		return
	case "pieces":
		for i := range given {
			io.WriteString(w, given[i:i+1])
			http.NewResponseController(w).Flush()
		}
	}
	io.WriteString(w, "repeated\n")
}

// authority makes a certificate for what is served, and writes who signed it.
func authority(t *testing.T, roots string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "outside"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: []string{openName, boundName, otherName, clName, teName, setupName, setupBound, rebindName, vaultName, setupVault, authName, failName, resName, regName, tokName, mirrorName, frontName, twinName, "*.wild.test"}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// proven shows that somebody has a text, without it.
func proven(text string) string {
	sum := sha256.Sum256([]byte("proof of " + text))
	return hex.EncodeToString(sum[:8])
}
