package escape

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"testing"
	"time"
)

// proxyAddr is where the proxy of the host's network listens.
const proxyAddr = "127.0.0.1:3128"

// proxy connects everybody to everything, and resolves names itself: what it is asked
// for it reaches, also in its own network.
func (o *outside) proxy(t *testing.T) {
	t.Helper()
	dial := func(ctx context.Context, target string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(target)
		if err != nil {
			return nil, err
		}
		if net.ParseIP(host) == nil {
			host = o.lookup(host + ".")[0].String()
		}
		return new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(host, port))
	}
	transport := &http.Transport{DisableCompression: true, DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) { return dial(ctx, addr) }}
	quiet := log.New(io.Discard, "", 0)
	forward := &httputil.ReverseProxy{Transport: transport, ErrorLog: quiet, Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL = &url.URL{Scheme: "http", Host: r.In.Host, Path: r.In.URL.Path, RawPath: r.In.URL.RawPath, RawQuery: r.In.URL.RawQuery}
		r.Out.Host = r.In.Host
	}}
	s := &http.Server{ErrorLog: quiet, ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.record("at the proxy, which was asked for "+r.RequestURI, []byte(r.Host))
		if r.Method != http.MethodConnect {
			forward.ServeHTTP(w, r)
			return
		}
		up, err := dial(r.Context(), r.Host)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer up.Close()
		c, b, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
			return
		}
		go func() {
			_, _ = io.Copy(up, b)
			if h, ok := up.(*net.TCPConn); ok {
				_ = h.CloseWrite()
			}
		}()
		_, _ = io.Copy(c, up)
	})}
	l := listen(t, proxyAddr)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close(); transport.CloseIdleConnections() })
}

// proxied are the variables of a host behind it.
func proxied() []string {
	var env []string
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY"} {
		env = append(env, name+"=http://"+proxyAddr)
	}
	return env
}
