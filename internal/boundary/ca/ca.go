// Package ca is the certificate authority of one kitbox home. Its certificate
// goes into sandboxes whose connections are looked into; its key never leaves
// the host, and no sandbox of another home trusts it.
//
// Who may be impersonated, and when, is decided in packages egress and proxy.
package ca

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/kiterr"
)

const (
	// backdate lets a sandbox trust what is signed although its clock is
	// behind, as that of a machine that slept is.
	backdate = 48 * time.Hour

	authorityLife = 10 * 365 * 24 * time.Hour

	// leafLife is counted from now. With backdate a leaf is valid for less
	// than seven days, so that one that leaks is soon worthless.
	leafLife = 4 * 24 * time.Hour

	// renew is how much of its life a leaf has left at least when it is
	// handed out.
	renew = 24 * time.Hour

	maxLeaves = 1024
)

// An Authority signs certificates. Its methods can be called concurrently.
type Authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	leaf *ecdsa.PrivateKey // of every leaf of this process

	now func() time.Time

	mu     sync.Mutex
	leaves map[string]*tls.Certificate // by host; guarded by mu
}

const fileName = "authority.pem"

// Open returns the authority that is kept in dir, and makes one if there is
// none or if it has expired. The file holds the key: it is refused when others
// than its owner can read it.
func Open(ctx context.Context, dir string) (*Authority, error) {
	path := filepath.Join(dir, fileName)
	a, err := read(path)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return a, err
	}
	if err := durable.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	l, err := durable.AcquireLock(ctx, path+".lock", durable.Exclusive)
	if err != nil {
		return nil, err
	}
	defer l.Unlock()
	if a, err = read(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return a, err
	}
	data, err := generate(time.Now())
	if err != nil {
		return nil, err
	}
	// Key and certificate are one file, so that they are never of two
	// different authorities.
	if err := durable.WriteFile(path, data, 0o600); err != nil {
		return nil, durable.Explain(path, err)
	}
	return read(path)
}

func read(path string) (*Authority, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if st.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s can be read by others than its owner: delete it, and make sandboxes that trust it again: %w", path, kiterr.ErrRefused)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, durable.Explain(path, err)
	}
	pair, err := tls.X509KeyPair(data, data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; delete it to get a new one", path, err)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return nil, fmt.Errorf("%s is no certificate authority; delete it to get a new one", path)
	}
	if time.Now().After(pair.Leaf.NotAfter) {
		return nil, fmt.Errorf("%s has expired: %w", path, fs.ErrNotExist)
	}
	leaf, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return &Authority{cert: pair.Leaf, key: key, leaf: leaf, now: time.Now, leaves: map[string]*tls.Certificate{}}, nil
}

func generate(now time.Time) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: serial(),
		// Two homes have two authorities, and some programs find one by
		// its name alone.
		Subject:               pkix.Name{Organization: []string{"kitbox"}, CommonName: "kitbox sandbox authority " + rand.Text()[:8]},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(authorityLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, err
	}
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: k})...), nil
}

func serial() *big.Int {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		panic(err) // crypto/rand does not fail
	}
	return n.Add(n, big.NewInt(1))
}

// PEM is the certificate that sandboxes trust.
func (a *Authority) PEM() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
}

// Leaf returns a certificate for exactly host, a name in lower case or an
// address.
func (a *Authority) Leaf(host string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	if c := a.leaves[host]; c != nil && now.Add(renew).Before(c.Leaf.NotAfter) {
		return c, nil
	}
	t := &x509.Certificate{
		SerialNumber: serial(),
		NotBefore:    now.Add(-backdate),
		NotAfter:     now.Add(leafLife),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		t.IPAddresses = append(t.IPAddresses, net.IP(ip.AsSlice()))
	} else {
		t.DNSNames = []string{host}
	}
	if len(host) <= 64 { // the most that X.509 allows a common name
		t.Subject.CommonName = host
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, a.leaf.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("certificate for %s: %w", host, err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	c := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.leaf, Leaf: parsed}
	if len(a.leaves) >= maxLeaves {
		clear(a.leaves)
	}
	a.leaves[host] = c
	return c, nil
}
