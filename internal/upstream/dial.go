package upstream

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// A Dialer connects through proxies. Its zero value works.
type Dialer struct {
	// Roots are who may sign for a proxy that is spoken to by TLS. Nil: the
	// system's.
	Roots *x509.CertPool
}

// maxHeader bounds the answer to a CONNECT, in bytes.
const maxHeader = 32 << 10

// Dial connects to host and port through proxy. ctx bounds it. Errors name the
// proxy and say whether it could not be reached or refused.
func (d Dialer) Dial(ctx context.Context, proxy *url.URL, host string, port uint16) (net.Conn, error) {
	return d.open(ctx, proxy, func(c net.Conn) (net.Conn, error) { return d.ask(ctx, c, proxy, host, port) })
}

// Reach connects to an HTTP proxy itself, for requests in absolute form (RFC 9112
// §3.2.2). Many proxies make tunnels to port 443 and nowhere else.
func (d Dialer) Reach(ctx context.Context, proxy *url.URL) (net.Conn, error) {
	return d.open(ctx, proxy, func(c net.Conn) (net.Conn, error) { return d.secure(ctx, c, proxy) })
}

// open connects to proxy and has begin make use of that.
func (d Dialer) open(ctx context.Context, proxy *url.URL, begin func(net.Conn) (net.Conn, error)) (net.Conn, error) {
	var nd net.Dialer
	c, err := nd.DialContext(ctx, "tcp", proxy.Host)
	if err != nil {
		return nil, fmt.Errorf("the proxy %s cannot be reached: %w", Name(proxy), err)
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	out, err := begin(c)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = c.SetDeadline(time.Time{})
	}
	if err != nil {
		c.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("the proxy %s %w", Name(proxy), err)
	}
	return out, nil
}

func (d Dialer) ask(ctx context.Context, c net.Conn, proxy *url.URL, host string, port uint16) (net.Conn, error) {
	if proxy.Scheme == "socks5" || proxy.Scheme == "socks5h" {
		return c, socks(c, proxy.User, host, port)
	}
	c, err := d.secure(ctx, c, proxy)
	if err != nil {
		return nil, err
	}
	return connect(c, proxy.User, net.JoinHostPort(host, strconv.Itoa(int(port))))
}

// secure begins TLS with a proxy that is spoken to by it.
func (d Dialer) secure(ctx context.Context, c net.Conn, proxy *url.URL) (net.Conn, error) {
	if proxy.Scheme != "https" {
		return c, nil
	}
	t := tls.Client(c, &tls.Config{ServerName: proxy.Hostname(), RootCAs: d.Roots, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}})
	if err := t.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("has no TLS that can be trusted: %w", err)
	}
	return t, nil
}

// connect asks an HTTP proxy for a tunnel (RFC 9110 §9.3.6).
func connect(c net.Conn, user *url.Userinfo, to string) (net.Conn, error) {
	req := "CONNECT " + to + " HTTP/1.1\r\nHost: " + to + "\r\n"
	if user != nil {
		password, _ := user.Password()
		req += "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password)) + "\r\n"
	}
	if _, err := io.WriteString(c, req+"\r\n"); err != nil {
		return nil, fmt.Errorf("broke off: %w", err)
	}
	limited := &io.LimitedReader{R: c, N: maxHeader}
	r := bufio.NewReader(limited)
	// As to HEAD, there is no body, whatever the answer says: what follows comes from
	// the host, and to close a body would read it.
	resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodHead})
	if err != nil {
		return nil, fmt.Errorf("gave no answer of HTTP for %s: %w", to, err)
	}
	resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusProxyAuthRequired && user == nil:
		return nil, fmt.Errorf("wants a login for %s: put it into the variable that names the proxy, http://USER:PASSWORD@…, and restart the sandbox", to)
	case resp.StatusCode == http.StatusProxyAuthRequired:
		return nil, fmt.Errorf("does not accept the login (407) for %s", to)
	case resp.StatusCode/100 != 2:
		return nil, fmt.Errorf("refuses %s: %.100s", to, clean(resp.Status))
	}
	limited.N = 1 << 62
	if n := r.Buffered(); n > 0 {
		early, err := r.Peek(n) // a server that speaks first
		if err != nil {
			return nil, err
		}
		return &primed{Conn: c, early: append([]byte(nil), early...)}, nil
	}
	return c, nil
}

