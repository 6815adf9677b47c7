package builder

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moby/buildkit/client"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/frontend"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// basesID is the name that the store of the home has in a build's session.
const basesID = "bases"

// A provider gets the images that a recipe needs from registries as everything
// else of registries is got: with mirrors, docker's logins, retries and the
// store, and as the pull policy says. BuildKit's own way knows none of these.
type provider struct {
	r       *Request
	tell    chan<- *client.SolveStatus
	stopped <-chan struct{} // nobody is told any more

	mu    sync.Mutex
	bases []fetch.Base // guarded by mu
}

func newProvider(r *Request, tell chan<- *client.SolveStatus, stopped <-chan struct{}) *provider {
	return &provider{r: r, tell: tell, stopped: stopped}
}

// imageDir is the store of the home.
func (r *Request) imageDir() string { return filepath.Join(r.Home, "images") }

// used are the images of registries that were provided.
func (p *provider) used() []fetch.Base {
	p.mu.Lock()
	defer p.mu.Unlock()
	slices.SortFunc(p.bases, func(a, b fetch.Base) int { return strings.Compare(a.Ref, b.Ref) })
	return slices.Compact(p.bases)
}

// provide implements [frontend.Builder.Images].
func (p *provider) provide(ctx context.Context, im frontend.Image) (string, error) {
	name := layout.PlatformName(im.Platform)
	for _, n := range p.r.Contexts {
		if strings.TrimSuffix(n.Name, ":latest") == im.Name() {
			// It is one of the options already.
			return "", has(ctx, n.Layout, n.Digest, im)
		}
	}
	if strings.HasPrefix(im.Ref, LocalDomain+"/") {
		return "", nil // which is not there; BuildKit finds that out
	}
	note, end := p.step(ctx, "[kit] get image "+im.Ref+" for "+name)
	f := &fetch.Fetcher{Home: p.r.Home, Platform: im.Platform, Policy: p.r.Pull, Notice: note}
	root, err := f.Image(ctx, im.Ref)
	end(err)
	if err != nil {
		return "", p.failure(im, err)
	}
	if err := has(ctx, p.r.imageDir(), root.Digest, im); err != nil {
		return "", err
	}
	p.mu.Lock()
	p.bases = append(p.bases, fetch.Base{Ref: im.Ref, Digest: root.Digest})
	p.mu.Unlock()
	return "oci-layout://" + basesID + "@" + root.Digest.String(), nil
}

func (p *provider) failure(im frontend.Image, err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	e := &baseError{text: fmt.Sprintf("image %s: %s", im.Ref, strings.TrimPrefix(strings.TrimPrefix(err.Error(), "kit "), im.Ref+": ")), cause: err}
	if errors.Is(err, kiterr.ErrNotFound) && p.r.Pull != fetch.Never {
		e.next = fmt.Sprintf("check its name and the registry, or start from %s/base:1 (kitbox base create)", LocalDomain)
	}
	return e
}

// A baseError is about an image that a recipe needs.
type baseError struct {
	text  string
	next  string // what to do about it; may be empty
	cause error
}

func (e *baseError) Error() string { return e.text }
func (e *baseError) Unwrap() error { return e.cause }

// has refuses an image of another platform than is needed: BuildKit takes an image
// that there is only one of, whatever it is for.
func has(ctx context.Context, dir string, d digest.Digest, im frontend.Image) error {
	images, err := layout.OpenExisting(dir)
	if err != nil {
		return err
	}
	desc, err := images.Describe(ctx, d)
	if err != nil {
		return err
	}
	want := layout.PlatformName(im.Platform)
	got, err := images.Image(ctx, desc, im.Platform)
	switch {
	case errors.Is(err, kiterr.ErrNotFound) && layout.IsIndex(desc.MediaType):
		return &baseError{text: fmt.Sprintf("image %s has nothing for %s: %v", im.Ref, want, err), cause: kiterr.ErrNotFound}
	case err != nil:
		return err
	}
	if c := got.Config; c.OS != "" && c.Architecture != "" && (c.OS != im.Platform.OS || c.Architecture != im.Platform.Architecture) {
		have := layout.PlatformName(ocispec.Platform{OS: c.OS, Architecture: c.Architecture})
		return &baseError{text: fmt.Sprintf("image %s is for %s, and %s is needed", im.Ref, have, want), next: "name one that has it, or build for " + have + " alone", cause: kiterr.ErrRefused}
	}
	return nil
}

// step shows something that this process does as a step of the build, with lines
// of its own, until end is called.
func (p *provider) step(ctx context.Context, name string) (note func(string), end func(error)) {
	start := time.Now()
	v := client.Vertex{Digest: digest.FromString(name), Name: name, Started: &start}
	send := func(s *client.SolveStatus) {
		select {
		case p.tell <- s:
		case <-p.stopped:
		case <-ctx.Done():
		}
	}
	send(&client.SolveStatus{Vertexes: []*client.Vertex{&v}})
	note = func(line string) {
		send(&client.SolveStatus{Logs: []*client.VertexLog{{Vertex: v.Digest, Stream: 2, Data: []byte(line + "\n"), Timestamp: time.Now()}}})
	}
	return note, func(err error) {
		done, now := v, time.Now()
		done.Completed = &now
		if err != nil {
			done.Error = err.Error()
		}
		send(&client.SolveStatus{Vertexes: []*client.Vertex{&done}})
	}
}
