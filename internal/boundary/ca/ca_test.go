package ca

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/kiterr"
)

func open(t *testing.T, dir string) *Authority {
	t.Helper()
	a, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAnAuthorityIsMadeOnceAndItsKeyStaysPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ca")
	pems := make([]string, 4)
	var wg sync.WaitGroup
	for i := range pems {
		wg.Go(func() { pems[i] = open(t, dir).PEM() })
	}
	wg.Wait()
	for _, p := range pems {
		if p != pems[0] || p == "" || strings.Contains(p, "PRIVATE") {
			t.Fatalf("certificates differ, or hold a key:\n%s", p)
		}
	}
	path := filepath.Join(dir, fileName)
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), dir); !errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), path) {
		t.Errorf("a key that others can read: %v", err)
	}
	os.Chmod(path, 0o600)
	os.WriteFile(path, []byte("junk"), 0o600)
	if _, err := Open(t.Context(), dir); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("junk: %v", err)
	}
}

func TestALeafIsForOneNameBackdatedAndShort(t *testing.T) {
	a := open(t, t.TempDir())
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(a.PEM())) {
		t.Fatal("the certificate is none")
	}
	long := strings.Repeat("a.", 60) + "example"
	for _, host := range []string{"a.example", "192.0.2.1", "2001:db8::1", long} {
		c, err := a.Leaf(host)
		if err != nil {
			t.Fatal(err)
		}
		l := c.Leaf
		if len(l.DNSNames)+len(l.IPAddresses) != 1 || len(l.Subject.CommonName) > 64 || l.IsCA {
			t.Errorf("%s: names %v %v, common name %q", host, l.DNSNames, l.IPAddresses, l.Subject.CommonName)
		}
		if life := l.NotAfter.Sub(l.NotBefore); life > 7*24*time.Hour {
			t.Errorf("%s: valid for %v", host, life)
		}
		for _, at := range []time.Duration{-47 * time.Hour, 0, 3 * 24 * time.Hour} {
			if _, err := l.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, CurrentTime: time.Now().Add(at)}); err != nil {
				t.Errorf("%s at %v: %v", host, at, err)
			}
		}
		if l.VerifyHostname("x."+host) == nil || l.VerifyHostname("b.example") == nil {
			t.Errorf("%s: also good for other names", host)
		}
		if again, _ := a.Leaf(host); again != c {
			t.Errorf("%s: signed anew", host)
		}
	}
	first, _ := a.Leaf("a.example")
	a.now = func() time.Time { return time.Now().Add(4 * 24 * time.Hour) }
	if later, _ := a.Leaf("a.example"); later == first {
		t.Error("a leaf at the end of its life is handed out")
	}
}

func TestTheAuthorityOutlivesItsProcessAndNotItsDates(t *testing.T) {
	dir := t.TempDir()
	old, err := generate(time.Now().Add(-authorityLife - time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, fileName), old, 0o600); err != nil {
		t.Fatal(err)
	}
	a := open(t, dir)
	block, _ := pem.Decode(old)
	if string(block.Bytes) == string(a.cert.Raw) {
		t.Error("an expired authority is used")
	}
	if open(t, dir).PEM() != a.PEM() {
		t.Error("made anew without need")
	}
}
