package keystore

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/needs"
)

// authority is a certificate as the boundary has one.
func authority(t testing.TB, name string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// keytool runs Java's own tool, which judges what this package makes.
func keytool(t *testing.T, args ...string) string {
	t.Helper()
	p := needs.Program(t, "keytool", "apt-get install default-jdk-headless")
	out, err := exec.Command(p, append(args, "-J-Duser.language=en", "-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC")...).CombinedOutput()
	if err != nil {
		t.Fatalf("keytool %v: %v\n%s", args, err, out)
	}
	return string(out)
}

func TestJavaFindsWhatIsAddedAndWhatWasThere(t *testing.T) {
	plain := []string{"-J-Dkeystore.pkcs12.macAlgorithm=NONE", "-J-Dkeystore.pkcs12.certProtectionAlgorithm=NONE"}
	for name, how := range map[string][]string{
		"jks":                       {"-storetype", "jks"},
		"pkcs12":                    {"-storetype", "pkcs12"},
		"pkcs12 as JDKs had it":     {"-storetype", "pkcs12", "-J-Dkeystore.pkcs12.legacy"},
		"pkcs12 without a password": append([]string{"-storetype", "pkcs12"}, plain...),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			at := filepath.Join(dir, "cacerts")
			theirs := filepath.Join(dir, "theirs.pem")
			if err := os.WriteFile(theirs, []byte(authority(t, "theirs")), 0o600); err != nil {
				t.Fatal(err)
			}
			keytool(t, append([]string{"-importcert", "-noprompt", "-keystore", at, "-storepass", Password, "-alias", "theirs", "-file", theirs}, how...)...)
			store, err := os.ReadFile(at)
			if err != nil {
				t.Fatal(err)
			}
			ours := authority(t, "one") + authority(t, "two")
			changed, err := Add(store, ours)
			if err != nil {
				t.Fatal(err)
			}
			if again, err := Add(changed, ours); err != nil || !bytes.Equal(again, changed) {
				t.Errorf("the second time it changes: %v", err)
			}
			more, err := Add(changed, authority(t, "three"))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(at, more, 0o600); err != nil {
				t.Fatal(err)
			}
			list := keytool(t, "-list", "-v", "-keystore", at, "-storepass", Password)
			for _, want := range []string{"CN=theirs", "CN=one", "CN=two", "CN=three"} {
				if !strings.Contains(list, "Owner: "+want) {
					t.Errorf("%s is not in\n%s", want, list)
				}
			}
			if n := strings.Count(list, "trustedCertEntry"); n != 4 {
				t.Errorf("%d entries", n)
			}
		})
	}
}

func TestAForeignStoreStaysAsItIs(t *testing.T) {
	ours := authority(t, "ours")
	for _, kind := range []string{"jks", "pkcs12"} {
		at := filepath.Join(t.TempDir(), "cacerts")
		theirs := at + ".pem"
		if err := os.WriteFile(theirs, []byte(authority(t, "theirs")), 0o600); err != nil {
			t.Fatal(err)
		}
		keytool(t, "-importcert", "-noprompt", "-keystore", at, "-storetype", kind, "-storepass", "something else", "-alias", "a", "-file", theirs)
		store, err := os.ReadFile(at)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Add(store, ours); !errors.Is(err, ErrPassword) {
			t.Errorf("%s: %v", kind, err)
		}
	}
	for _, bad := range []string{"", "text", "\xfe\xed\xfe\xed", "\xfe\xed\xfe\xed\x00\x00\x00\x02\x00\x00\x00\x00" + strings.Repeat("x", 20), "0\x03\x02\x01\x03"} {
		if out, err := Add([]byte(bad), ours); err == nil {
			t.Errorf("%q became %q", bad, out)
		}
	}
	if out, err := Add([]byte("anything"), "no certificate"); err != nil || string(out) != "anything" {
		t.Errorf("nothing to add: %q, %v", out, err)
	}
}

func FuzzAdd(f *testing.F) {
	ours := authority(f, "ours")
	head := []byte("\xfe\xed\xfe\xed\x00\x00\x00\x02\x00\x00\x00\x00")
	f.Add(append(head, sealJKS(head)...))
	w := new(writer)
	f.Add(w.wrap(16, append(w.marshal(3), w.info(w.wrap(16, nil))...)))
	f.Fuzz(func(t *testing.T, store []byte) {
		out, err := Add(store, ours)
		if err != nil {
			return
		}
		block, _ := pem.Decode([]byte(ours))
		if again, err := Add(out, ours); err != nil || !bytes.Contains(out, block.Bytes) || !bytes.Equal(again, out) {
			t.Errorf("%x became %x, and then %x, %v", store, out, again, err)
		}
	})
}
