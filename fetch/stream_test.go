package fetch

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry"
)

func TestARegistryThatFallsSilentIsLeft(t *testing.T) {
	release := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/down":
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, "some")
			w.(http.Flusher).Flush()
		case "/up": // headers were read, the body is not
		}
		<-release
	}))
	defer s.Close()
	defer close(release)
	c := &http.Client{Transport: idleTransport{http.DefaultTransport.(*http.Transport).Clone(), 50 * time.Millisecond}}
	resp, err := c.Get(s.URL + "/down")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); !errors.Is(err, errStalled) || string(b) != "some" {
		t.Errorf("down: %q, %v", b, err)
	}
	big := io.LimitReader(neverEnding{}, 64<<20) // more than the buffers between us
	resp, err = c.Post(s.URL+"/up", "application/octet-stream", big)
	if err == nil {
		resp.Body.Close()
	}
	if !errors.Is(err, errStalled) {
		t.Errorf("up: %v", err)
	}
}

type neverEnding struct{}

func (neverEnding) Read(p []byte) (int, error) { return len(p), nil }

// TestALayerGoesOnWhereItBrokeOff cuts the connection several times.
func TestALayerGoesOnWhereItBrokeOff(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	data := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	desc := ocispec.Descriptor{Digest: digest.FromBytes(data), Size: int64(len(data))}
	const cut = 300 << 10
	for what, ranges := range map[string]bool{"with ranges": true, "without": false} {
		var requests, ranged atomic.Int64
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n := requests.Add(1)
			if r.Header.Get("Range") != "" {
				ranged.Add(1)
			}
			limit := int64(cut) * n // without ranges, each connection has to come further
			if ranges {
				limit = cut
			}
			cw := &cutWriter{ResponseWriter: w, left: limit}
			if ranges {
				http.ServeContent(cw, r, "", time.Time{}, bytes.NewReader(data))
			} else {
				w.Header().Set("Content-Length", "1048576")
				io.Copy(cw, bytes.NewReader(data))
			}
			if cw.left <= 0 {
				panic(http.ErrAbortHandler)
			}
		}))
		repo, err := (&Fetcher{}).repository(registry.Reference{Registry: strings.TrimPrefix(s.URL, "http://"), Repository: "a/b"})
		if err != nil {
			t.Fatal(err)
		}
		b, err := openBlob(t.Context(), repo, desc)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(b)
		if err != nil || digest.FromBytes(got) != desc.Digest {
			t.Errorf("%s: %d bytes, %v", what, len(got), err)
		}
		if requests.Load() < 4 || (ranged.Load() > 0) != ranges {
			t.Errorf("%s: %d requests, %d of them for a range", what, requests.Load(), ranged.Load())
		}
		b.Close()
		s.Close()
	}
}

// A cutWriter ends the connection after so many bytes.
type cutWriter struct {
	http.ResponseWriter
	left int64
}

func (c *cutWriter) Write(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, io.ErrClosedPipe
	}
	p = p[:min(int64(len(p)), c.left)]
	n, err := c.ResponseWriter.Write(p)
	c.left -= int64(n)
	if c.left <= 0 {
		c.ResponseWriter.(http.Flusher).Flush()
	}
	return n, err
}

// TestALayerThatNeverComesIsGivenUp within the tries.
func TestALayerThatNeverComesIsGivenUp(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	var requests atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		w.Header().Set("Content-Length", "10")
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer s.Close()
	repo, err := (&Fetcher{}).repository(registry.Reference{Registry: strings.TrimPrefix(s.URL, "http://"), Repository: "a/b"})
	if err != nil {
		t.Fatal(err)
	}
	b, err := openBlob(t.Context(), repo, ocispec.Descriptor{Digest: digest.FromString("x"), Size: 10})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if n, err := io.Copy(io.Discard, b); err == nil || n > 0 || requests.Load() != tries+1 {
		t.Errorf("%d bytes, %v, %d requests", n, err, requests.Load())
	}
}
