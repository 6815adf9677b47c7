package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// hello returns the bytes of a real ClientHello.
func hello(t testing.TB, c *tls.Config) []byte {
	t.Helper()
	var b bytes.Buffer
	r := &recorder{Conn: &script{}}
	w := &tee{recorder: r, out: &b}
	c.InsecureSkipVerify = true
	tls.Client(w, c).Handshake() // ends with the EOF of the script
	if b.Len() == 0 {
		t.Fatal("no ClientHello")
	}
	return b.Bytes()
}

type tee struct {
	*recorder
	out *bytes.Buffer
}

func (t *tee) Write(p []byte) (int, error) { return t.out.Write(p) }

// script is a connection that delivers chunks, then EOF.
type script struct {
	net.Conn
	chunks [][]byte
}

func (s *script) Read(p []byte) (int, error) {
	if len(s.chunks) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.chunks[0])
	if s.chunks[0] = s.chunks[0][n:]; len(s.chunks[0]) == 0 {
		s.chunks = s.chunks[1:]
	}
	return n, nil
}

func chunk(b []byte, n int) (out [][]byte) {
	for c := range slices.Chunk(b, n) {
		out = append(out, slices.Clone(c))
	}
	return out
}

func TestServerName(t *testing.T) {
	long := strings.Repeat("a.", 120) + "example"
	for _, tt := range []struct {
		name string
		conf *tls.Config
		want string
	}{
		{"plain", &tls.Config{ServerName: "a.example"}, "a.example"},
		{"long", &tls.Config{ServerName: long}, long},
		{"none", &tls.Config{}, ""},
		{"address", &tls.Config{ServerName: "10.0.0.1"}, ""},
		{"old", &tls.Config{ServerName: "a.example", MaxVersion: tls.VersionTLS12}, "a.example"},
		{"protocols", &tls.Config{ServerName: "a.example", NextProtos: []string{"h2", strings.Repeat("x", 200)}}, "a.example"},
	} {
		b := hello(t, tt.conf)
		for _, size := range []int{1, 5, 512, 1 << 20} {
			r := &recorder{Conn: &script{chunks: chunk(append(slices.Clone(b), "more"...), size)}}
			for {
				yes, more := looksTLS(r.read)
				if !yes {
					t.Fatalf("%s: does not look like TLS", tt.name)
				}
				if !more {
					break
				}
				if err := r.more(); err != nil {
					t.Fatal(err)
				}
			}
			got, err := r.serverName()
			if got != tt.want || err != nil {
				t.Errorf("%s in pieces of %d: %q, %v", tt.name, size, got, err)
			}
			// What was read is what is passed on: all of it, in order.
			rest, _ := io.ReadAll(r.Conn)
			if all := append(slices.Clone(r.read), rest...); !bytes.Equal(all, append(slices.Clone(b), "more"...)) {
				t.Errorf("%s in pieces of %d: bytes were lost", tt.name, size)
			}
		}
	}
}

func TestServerNameRefusesWhatIsNoHello(t *testing.T) {
	good := hello(t, &tls.Config{ServerName: "a.example"})
	endless := []byte{0x16, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff}
	for name, b := range map[string][]byte{
		"cut off":           good[:len(good)-1],
		"record of nothing": {0x16, 3, 1, 0, 0, 1, 0, 0, 0},
		"bad length":        append([]byte{0x16, 3, 1, 0, 4}, 1, 0, 0xff, 0xff),
		"endless":           append(endless, make([]byte, 1<<20)...),
		"two names":         bytes.Replace(good, []byte("a.example"), []byte("a.exa\x00ple"), 1)[:len(good)-40],
	} {
		r := &recorder{Conn: &script{chunks: [][]byte{b}}}
		if got, err := r.serverName(); err == nil {
			t.Errorf("%s: read as %q", name, got)
		}
		if len(r.read) > maxHello {
			t.Errorf("%s: %d bytes were kept", name, len(r.read))
		}
	}
}

func TestLooksTLS(t *testing.T) {
	for b, want := range map[string][2]bool{
		"":                         {true, true},
		"\x16":                     {true, true},
		"\x16\x03":                 {true, false},
		"\x16\x03\x01\x02\x00\x01": {true, false},
		"\x16\x03\x03\x02\x00\x02": {true, false}, // and is refused, since it is no hello
		"\x15\x03\x01\x00\x02\x01": {true, false}, // a warning
		"\x14\x03\x03":             {true, false},
		"\x13\x03\x03":             {false, false},
		"\x19\x03\x03":             {false, false},
		"\x16\x02":                 {false, false},
		"GET / HTTP/1.1":           {false, false},
		"SSH-2.0-x":                {false, false},
		"\x80\x2e\x01\x03\x01":     {false, false},
	} {
		if yes, more := looksTLS([]byte(b)); yes != want[0] || more != want[1] {
			t.Errorf("looksTLS(%q) = %v, %v", b, yes, more)
		}
	}
}

func TestAServerNameIsSeenBehindWarnings(t *testing.T) {
	b := hello(t, &tls.Config{ServerName: "denied.example"})
	warning := []byte{0x15, 3, 1, 0, 2, 1, 90}
	r := &recorder{Conn: &script{chunks: [][]byte{slices.Concat(warning, warning, b)}}}
	if got, err := r.serverName(); got != "denied.example" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if !bytes.Equal(r.read, slices.Concat(warning, warning, b)) {
		t.Error("what was read is not what goes on")
	}
	for what, first := range map[string][]byte{"an empty record": {0x16, 3, 1, 0, 0}, "a change of the cipher": {0x14, 3, 3, 0, 1, 1}, "the end": {0x15, 3, 1, 0, 2, 1, 0}, "warnings without end": bytes.Repeat(warning, 1000)} {
		r := &recorder{Conn: &script{chunks: [][]byte{slices.Concat(first, b)}}}
		if got, err := r.serverName(); err == nil && got != "denied.example" {
			t.Errorf("%s: %q", what, got)
		}
	}
}

