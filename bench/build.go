package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/engine/kittest"
)

// What building may take, from the start of the process.
const (
	builtBar    = 300 * time.Millisecond // an unchanged Kit while the builder is up, and a set of three
	startingBar = 600 * time.Millisecond // an unchanged Kit when the builder has to start
)

const (
	buildBase   = "kitbox.local/bench-base:1"
	buildRecipe = "FROM " + buildBase + "\nUSER root\nRUN echo built >/built\nCOPY files /opt/files\nENTRYPOINT [\"/bin/sh\"]\n"
)

// building builds a Kit of which nothing has changed: as it is, without the record
// that kitbox keeps of it, so that the builder is asked, and with a builder that has
// to start first. The peer is a stock client that asks the same builder, which runs,
// for the same recipe, of which it has every step. Then it publishes a set of three
// Kits of one registry, for which the peer copies their layers.
func building(ctx context.Context, o options, f *fixture, r *report) (err error) {
	buildctl := filepath.Join(f.programs, "tools", "buildctl")
	if _, err := os.Stat(buildctl); err != nil {
		return fmt.Errorf("%w: run scripts/tools first", err)
	}
	if err := kittest.Push(ctx, f.home, kittest.Kit{Ref: buildBase, Descriptor: `{"schemaVersion":"3","kind":"workload"}`, Base: true, Config: ocispec.ImageConfig{Entrypoint: []string{"/bin/sh"}}}); err != nil {
		return err
	}
	dir := filepath.Join(f.home, "sources", "built")
	if err := os.MkdirAll(filepath.Join(dir, "files"), 0o755); err != nil {
		return err
	}
	for name, text := range map[string]string{"built.yaml": "schemaVersion: \"3\"\nkind: workload\nprovides: [built@1.0.0]\n", "built.dockerfile": buildRecipe} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	for i := range 200 {
		if err := os.WriteFile(filepath.Join(dir, "files", fmt.Sprint(i)), fmt.Appendf(nil, "%04096d", i), 0o644); err != nil {
			return err
		}
	}
	base, err := (&fetch.Fetcher{Home: f.home}).Lookup(ctx, buildBase)
	if err != nil {
		return err
	}
	w, err := newStopwatch()
	if err != nil {
		return err
	}
	stop := func() error {
		out, err := exec.Command(filepath.Join(f.programs, "kit-builder"), "stop").CombinedOutput()
		if err != nil {
			return fmt.Errorf("kit-builder stop: %w: %s", err, out)
		}
		return nil
	}
	defer func() { err = errors.Join(err, stop()) }()
	kitbox := func() error { return f.kitbox("build", "-q", dir) }
	forgotten := func() error { // the record, not the image
		records, err := filepath.Glob(filepath.Join(f.home, "builds", "*.json"))
		for _, p := range records {
			err = errors.Join(err, os.Remove(p))
		}
		return err
	}
	stock := func() error {
		cmd := exec.Command(buildctl, "--addr", "unix://"+filepath.Join(f.home, "builder", "builder.sock"), "build", "--frontend", "dockerfile.v0",
			"--local", "context="+dir, "--local", "dockerfile="+dir, "--opt", "filename=built.dockerfile", "--opt", "force-network-mode=none",
			"--oci-layout", "store="+filepath.Join(f.home, "images"), "--opt", "context:"+buildBase+"=oci-layout://store@"+base.Digest.String(),
			"--output", "type=oci,tar=false,dest="+filepath.Join(f.home, "stock"))
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("buildctl: %w: %s", err, out)
		}
		return nil
	}
	if _, err := w.keep(kitbox); err != nil { // for the first time, with all its steps
		return err
	}
	if err := stock(); err != nil {
		return err
	}
	var recorded, asked, started, theirs series
	for range o.rounds {
		one, err := w.time(kitbox)
		if err != nil {
			return err
		}
		if err := forgotten(); err != nil {
			return err
		}
		two, err := w.time(kitbox)
		if err != nil {
			return err
		}
		peer, err := w.time(stock)
		if err != nil {
			return err
		}
		// The builder that ends is charged to nobody.
		if err := errors.Join(stop(), w.settle(), forgotten()); err != nil {
			return err
		}
		three, err := w.keep(kitbox)
		if err != nil {
			return err
		}
		recorded, asked, started, theirs = append(recorded, one), append(asked, two), append(started, three), append(theirs, peer)
	}
	const peer = "buildctl of its recipe, builder up"
	for _, m := range []struct {
		what string
		s    series
		bar  time.Duration
	}{
		{"`kitbox build` of an unchanged Kit", recorded, builtBar},
		{"the same without its record, builder up", asked, builtBar},
		{"the same without its record, builder to start", started, startingBar},
	} {
		l := compared(m.what, peer, m.s, theirs, 0, 0)
		l.bar, l.ok = "≤ "+show(m.bar), verdict(median(m.s.walls()) <= m.bar)
		r.add(l)
	}
	return publishing(ctx, o, f, r, w)
}

