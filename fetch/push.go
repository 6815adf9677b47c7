package fetch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
	"oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/constraint"
)

// Lookup finds the image of the local store that ref names: a tag, with
// ":latest" if it states none, or a digest. It asks no registry.
func (f *Fetcher) Lookup(ctx context.Context, ref string) (ocispec.Descriptor, error) {
	images, err := f.images()
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	desc, err := named(ctx, images, ref)
	if err != nil {
		if errors.Is(err, kiterr.ErrNotFound) {
			return desc, fmt.Errorf("image %s is not in the local store: 'kitbox images' lists what is there: %w", ref, kiterr.ErrNotFound)
		}
		return desc, err
	}
	return desc, nil
}

// Push sends the image that ref names in the local store to the registry of
// target, with all its platforms, and names it there. Blobs that the registry
// has are not sent; those that another repository of the same registry has,
// among the Kits that a set lists, are mounted from there. The name comes last,
// so that a push that breaks off leaves what it stood for. It returns the digest
// of the root.
//
// The store has to have all documents of the image. A layer it lacks, as that of
// a set whose Kits were never pulled, comes from a Kit the set lists.
func (f *Fetcher) Push(ctx context.Context, ref, target string) (digest.Digest, error) {
	root, err := f.Lookup(ctx, ref)
	if err != nil {
		return "", err
	}
	images, err := f.images()
	if err != nil {
		return "", err
	}
	host, ok := registryHost(target)
	r, perr := registry.ParseReference(target)
	switch {
	case !ok || host == LocalDomain:
		return "", fmt.Errorf("%s names no registry to push to: write 'kitbox push %s as HOST/NAME:TAG': %w", target, ref, kiterr.ErrRefused)
	case perr != nil:
		return "", fmt.Errorf("%s is not a valid reference: %w: %w", target, perr, kiterr.ErrRefused)
	}
	if r.Reference == "" {
		r.Reference = "latest"
	}
	if r.ValidateReferenceAsDigest() == nil && r.Reference != root.Digest.String() {
		return "", fmt.Errorf("%s names another digest than that of %s, %s: push to a tag: %w", target, ref, root.Digest, kiterr.ErrRefused)
	}
	if err := f.publishable(ctx, images, root, ref, target); err != nil {
		return "", err
	}
	repo, err := f.repository(r)
	if err != nil {
		return "", err
	}
	p := &pusher{f: f, images: images, repo: repo, name: target, sent: map[digest.Digest]bool{}}
	if err := p.image(ctx, root, true); err != nil {
		return "", p.explain(err)
	}
	return root.Digest, nil
}

// publishable refuses a set that nobody else could resolve, and a name that is in
// the set that would get it, or below a set in it.
func (f *Fetcher) publishable(ctx context.Context, images *layout.Store, root ocispec.Descriptor, ref, target string) error {
	descriptors, err := layout.ReadAnnotations(ctx, images, root, Annotation)
	if errors.Is(err, kiterr.ErrNotFound) {
		return nil // what the store lacks is said below, in its place
	}
	if err != nil {
		return fmt.Errorf("image %s: %w", ref, err)
	}
	name, err := constraint.ParseImage(target)
	if err != nil {
		return fmt.Errorf("%w: %w", err, kiterr.ErrRefused)
	}
	var kits []Listed
	for _, d := range descriptors { // not each is that of this machine's platform
		kits = append(kits, listed(d)...)
	}
	for _, k := range kits {
		img, err := constraint.ParseImage(k.Ref)
		switch {
		case err != nil:
			return fmt.Errorf("set %s lists %q: %w: %w", ref, k.Ref, err, kiterr.ErrRefused)
		case strings.HasPrefix(img.Repository, LocalDomain+"/"):
			return fmt.Errorf("set %s lists %s, which only this machine has: push that, list the name it has then, and build the set again [SPEC-v3 §3.4/kit-published-reference]: %w", ref, k.Ref, kiterr.ErrRefused)
		case img.Key() == name.Key():
			return fmt.Errorf("set %s lists %s, so that %s would be in itself: push it under another name: %w", ref, k.Ref, target, kiterr.ErrRefused)
		}
	}
	if err := f.Acyclic(ctx, target, kits); err != nil {
		return fmt.Errorf("pushing %s: %w", ref, err)
	}
	return nil
}