// clean makes foreign text printable.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r > 0x7e {
			return '?'
		}
		return r
	}, s)
}

// primed is a connection of which something was read already.
type primed struct {
	net.Conn
	early []byte
}

func (p *primed) Read(b []byte) (int, error) {
	if len(p.early) > 0 {
		n := copy(b, p.early)
		p.early = p.early[n:]
		return n, nil
	}
	return p.Conn.Read(b)
}

// NetConn is the connection without what was read already.
func (p *primed) NetConn() net.Conn { return p.Conn }

// CloseWrite ends one half.
func (p *primed) CloseWrite() error {
	if h, ok := p.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return errors.ErrUnsupported
}

// What SOCKS5 servers answer (RFC 1928 §6).
var replies = []string{"", "a general failure", "not allowed by its rules", "network unreachable", "host unreachable", "connection refused", "time to live expired", "command not supported", "address type not supported"}

// socks asks a SOCKS5 proxy for a connection (RFC 1928, RFC 1929).
func socks(c net.Conn, user *url.Userinfo, host string, port uint16) error {
	const noLogin, password, none = 0, 2, 0xff
	methods := []byte{noLogin}
	name, secret := "", ""
	if user != nil {
		name = user.Username()
		secret, _ = user.Password()
		if len(name) == 0 || len(name) > 255 || len(secret) > 255 {
			return errors.New("has a login that SOCKS cannot carry")
		}
		methods = append(methods, password)
	}
	fail := func(err error) error { return fmt.Errorf("broke off: %w", err) }
	if _, err := c.Write(append([]byte{5, byte(len(methods))}, methods...)); err != nil {
		return fail(err)
	}
	var b [262]byte
	if _, err := io.ReadFull(c, b[:2]); err != nil {
		return fail(err)
	}
	switch {
	case b[0] != 5:
		return errors.New("does not speak SOCKS5")
	case b[1] == password && user != nil:
		login := append([]byte{1, byte(len(name))}, name...)
		login = append(append(login, byte(len(secret))), secret...)
		if _, err := c.Write(login); err != nil {
			return fail(err)
		}
		if _, err := io.ReadFull(c, b[:2]); err != nil {
			return fail(err)
		}
		if b[1] != 0 {
			return errors.New("does not accept the login")
		}
	case b[1] == none || b[1] == password:
		return errors.New("wants another login: put it into the variable that names the proxy, socks5://USER:PASSWORD@…, and restart the sandbox")
	case b[1] != noLogin:
		return errors.New("wants a login of a kind that is not supported")
	}
	req := []byte{5, 1, 0}
	switch ip := net.ParseIP(host); {
	case ip == nil && len(host) <= 255:
		req = append(append(req, 3, byte(len(host))), host...)
	case ip == nil:
		return errors.New("cannot be given a name that long")
	case ip.To4() != nil:
		req = append(append(req, 1), ip.To4()...)
	default:
		req = append(append(req, 4), ip...)
	}
	if _, err := c.Write(binary.BigEndian.AppendUint16(req, port)); err != nil {
		return fail(err)
	}
	if _, err := io.ReadFull(c, b[:4]); err != nil {
		return fail(err)
	}
	if b[1] != 0 {
		why := "code " + strconv.Itoa(int(b[1]))
		if int(b[1]) < len(replies) {
			why = replies[b[1]]
		}
		return fmt.Errorf("refuses %s: %s", net.JoinHostPort(host, strconv.Itoa(int(port))), why)
	}
	rest := 2
	switch b[3] {
	case 1:
		rest += 4
	case 4:
		rest += 16
	case 3:
		if _, err := io.ReadFull(c, b[:1]); err != nil {
			return fail(err)
		}
		rest += int(b[0])
	default:
		return errors.New("answers with an address of no known kind")
	}
	if _, err := io.ReadFull(c, b[:rest]); err != nil {
		return fail(err)
	}
	return nil
}
