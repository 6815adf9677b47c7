package fetch_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// transfer is what the test binary does as a process of its own that is killed.
func transfer(args []string) int {
	f := &fetch.Fetcher{Home: args[1]}
	var err error
	switch args[0] {
	case "pull":
		_, err = f.PullImage(context.Background(), args[2])
	case "push":
		_, err = f.Push(context.Background(), args[2], args[3])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// bigImage stores an image with one layer of so many bytes and returns both.
func bigImage(t *testing.T, s *layout.Store, size int) (manifest, layer ocispec.Descriptor) {
	t.Helper()
	text := strings.Repeat("0123456789abcde\n", size/16)
	d, err := image(s, text, map[string]string{fetch.Annotation: "big"}, layout.HostPlatform())
	if err != nil {
		t.Fatal(err)
	}
	return d, ocispec.Descriptor{Digest: digest.FromString(text), Size: int64(len(text))}
}

// TestARegistryThatStallsIsNamed in every kind of exchange, and nothing is left.
func TestARegistryThatStallsIsNamed(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	var stall atomic.Value
	stall.Store("")
	host := strict(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s := stall.Load().(string)
			switch {
			case s == "body" && r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/"):
				w = &stallingWriter{w, release}
			case s == "put" && r.Method == http.MethodPut:
				<-release
				return
			case s == "headers" && r.Method != http.MethodPut:
				<-release
				return
			}
			h.ServeHTTP(w, r)
		})
	})
	f := setup(t)
	big, layer := bigImage(t, f.images, 4<<20)
	if _, err := f.Push(t.Context(), big.Digest.String(), host+"/kits/big:1"); err != nil {
		t.Fatal(err)
	}
	for _, how := range []string{"headers", "body"} {
		stall.Store(how)
		home := t.TempDir()
		other := &fetch.Fetcher{Home: home, Idle: 100 * time.Millisecond}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		_, err := other.PullImage(ctx, host+"/kits/big:1")
		if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), host) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", how, err)
		}
		cancel()
		nothingLeft(t, home, layer.Digest)
	}
	stall.Store("put")
	f.Fetcher = &fetch.Fetcher{Home: f.Home, Idle: 100 * time.Millisecond}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := f.Push(ctx, big.Digest.String(), host+"/kits/other:1"); err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), host) {
		t.Errorf("put: %v", err)
	}
	stall.Store("")
	if _, err := f.PullImage(t.Context(), host+"/kits/other:1"); !errors.Is(err, kiterr.ErrNotFound) {
		t.Errorf("a push that broke off has a name: %v", err)
	}
}

// A stallingWriter sends a little and waits.
type stallingWriter struct {
	http.ResponseWriter
	release chan struct{}
}

func (s *stallingWriter) Write(b []byte) (int, error) {
	if len(b) > 2000 {
		n, err := s.ResponseWriter.Write(b[:1000])
		if err != nil {
			return n, err
		}
		s.ResponseWriter.(http.Flusher).Flush()
		<-s.release
		return n, io.ErrClosedPipe
	}
	return s.ResponseWriter.Write(b)
}

// nothingLeft fails if a store has a name, the layer, or half of anything.
func nothingLeft(t *testing.T, home string, layer digest.Digest) {
	t.Helper()
	images, err := layout.Open(filepath.Join(home, "images"))
	if err != nil {
		t.Fatal(err)
	}
	if tags, err := images.Tags(); err != nil || len(tags) > 0 {
		t.Errorf("names: %v, %v", tags, err)
	}
	if p, err := images.BlobPath(layer); err != nil {
		t.Error(err)
	} else if _, err := os.Stat(p); err == nil {
		t.Error("the layer is there")
	}
	if es, err := os.ReadDir(filepath.Join(images.Dir(), "ingest")); err != nil || len(es) > 0 {
		t.Errorf("half written: %v, %v", es, err)
	}
}

