package intercept_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/boundary/intercept"
)

// A heard is a host that keeps what is said to it.
type heard struct {
	net.Conn
	said bytes.Buffer // read when the session is over
}

func (h *heard) serve(done *sync.WaitGroup) {
	defer done.Done()
	defer h.Close()
	r := bufio.NewReader(io.TeeReader(h.Conn, &h.said))
	for {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		if req.Header.Get("Expect") != "" {
			if _, err := io.WriteString(h.Conn, "HTTP/1.1 100 Continue\r\n\r\n"); err != nil {
				return
			}
		}
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return
		}
		if _, err := io.WriteString(h.Conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"); err != nil {
			return
		}
	}
}

// FuzzFraming sends a client's bytes through and looks at what leaves with a
// reader that knows no leniency: each request was judged under the name that it
// has there, is for the host, and ends in one place only.
func FuzzFraming(f *testing.F) {
	const ok = "GET /ok HTTP/1.1\r\nHost: example.com\r\n\r\n"
	for _, s := range []string{
		ok, ok + ok, "POST /ok HTTP/1.1\r\nHost: example.com\r\nContent-Length: 5\r\n\r\nhello" + ok,
		"POST /ok HTTP/1.1\r\nHost: example.com\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nA: b\r\n\r\n" + ok,
		"POST /ok HTTP/1.1\r\nHost: example.com\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
		"POST /ok HTTP/1.1\r\nHost: example.com\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
		"POST /ok HTTP/1.1\r\nHost: example.com\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
		"POST /ok HTTP/1.1\r\nHost: example.com\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
		"POST /ok HTTP/1.1\r\nHost: example.com\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
		"POST /ok HTTP/1.1\r\nHost: example.com\r\nTransfer-Encoding_: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
		"POST /ok HTTP/1.1\r\nHost: example.com\r\nTransfer-Encoding: chunked\r\n\r\n0;a=\"\n\"\r\n\r\n",
		"POST /ok HTTP/1.1\r\nHost: example.com\r\nTransfer-Encoding: chunked\r\nTrailer: Content-Length\r\n\r\n0\r\nContent-Length: 9\r\n\r\n",
		"GET /ok HTTP/1.1\nHost: example.com\nX: y\n\n", "GET /ok HTTP/1.1\r\nHost: example.com\r\nX: a\rb\r\n\r\n",
		"GET /ok HTTP/1.1\r\nHost: example.com\r\nX: y\r\n z\r\n\r\n", "GET /ok HTTP/1.0\r\nHost: example.com\r\n\r\n",
		"GET http://other.example/ HTTP/1.1\r\nHost: example.com\r\n\r\n", "CONNECT example.com:80 HTTP/1.1\r\nHost: example.com:80\r\n\r\n",
		"GET /ok HTTP/1.1\r\nHost: example.com\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
		"GET /ok?a b HTTP/1.1\r\nHost: example.com\r\n\r\n", "GET /no HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"POST /ok HTTP/1.1\r\nHost: example.com\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nhi",
		"GET /ok HTTP/1.1\r\nHost: example.com\r\nConnection: X-A, Host\r\nX-A: b\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	s := intercept.New(func(string) (*tls.Certificate, error) { return nil, errors.New("no TLS here") }, nil)
	f.Cleanup(s.Close)
	f.Fuzz(func(t *testing.T, said []byte) {
		through(t, s, 80, func(c net.Conn) net.Conn { return c }, func(c net.Conn) {
			go io.Copy(io.Discard, c)
			c.Write(said)
		})
	})
}

// through has act talk to a host through s, and judges what has left.
func through(t *testing.T, s *intercept.Server, port uint16, server func(net.Conn) net.Conn, act func(net.Conn)) {
	var mu sync.Mutex
	var judged []string
	var hosts []*heard
	var done sync.WaitGroup
	client, inner := net.Pipe()
	sess := &intercept.Session{Client: inner, Host: host, Port: port,
		Dial: func(context.Context) (net.Conn, error) {
			ours, theirs := net.Pipe()
			h := &heard{Conn: server(theirs)}
			mu.Lock()
			hosts = append(hosts, h)
			mu.Unlock()
			done.Add(1)
			go h.serve(&done)
			return ours, nil
		},
		Begin: func(_ context.Context, r intercept.Request, _ intercept.Cancel) (egress.Verdict, intercept.Turn) {
			if !strings.HasPrefix(r.Path, "/ok") {
				return egress.Verdict{Why: "not there"}, intercept.Turn{}
			}
			mu.Lock()
			judged = append(judged, r.Method+" "+r.Path)
			mu.Unlock()
			return egress.Verdict{Allow: true}, intercept.Turn{End: func() {}}
		},
		Refuse: func(string, string, string, string) {},
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	over := make(chan struct{})
	go func() { defer close(over); s.Serve(ctx, sess); inner.Close() }()
	client.SetDeadline(time.Now().Add(2 * time.Second))
	act(client)
	client.Close()
	<-over
	done.Wait()
	for _, h := range hosts {
		if why := strict(h.said.Bytes(), judged); why != "" {
			t.Fatalf("%s\nleft %q\njudged %q", why, h.said.Bytes(), judged)
		}
	}
}

// FuzzDowngrade sends fields of HTTP/2, in which no byte ends a line, to a host
// that speaks HTTP/1.
func FuzzDowngrade(f *testing.F) {
	for _, s := range [][6]string{
		{"GET", host, "/ok", "a", "b", ""}, {"POST", host, "/ok", "content-length", "0", "GET /no HTTP/1.1\r\n\r\n"},
		{"GET", host, "/ok", "a", "b\r\n\r\nGET /no HTTP/1.1\r\nHost: x", ""}, {"GET", host, "/ok", "a: b\r\nc", "d", ""},
		{"GET", host, "/ok HTTP/1.1\r\nX: y\r\n\r\nGET /no", "a", "b", ""}, {"GET /no HTTP/1.1\r\n\r\nGET", host, "/ok", "a", "b", ""},
		{"POST", host, "/ok", "transfer-encoding", "chunked", "0\r\n\r\nGET /no"}, {"POST", host, "/ok", "transfer_encoding", "chunked", "0\r\n\r\nx"},
		{"GET", "other.example", "/ok", "host", host, ""}, {"GET", host, "/ok", "host", "other.example", ""},
		{"GET", host, "http://other.example/ok", "a", "b", ""}, {"CONNECT", host, "/ok", ":protocol", "websocket", ""},
		{"GET", host, "/ok", "connection", "upgrade", ""}, {"GET", host, "/ok", "te", "trailers", ""}, {"OPTIONS", host, "*", "a", "b", ""},
		{"POST", host, "/ok", "content-length", "5", "hello"}, {"POST", host, "/ok?a b", "expect", "100-continue", "hello"}, {"GET", host, "/ok", ":path", "/no", ""},
	} {
		f.Add(s[0], s[1], s[2], s[3], s[4], s[5])
	}
	origin := httptest.NewUnstartedServer(nil)
	origin.StartTLS()
	f.Cleanup(origin.Close)
	pair := origin.TLS.Certificates[0]
	roots := x509.NewCertPool()
	roots.AddCert(origin.Certificate())
	s := intercept.New(func(string) (*tls.Certificate, error) { return &pair, nil }, roots)
	f.Cleanup(s.Close)
	f.Fuzz(func(t *testing.T, method, authority, path, name, value, body string) {
		server := func(c net.Conn) net.Conn { return tls.Server(c, &tls.Config{Certificates: []tls.Certificate{pair}}) }
		through(t, s, 443, server, func(c net.Conn) {
			client := tls.Client(c, &tls.Config{RootCAs: roots, ServerName: host, NextProtos: []string{"h2"}})
			if err := client.Handshake(); err != nil {
				t.Fatal(err)
			}
			io.WriteString(client, http2.ClientPreface)
			fr := http2.NewFramer(client, client)
			fr.AllowIllegalWrites = true
			answered := make(chan struct{})
			go func() {
				defer close(answered)
				for {
					x, err := fr.ReadFrame()
					if err != nil {
						return
					}
					switch x := x.(type) {
					case *http2.RSTStreamFrame, *http2.GoAwayFrame:
						return
					case *http2.SettingsFrame:
					default:
						if x.Header().StreamID == 3 && x.Header().Flags.Has(http2.FlagDataEndStream) {
							return
						}
					}
				}
			}()
			fr.WriteSettings()
			var block bytes.Buffer
			enc := hpack.NewEncoder(&block)
			for i, fields := range [][][2]string{
				{{":method", method}, {":scheme", "https"}, {":authority", authority}, {":path", path}, {name, value}},
				{{":method", "GET"}, {":scheme", "https"}, {":authority", host}, {":path", "/ok/second"}},
			} {
				block.Reset()
				for _, x := range fields {
					enc.WriteField(hpack.HeaderField{Name: x[0], Value: x[1]})
				}
				if block.Len() > 16<<10 || len(body) > 16<<10 {
					break // more than a frame
				}
				id := uint32(2*i + 1)
				bodied := i == 0 && body != ""
				fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: !bodied})
				if bodied {
					fr.WriteData(id, true, []byte(body))
				}
			}
			select {
			case <-answered:
			case <-time.After(time.Second):
			}
		})
	})
}