// A counter counts the bytes of layers that a registry sends and gets.
type counter struct {
	http.Handler
	mu     sync.Mutex
	layers map[string]bool // digests; guarded by mu
	moved  atomic.Int64
}

func (c *counter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	if d := r.URL.Query().Get("digest"); d != "" {
		name = d
	}
	c.mu.Lock()
	is := c.layers[name]
	c.mu.Unlock()
	if is && (r.Method == http.MethodGet || r.Method == http.MethodPut || r.Method == http.MethodPatch) {
		c.moved.Add(max(r.ContentLength, 1))
	}
	c.Handler.ServeHTTP(w, r)
}

// publishing builds and pushes a set to a repository that is new in each round.
func publishing(ctx context.Context, o options, f *fixture, r *report, w *stopwatch) error {
	c := &counter{Handler: registry.New(registry.Logger(log.New(io.Discard, "", 0))), layers: map[string]bool{}}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: c, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan struct{})
	go func() { defer close(served); _ = srv.Serve(ln) }()
	defer func() { srv.Close(); <-served }()
	host := ln.Addr().String()

	var list strings.Builder
	var layers []string
	fetcher := &fetch.Fetcher{Home: f.home}
	for i, kind := range []string{"workload", "mixin", "mixin"} {
		name := fmt.Sprintf("part%d", i)
		k := kittest.Kit{Ref: "kitbox.local/" + name + ":1", Base: kind == "workload", Descriptor: fmt.Sprintf(`{"schemaVersion":"3","kind":%q,"provides":["%s@1"]}`, kind, name),
			Config: ocispec.ImageConfig{Entrypoint: []string{"/bin/sh"}},
			Files:  map[string]kittest.File{"/opt/" + name: {Content: strings.Repeat(fmt.Sprintf("%d line\n", i), 1<<20)}}}
		if err := kittest.Push(ctx, f.home, k); err != nil {
			return err
		}
		ref := host + "/kits/" + name + ":1"
		if err := f.kitbox("push", "-q", k.Ref, "as", ref); err != nil {
			return err
		}
		kit, err := fetcher.Fetch(ctx, k.Ref, nil)
		if err != nil {
			return err
		}
		for _, l := range kit.Layers {
			c.layers[l.Blob.Digest.String()] = true
			layers = append(layers, filepath.Join(f.home, "images", "blobs", "sha256", l.Blob.Digest.Encoded()))
		}
		fmt.Fprintf(&list, "  - ref: %s\n", ref)
	}
	dir := filepath.Join(f.home, "sources", "team")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "team.yaml"), []byte("schemaVersion: \"3\"\nkind: set\nversion: \"1.0.0\"\nprovides: [team]\nkits:\n"+list.String()), 0o644); err != nil {
		return err
	}
	var ours, theirs series
	c.moved.Store(0)
	for i := range o.rounds {
		s, err := w.time(func() error {
			return f.kitbox("build", "-q", "--push", "-t", fmt.Sprintf("%s/team%d/team:1", host, i), dir)
		})
		if err != nil {
			return err
		}
		ours = append(ours, s)
		to := filepath.Join(f.home, fmt.Sprint("layers", i))
		s, err = w.time(func() error {
			if err := os.Mkdir(to, 0o755); err != nil {
				return err
			}
			if out, err := exec.Command("cp", append(layers[:len(layers):len(layers)], to)...).CombinedOutput(); err != nil {
				return fmt.Errorf("cp: %w: %s", err, out)
			}
			return nil
		})
		if err != nil {
			return err
		}
		theirs = append(theirs, s)
		if err := os.RemoveAll(to); err != nil {
			return err
		}
	}
	l := compared(fmt.Sprintf("a set of three Kits of one registry, assembled and pushed: %d bytes of layers moved", c.moved.Load()), "`cp` of its layers", ours, theirs, 0, 0)
	l.bar, l.ok = "≤ "+show(builtBar)+", 0 bytes", verdict(median(ours.walls()) <= builtBar && c.moved.Load() == 0)
	r.add(l)
	return nil
}