// kill runs a transfer in a process of its own, until reached gets a value, and
// kills it.
func kill(t *testing.T, reached <-chan struct{}, args ...string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, append([]string{"transfer"}, args...)...)
	var out bytes.Buffer
	cmd.Stderr = bufio.NewWriter(&out)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-reached:
	case <-time.After(30 * time.Second):
		t.Errorf("%v never got there", args)
	}
	if err := errors.Join(cmd.Process.Kill(), ignoreExit(cmd.Wait())); err != nil {
		t.Errorf("%v: %v\n%s", args, err, &out)
	}
}

func ignoreExit(err error) error {
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return nil
	}
	return err
}

// TestAKillLeavesTheStoreWhole ends processes in the middle of a layer.
func TestAKillLeavesTheStoreWhole(t *testing.T) {
	reached := make(chan struct{}, 8)
	release := make(chan struct{})
	var stall atomic.Value
	stall.Store("")
	host := strict(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch s := stall.Load().(string); {
			case s == "pull" && r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/"):
				w = &stallingWriter{w, release}
			case s == "push" && r.Method == http.MethodPut && r.ContentLength > 1<<20:
				if _, err := io.CopyN(io.Discard, r.Body, 1000); err != nil {
					t.Error(err)
				}
				reached <- struct{}{}
				<-release
				panic(http.ErrAbortHandler)
			}
			h.ServeHTTP(w, r)
		})
	})
	f := setup(t)
	big, layer := bigImage(t, f.images, 8<<20)

	stall.Store("push")
	kill(t, reached, "push", f.Home, big.Digest.String(), host+"/kits/big:1")
	stall.Store("")
	if _, err := f.PullImage(t.Context(), host+"/kits/big:1"); !errors.Is(err, kiterr.ErrNotFound) {
		t.Errorf("a push that was killed has a name: %v", err)
	}
	if _, err := f.Push(t.Context(), big.Digest.String(), host+"/kits/big:1"); err != nil {
		t.Errorf("pushing again: %v", err)
	}

	home := t.TempDir()
	stall.Store("pull")
	go func() { // the process has bytes of the layer when its file has
		for t.Context().Err() == nil {
			halves, _ := filepath.Glob(filepath.Join(home, "images", "ingest", "*"))
			for _, p := range halves {
				if st, err := os.Stat(p); err == nil && st.Size() > 0 {
					reached <- struct{}{}
					return
				}
			}
			time.Sleep(time.Millisecond)
		}
	}()
	kill(t, reached, "pull", home, host+"/kits/big:1")
	stall.Store("")
	close(release)
	images, err := layout.Open(filepath.Join(home, "images"))
	if err != nil {
		t.Fatal(err)
	}
	if tags, err := images.Tags(); err != nil || len(tags) > 0 {
		t.Errorf("names: %v, %v", tags, err)
	}
	if ok, err := images.Exists(t.Context(), layer); ok || err != nil {
		t.Errorf("the layer: %t, %v", ok, err)
	}
	other := &fetch.Fetcher{Home: home}
	if d, err := other.PullImage(t.Context(), host+"/kits/big:1"); err != nil || d.Digest != big.Digest {
		t.Fatalf("pulling again: %v, %v", d, err)
	}
	rc, err := images.Fetch(t.Context(), layer)
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	if n, err := io.Copy(io.Discard, rc); err != nil || n != layer.Size {
		t.Errorf("%d bytes of %d, %v", n, layer.Size, err)
	}
	// What the killed one left goes with the next sweep.
	old := time.Now().Add(-3 * time.Hour)
	left, err := filepath.Glob(filepath.Join(images.Dir(), "ingest", "*"))
	if err != nil || len(left) == 0 {
		t.Errorf("the kill came too late: %v, %v", left, err)
	}
	for _, p := range left {
		if err := os.Chtimes(p, old, old); err != nil {
			t.Error(err)
		}
	}
	if _, _, err := images.Sweep(t.Context(), nil, time.Hour); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(images.Dir(), "ingest", "*")); err != nil || len(left) > 0 {
		t.Errorf("a sweep leaves %v, %v", left, err)
	}
}