// strict reads requests as the standard has them and says what is wrong with
// them; what a session that was cut short leaves unfinished is not.
func strict(b []byte, judged []string) string {
	for len(b) > 0 {
		end := bytes.Index(b, []byte("\r\n\r\n"))
		if end < 0 {
			return ""
		}
		head := string(b[:end])
		b = b[end+4:]
		ls := strings.Split(head, "\r\n")
		if strings.ContainsAny(strings.Join(ls, ""), "\r\n\x00") {
			return "a bare end of a line"
		}
		first := strings.Split(ls[0], " ")
		if len(first) != 3 || first[2] != "HTTP/1.1" {
			return "no request line"
		}
		path, _, _ := strings.Cut(first[1], "?")
		if !slices.Contains(judged, first[0]+" "+path) {
			return "a request that was not judged"
		}
		h := http.Header{}
		for _, l := range ls[1:] {
			name, value, ok := strings.Cut(l, ":")
			if !ok || name != strings.TrimSpace(name) || name == "" {
				return "no header line"
			}
			h.Add(name, strings.TrimSpace(value))
		}
		te, cl := h.Values("Transfer-Encoding"), h.Values("Content-Length")
		switch {
		case len(h.Values("Host")) != 1 || !same(h.Get("Host")):
			return "another host"
		case len(te) > 0 && (len(cl) > 0 || len(te) > 1 || te[0] != "chunked"), len(cl) > 1:
			return "two ends of a body"
		}
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(head + "\r\n\r\n")))
		if err != nil {
			return "not HTTP: " + err.Error()
		}
		switch {
		case len(te) > 0:
			rest, ok := chunks(b)
			if !ok {
				return ""
			}
			b = rest
		case r.ContentLength > int64(len(b)):
			return ""
		default:
			b = b[max(r.ContentLength, 0):]
		}
	}
	return ""
}

// same reports whether a Host header names the host, in any spelling.
func same(header string) bool {
	h, err := egress.ParseHost(strings.TrimSuffix(strings.TrimSuffix(header, ":80"), ":443"))
	return err == nil && h.String() == host
}

// chunks skips a chunked body and its trailers. ok is false if it does not end.
func chunks(b []byte) (rest []byte, ok bool) {
	r := bufio.NewReader(io.MultiReader(strings.NewReader("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"), bytes.NewReader(b)))
	req, err := http.ReadRequest(r)
	if err != nil {
		return nil, false
	}
	if _, err := io.Copy(io.Discard, req.Body); err != nil {
		return nil, false
	}
	rest, err = io.ReadAll(r)
	return rest, err == nil
}