// A pusher is one push.
type pusher struct {
	f      *Fetcher
	images *layout.Store
	repo   *remote.Repository
	name   string
	sent   map[digest.Digest]bool // manifests of this push
}

// image pushes what d leads to, children first, and d under the name if it is
// the root.
func (p *pusher) image(ctx context.Context, d ocispec.Descriptor, root bool) error {
	if p.sent[d.Digest] {
		return nil
	}
	p.sent[d.Digest] = true
	doc, err := p.images.Document(ctx, d)
	if errors.Is(err, kiterr.ErrNotFound) {
		return fmt.Errorf("the local store lacks %s of %s: it was pulled for one platform only: push from where all of it is: %w", d.Digest, p.name, kiterr.ErrRefused)
	}
	if err != nil {
		return err
	}
	switch {
	case layout.IsIndex(d.MediaType):
		var idx ocispec.Index
		if err := json.Unmarshal(doc, &idx); err != nil {
			return fmt.Errorf("index %s: %w", d.Digest, err)
		}
		for _, m := range idx.Manifests {
			if err := p.image(ctx, m, false); err != nil {
				return err
			}
		}
	case layout.IsManifest(d.MediaType):
		var m ocispec.Manifest
		if err := json.Unmarshal(doc, &m); err != nil {
			return fmt.Errorf("manifest %s: %w", d.Digest, err)
		}
		from := origins(m.Annotations[Annotation])
		g, gctx := errgroup.WithContext(ctx)
		g.SetLimit(pulls)
		for _, b := range append([]ocispec.Descriptor{m.Config}, m.Layers...) {
			g.Go(func() error { return p.blob(gctx, b, from) })
		}
		if err := g.Wait(); err != nil {
			return err
		}
	default:
		return fmt.Errorf("%s has media type %q, which is not an image: %w", d.Digest, d.MediaType, kiterr.ErrRefused)
	}
	if root {
		return p.repo.PushReference(ctx, d, bytes.NewReader(doc), p.repo.Reference.Reference)
	}
	if ok, err := p.repo.Exists(ctx, d); err != nil || ok {
		return err
	}
	return p.repo.Push(ctx, d, bytes.NewReader(doc))
}

// blob makes the registry have a blob, by the cheapest way there is.
func (p *pusher) blob(ctx context.Context, d ocispec.Descriptor, from []registry.Reference) error {
	if ok, err := p.repo.Blobs().Exists(ctx, d); err != nil || ok {
		return err
	}
	for _, o := range from {
		if o.Registry != p.repo.Reference.Registry || o.Repository == p.repo.Reference.Repository {
			continue
		}
		there, err := p.f.repository(o)
		if err != nil {
			return err
		}
		if ok, err := there.Blobs().Exists(ctx, d); err != nil || !ok {
			continue // no right to look is no reason to give up
		}
		return p.mount(ctx, d, there)
	}
	p.f.note("pushing %s (%.1f MB)", d.Digest, float64(d.Size)/1e6)
	send := func(r io.Reader) error { return p.repo.Blobs().Push(ctx, d, r) }
	rc, err := p.images.Fetch(ctx, d)
	if errors.Is(err, kiterr.ErrNotFound) {
		return p.f.fromOrigins(ctx, d, from, func(r io.Reader, at string) error { return verified(r, d, at, send) })
	}
	if err != nil {
		return err
	}
	defer rc.Close()
	return verified(rc, d, "the local store", send)
}

// mount lets the registry take a blob over from its repository there. One that
// does not do that is sent it.
func (p *pusher) mount(ctx context.Context, d ocispec.Descriptor, there *remote.Repository) error {
	var sent *verifier
	err := p.repo.Mount(ctx, d, there.Reference.Repository, func() (io.ReadCloser, error) {
		rc, err := p.content(ctx, d, there)
		if err != nil {
			return nil, err
		}
		if sent, err = newVerifier(rc, d, there.Reference.Registry+"/"+there.Reference.Repository); err != nil {
			rc.Close()
			return nil, err
		}
		return struct {
			io.Reader
			io.Closer
		}{sent, rc}, nil
	})
	if sent != nil {
		if wrong := sent.wrong(); wrong != nil {
			return wrong
		}
	}
	return err
}