// TestRefusalsOfRegistries are answers, and told as such.
func TestRefusalsOfRegistries(t *testing.T) {
	other := plainServer(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) })
	says := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			fmt.Fprint(w, "<html>\n<h1>no\x1b[2J</h1>")
		}
	}
	for what, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
		family error // nil: neither refused nor not found
	}{
		"401": {says(http.StatusUnauthorized), "docker login", kiterr.ErrNotFound}, "403": {says(http.StatusForbidden), "docker login", kiterr.ErrNotFound},
		"404": {says(http.StatusNotFound), "not found", kiterr.ErrNotFound},
		"429": {says(http.StatusTooManyRequests), "answers 429 Too Many Requests: wait a while", nil},
		"500": {says(http.StatusInternalServerError), "answers 500 Internal Server Error: try again later", nil},
		"503": {says(http.StatusServiceUnavailable), "answers 503 Service Unavailable: try again later", nil},
		"a page": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, "<html>\n<h1>Log in\x1b[2J</h1>")
		}, "a page (text/html) is answered", nil},
		"nothing": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "broke its answer off: try again", nil},
		// That somebody else knows nothing of a Kit does not mean that there is none.
		"a token service that is gone": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+other+`/token",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		}, "sends its clients to " + other + ", which answers 404 Not Found", nil},
		"a place that is gone": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://"+other+"/v2/a/b/manifests/1", http.StatusTemporaryRedirect)
		}, "sends its clients on, and " + other + " answers 404 Not Found", nil},
		"the place of a cloud's secrets": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/latest/meta-data", http.StatusTemporaryRedirect)
		}, "an address within this machine or its network segment", kiterr.ErrRefused},
		"the same of IPv6": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://[::ffff:169.254.169.254]/latest", http.StatusTemporaryRedirect)
		}, "an address within this machine or its network segment", kiterr.ErrRefused},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			host := plainServer(t, c.answer)
			home := t.TempDir()
			ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
			defer cancel()
			for _, ref := range []string{host + "/a/b:1"} {
				_, err := (&fetch.Fetcher{Home: home}).Fetch(ctx, ref, nil)
				for _, family := range []error{kiterr.ErrRefused, kiterr.ErrNotFound} {
					if errors.Is(err, family) != (family == c.family) {
						t.Errorf("%v is of the family %q: %v", err, family, errors.Is(err, family))
					}
				}
				if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), host) || strings.ContainsAny(err.Error(), "\n\x1b") {
					t.Errorf("%q", err)
				}
			}
		})
	}
}

// TestTLSIsNotLeft has a registry with TLS send its clients where there is none, and
// to their own machine: anybody on the way could answer for a tag.
func TestTLSIsNotLeft(t *testing.T) {
	plain := plainServer(t, func(w http.ResponseWriter, _ *http.Request) {
		t.Error("it was asked")
		w.WriteHeader(http.StatusNotFound)
	})
	_, port, err := net.SplitHostPort(plain)
	if err != nil {
		t.Fatal(err)
	}
	var to atomic.Value
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, to.Load().(string), http.StatusTemporaryRedirect)
	}))
	defer srv.Close()
	before := http.DefaultTransport
	trusting := srv.Client().Transport.(*http.Transport).Clone()
	trusting.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if strings.HasPrefix(addr, "example.com:") { // whom the certificate is for
			addr = srv.Listener.Addr().String()
		}
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	http.DefaultTransport = trusting
	defer func() { http.DefaultTransport = before }()
	for where, want := range map[string]string{
		"http://example.com/x":                   "without TLS",
		"http://" + plain + "/x":                 "without TLS",
		"https://127.0.0.1:" + port + "/x":       "an address within this machine",
		"https://localhost:" + port + "/x":       "an address within this machine",
		"https://[::1]:" + port + "/x":           "an address within this machine",
		"https://x.localhost.:" + port + "/x":    "an address within this machine",
		"https://169.254.169.254/latest/secrets": "an address within this machine",
	} {
		to.Store(where)
		_, err := (&fetch.Fetcher{Home: t.TempDir()}).Fetch(t.Context(), "example.com/a/b:1", nil)
		if err == nil || !errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "example.com") {
			t.Errorf("%s: %v, want %q", where, err, want)
		}
	}
}