func FuzzServerName(f *testing.F) {
	f.Add(hello(f, &tls.Config{ServerName: "a.example"}))
	f.Add([]byte("\x16\x03\x01\x00\x08\x01\x00\x00\x04\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := &recorder{Conn: &script{chunks: [][]byte{b}}}
		name, err := r.serverName()
		if err != nil && name != "" {
			t.Fatalf("%q and %v", name, err)
		}
		if len(r.read) > maxHello || !bytes.HasPrefix(b, r.read) {
			t.Fatalf("kept %d bytes of %d, or other ones", len(r.read), len(b))
		}
	})
}

func TestParseRoutes(t *testing.T) {
	r, err := ParseRoutes([]plan.Route{{Name: "A.Example.", Addr: "127.0.0.1:8080"}, {Name: "b.example", Addr: "::1"}, {Name: "c.example", Addr: "[::ffff:127.0.0.1]:1"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"a.example": "127.0.0.1:8080", "b.example": "[::1]:443", "c.example": "127.0.0.1:1"} {
		if to, ok := r.to(name, 443); !ok || to.String() != want {
			t.Errorf("%s goes to %s, want %s", name, to, want)
		}
	}
	if to, ok := r.to("d.example", 443); ok {
		t.Errorf("d.example goes to %s", to)
	}
	if to, ok := (Routes{}).to("a.example", 443); ok {
		t.Errorf("without routes, a.example goes to %s", to)
	}
	bad := []plan.Route{{Name: "10.0.0.1", Addr: "127.0.0.1"}, {Name: "a..b", Addr: "127.0.0.1"}, {Name: "x", Addr: "localhost:80"}, {Name: "y", Addr: ""}, {Name: "z", Addr: "127.0.0.1:80"}, {Name: "Z.", Addr: "127.0.0.1:80"}}
	_, err = ParseRoutes(bad)
	if !errors.Is(err, kiterr.ErrRefused) || strings.Count(err.Error(), `route "`) != 5 {
		t.Errorf("bad routes: %v", err)
	}
}

func TestInterleave(t *testing.T) {
	parse := func(s string) (as []netip.Addr) {
		for _, f := range strings.Fields(s) {
			as = append(as, netip.MustParseAddr(f))
		}
		return as
	}
	for in, want := range map[string]string{
		"":                             "",
		"::1 ::2 ::3":                  "::1 ::2 ::3",
		"::1 ::2 1.1.1.1":              "::1 1.1.1.1 ::2",
		"1.1.1.1 2.2.2.2 3.3.3.3 ::1":  "1.1.1.1 ::1 2.2.2.2 3.3.3.3",
		"1.1.1.1 ::1 ::2 ::3 2.2.2.2 ": "1.1.1.1 ::1 2.2.2.2 ::2 ::3",
	} {
		if got := interleave(parse(in)); !slices.Equal(got, parse(want)) {
			t.Errorf("interleave(%s) = %s, want %s", in, got, want)
		}
	}
}

// closer counts the end of a connection that lost a race.
type closer struct {
	net.Conn
	closed chan struct{}
}

func (c *closer) Close() error { close(c.closed); return nil }

func TestRace(t *testing.T) {
	addr := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 80)
	}
	addrs := []netip.AddrPort{addr(0), addr(1), addr(2)}
	lost := &closer{closed: make(chan struct{})}
	for name, tt := range map[string]struct {
		dial func(ctx context.Context, i int) (net.Conn, error)
		want int // -1: fails
		took time.Duration
	}{
		"the first answers": {func(context.Context, int) (net.Conn, error) { return &closer{}, nil }, 0, 0},
		"the first hangs": {func(ctx context.Context, i int) (net.Conn, error) {
			if i == 0 {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return &closer{}, nil
		}, 1, stagger},
		"the first fails": {func(_ context.Context, i int) (net.Conn, error) {
			if i == 0 {
				return nil, errors.New("no")
			}
			return &closer{}, nil
		}, 1, 0},
		"all fail": {func(_ context.Context, i int) (net.Conn, error) { return nil, fmt.Errorf("no %d", i) }, -1, 0},
		"the first answers too late": {func(_ context.Context, i int) (net.Conn, error) {
			if i == 0 {
				time.Sleep(stagger + time.Second) // heeds no context
				return lost, nil
			}
			return &closer{}, nil
		}, 1, stagger},
		"all hang": {func(ctx context.Context, _ int) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }, -1, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				began := time.Now()
				c, to, err := race(ctx, addrs, func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
					return tt.dial(ctx, int(to.Addr().As4()[3]))
				})
				if took := time.Since(began); took != tt.took {
					t.Errorf("took %v, want %v", took, tt.took)
				}
				defer time.Sleep(time.Minute) // for those who lost
				if tt.want < 0 {
					if err == nil || c != nil {
						t.Errorf("race = %v, %v", c, err)
					}
					return
				}
				if err != nil || to != addr(tt.want) {
					t.Errorf("won by %s, %v", to, err)
				}
			})
		})
	}
	<-lost.closed // synctest has waited for all: the loser was closed
}
