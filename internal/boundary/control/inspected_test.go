package control_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/boundary/ca"
)

// inspected is an HTTPS server, a guest that reaches it, and what there is for a
// boundary between the two that looks into requests.
type inspected struct {
	t         testing.TB
	g         *guest
	at        netip.AddrPort // of the server, on the host
	authority *ca.Authority  // of the boundary
	roots     *x509.CertPool // by which the boundary knows the server
	trusted   *x509.CertPool // by which the guest knows the boundary

	certificate *x509.Certificate // of the server
}

// inspect starts a server that answers by h. Its certificate is httptest's, for
// example.com and *.example.com, and it speaks HTTP/2; with a name it is for that, and
// it does not.
func inspect(t testing.TB, name string, h http.HandlerFunc) *inspected {
	t.Helper()
	i := &inspected{t: t, g: newGuest(t), roots: x509.NewCertPool(), trusted: x509.NewCertPool()}
	i.authority = openAuthority(t)
	i.trusted.AppendCertsFromPEM([]byte(i.authority.PEM()))
	origin := httptest.NewUnstartedServer(h)
	origin.EnableHTTP2 = name == ""
	if name != "" {
		theirs := openAuthority(t)
		leaf, err := theirs.Leaf(name)
		if err != nil {
			t.Fatal(err)
		}
		origin.TLS = &tls.Config{Certificates: []tls.Certificate{*leaf}}
		i.roots.AppendCertsFromPEM([]byte(theirs.PEM()))
		i.trusted.AppendCertsFromPEM([]byte(theirs.PEM()))
	}
	origin.StartTLS()
	t.Cleanup(origin.Close)
	if i.certificate = origin.Certificate(); name == "" {
		i.roots.AddCert(i.certificate)
	}
	i.at = netip.MustParseAddrPort(origin.Listener.Addr().String())
	return i
}

func openAuthority(t testing.TB) *ca.Authority {
	t.Helper()
	a, err := ca.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// client makes requests from inside, by HTTP/2 or HTTP/1.1 and nothing else.
func (i *inspected) client(http2 bool) *http.Client {
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: i.trusted}, Protocols: new(http.Protocols),
		DialContext: func(_ context.Context, _, addr string) (net.Conn, error) {
			host, port, _ := net.SplitHostPort(addr)
			var n int
			fmt.Sscan(port, &n)
			return i.g.dialName("ip4", host, n)
		}}
	tr.Protocols.SetHTTP1(!http2)
	tr.Protocols.SetHTTP2(http2)
	i.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}