// content opens a blob in the store, else there.
func (p *pusher) content(ctx context.Context, d ocispec.Descriptor, there *remote.Repository) (io.ReadCloser, error) {
	rc, err := p.images.Fetch(ctx, d)
	if errors.Is(err, kiterr.ErrNotFound) {
		return openBlob(ctx, there, d)
	}
	return rc, err
}

// fromOrigins reads a blob that the store lacks from the first of the
// repositories that has it. Use is told which one that is, and verifies what it
// gets.
func (f *Fetcher) fromOrigins(ctx context.Context, d ocispec.Descriptor, from []registry.Reference, use func(r io.Reader, at string) error) error {
	err := fmt.Errorf("blob %s: %w in the local store", d.Digest, kiterr.ErrNotFound)
	for _, o := range from {
		where, serr := f.sites(o)
		if serr != nil {
			return serr
		}
		berr := blob(ctx, where, d, func(r io.Reader) error { return use(r, o.String()) })
		if berr == nil || ctx.Err() != nil {
			return berr
		}
		err = explainRemote(o.String(), o, berr)
	}
	return err
}

// listed returns the Kits that a set's descriptor lists. Other descriptors list
// none, nor does what is no descriptor, which nobody takes for a set. Publishers
// write JSON, and may write YAML (§9.3).
func listed(descriptor string) []Listed {
	var d struct {
		Kits []struct {
			Ref    string `json:"ref"`
			Digest string `json:"digest"`
		} `json:"kits"`
	}
	var out []Listed
	if json.Unmarshal([]byte(descriptor), &d) == nil {
		for _, k := range d.Kits {
			out = append(out, Listed{Ref: k.Ref, Digest: k.Digest})
		}
	} else if doc, err := spec.DecodePublished([]byte(descriptor)); err == nil {
		for _, k := range doc.Kits {
			out = append(out, Listed{Ref: k.Ref, Digest: k.Digest})
		}
	}
	return out
}

// origins returns where the Kits come from that a set's descriptor lists.
func origins(descriptor string) []registry.Reference {
	var out []registry.Reference
	for _, k := range listed(descriptor) {
		img, err := constraint.ParseImage(k.Ref)
		if err != nil || strings.HasPrefix(img.Repository, LocalDomain+"/") {
			continue
		}
		if r, err := registry.ParseReference(img.Repository); err == nil {
			out = append(out, r)
		}
	}
	return out
}

// explain puts an error of a push into one line that says what to do.
func (p *pusher) explain(err error) error {
	host := p.repo.Reference.Registry
	var resp *errcode.ErrorResponse
	var op *net.OpError
	var wrong *contentError
	switch {
	case errors.As(err, &wrong):
		return fmt.Errorf("pushing %s: %w", p.name, wrong)
	case errors.Is(err, context.Canceled), errors.Is(err, kiterr.ErrRefused), errors.Is(err, kiterr.ErrUnavailable):
		return err
	case errors.Is(err, auth.ErrBasicCredentialNotFound), errors.As(err, &resp) && (resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden):
		return fmt.Errorf("pushing %s: registry %s denies it: log in with 'docker login %s' or 'kitbox secret set --registry %s' as somebody who may write there", p.name, host, host, host)
	case errors.As(err, &op):
		return fmt.Errorf("pushing %s: registry %s cannot be reached: %v", p.name, host, op)
	case resp != nil && (resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= http.StatusInternalServerError):
		return fmt.Errorf("pushing %s: registry %s answers %s: wait a while and push again; what it has got is not sent again", p.name, host, status(resp))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("pushing %s: registry %s broke the connection off: push again; what it has got is not sent again", p.name, host)
	}
	return fmt.Errorf("pushing %s: %s", p.name, strings.ReplaceAll(err.Error(), "\n", "; "))
}
