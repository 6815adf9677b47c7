package artifact

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/content/oci"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"
	"oras.land/oras-go/v2/registry/remote/retry"

	"github.com/kitbox-dev/kitbox/tck/artifact/rule"
	"github.com/kitbox-dev/kitbox/tck/artifact/tree"
)

// Options say where an artifact is and what of it is judged.
type Options struct {
	Layout    string // an OCI image layout directory; empty: a registry
	PlainHTTP bool   // for a registry that is not on this machine; there it is the rule
	Platform  string // os/arch or os/arch/variant; empty: all
	Kits      bool   // read the manifests of the Kits that a set lists, from their registries
}

const (
	// maxDocument bounds manifests, indexes and configs, in bytes.
	maxDocument = 4 << 20

	// maxImages and maxLayers bound what one artifact may consist of. A
	// registry's own limit on manifests allows for many more than anybody has.
	maxImages = 64
	maxLayers = 1000
)

// The media types of docker, which name the same documents.
const (
	dockerIndex    = "application/vnd.docker.distribution.manifest.list.v2+json"
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerConfig   = "application/vnd.docker.container.image.v1+json"
	dockerLayer    = "application/vnd.docker.image.rootfs.diff.tar"
)

// An Artifact is what a reference stands for: its documents are read, its layers
// wait.
type Artifact struct {
	Ref    string
	Root   ocispec.Descriptor
	Index  *ocispec.Index // nil for a single manifest
	Images []Image        // those that are judged, in the order of the index

	// Partial means that the index has platforms that are not judged.
	Partial bool

	blobs    content.Fetcher
	options  Options
	unpacked int64 // bytes of all layers read so far
	stored   int64 // the same, as they are stored
}

// An Image is one platform's.
type Image struct {
	Platform   string // as the config states it
	Descriptor ocispec.Descriptor
	Manifest   ocispec.Manifest
	Config     ocispec.Image
}

// Open reads the documents of ref. Every error means that the artifact cannot be
// judged.
func Open(ctx context.Context, ref string, o Options) (*Artifact, error) {
	blobs, root, err := locate(ctx, ref, o)
	if err != nil {
		return nil, err
	}
	a := &Artifact{Ref: ref, Root: root, blobs: blobs, options: o}
	switch root.MediaType {
	case ocispec.MediaTypeImageIndex, dockerIndex:
		a.Index = new(ocispec.Index)
		if err := document(ctx, blobs, root, a.Index); err != nil {
			return nil, err
		}
		for _, d := range a.Index.Manifests {
			if d.Annotations["vnd.docker.reference.type"] != "" { // an attestation of another entry
				continue
			}
			if o.Platform != "" && (d.Platform == nil || !rule.SamePlatform(platformName(d.Platform.OS, d.Platform.Architecture, d.Platform.Variant), o.Platform)) {
				a.Partial = true
				continue
			}
			if len(a.Images) == maxImages {
				return nil, fmt.Errorf("%s has more than %d images; judge it platform by platform, with --platform", ref, maxImages)
			}
			if err := a.image(ctx, d); err != nil {
				return nil, err
			}
		}
		if len(a.Images) == 0 {
			return nil, fmt.Errorf("%s has no image for platform %q", ref, o.Platform)
		}
	case ocispec.MediaTypeImageManifest, dockerManifest:
		if err := a.image(ctx, root); err != nil {
			return nil, err
		}
		if p := a.Images[0].Platform; o.Platform != "" && !rule.SamePlatform(p, o.Platform) {
			return nil, fmt.Errorf("%s is for %s, not for %s", ref, p, o.Platform)
		}
	default:
		return nil, fmt.Errorf("%s has media type %q, which is neither an image nor an index", ref, root.MediaType)
	}
	return a, nil
}

func (a *Artifact) image(ctx context.Context, d ocispec.Descriptor) error {
	im := Image{Descriptor: d}
	if err := document(ctx, a.blobs, d, &im.Manifest); err != nil {
		return err
	}
	if n := len(im.Manifest.Layers); n > maxLayers {
		return fmt.Errorf("manifest %s has %d layers, the limit is %d", d.Digest, n, maxLayers)
	}
	if err := document(ctx, a.blobs, im.Manifest.Config, &im.Config); err != nil {
		return err
	}
	im.Platform = platformName(im.Config.OS, im.Config.Architecture, im.Config.Variant)
	a.Images = append(a.Images, im)
	return nil
}

func platformName(os, arch, variant string) string {
	s := os + "/" + arch
	if variant != "" {
		s += "/" + variant
	}
	return s
}

// locate finds what ref stands for.
func locate(ctx context.Context, ref string, o Options) (content.Fetcher, ocispec.Descriptor, error) {
	if o.Layout != "" {
		store, err := oci.NewFromFS(ctx, os.DirFS(o.Layout))
		if err != nil {
			return nil, ocispec.Descriptor{}, fmt.Errorf("layout %s: %w", o.Layout, err)
		}
		d, err := store.Resolve(ctx, ref)
		if err != nil {
			return nil, d, fmt.Errorf("layout %s: %s: %w", o.Layout, ref, err)
		}
		return store, d, nil
	}
	r, err := registry.ParseReference(ref)
	if err != nil {
		return nil, ocispec.Descriptor{}, err
	}
	if r.Reference == "" {
		r.Reference = "latest"
	}
	client := &auth.Client{Client: &http.Client{Transport: retry.NewTransport(patient{http.DefaultTransport})}, Cache: auth.NewCache()}
	client.SetUserAgent("kit-tck")
	logins, err := credentials.NewStoreFromDocker(credentials.StoreOptions{})
	if err != nil {
		return nil, ocispec.Descriptor{}, fmt.Errorf("reading docker's logins: %w", err)
	}
	client.Credential = credentials.Credential(logins)
	repo := &remote.Repository{Reference: r, Client: client, PlainHTTP: o.PlainHTTP || onLoopback(r.Registry), MaxMetadataBytes: maxDocument}
	d, err := repo.Resolve(ctx, r.Reference)
	if errors.Is(err, auth.ErrBasicCredentialNotFound) {
		return nil, d, fmt.Errorf("%s: %s wants a login, and docker's configuration has none: docker login %s", ref, r.Registry, r.Registry)
	}
	if err != nil {
		return nil, d, fmt.Errorf("%s: %w", ref, err)
	}
	return repo, d, nil
}

func onLoopback(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// document reads a JSON document, verified.
func document(ctx context.Context, blobs content.Fetcher, d ocispec.Descriptor, v any) error {
	if d.Size > maxDocument {
		return fmt.Errorf("document %s has %d bytes, the limit is %d", d.Digest, d.Size, maxDocument)
	}
	b, err := content.FetchAll(ctx, blobs, d)
	if err != nil {
		return fmt.Errorf("document %s: %w", d.Digest, err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("document %s: %w", d.Digest, err)
	}
	return nil
}

// errContent means that a layer is not what its descriptor says, or no tar: the
// artifact's fault, as opposed to that of the way to it.
var errContent = errors.New("the content is not what the manifest states")

// A source remembers why reading failed, so that a connection that breaks is
// told from bytes that are wrong.
type source struct {
	r    io.Reader
	err  error
	read *int64 // bytes, added up
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	*s.read += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// An unpacked says what a layer came to.
type unpacked struct {
	id      digest.Digest // of its tar
	packing packing
}

// layer hands the uncompressed tar of a layer to use.
func (a *Artifact) layer(ctx context.Context, d ocispec.Descriptor, use func(io.Reader) error) (out unpacked, err error) {
	if err := d.Digest.Validate(); err != nil {
		return out, fmt.Errorf("layer %s: %w: %w", d.Digest, errContent, err)
	}
	rc, err := a.blobs.Fetch(ctx, d)
	switch {
	case errors.Is(err, errdef.ErrNotFound):
		return out, fmt.Errorf("layer %s: is not there: %w", d.Digest, errContent)
	case err != nil:
		return out, fmt.Errorf("layer %s: %w", d.Digest, err)
	}
	defer rc.Close()
	raw := &source{r: rc, read: &a.stored}
	sum := digest.SHA256.Digester()
	err = func() error {
		verified := content.NewVerifyReader(raw, d)
		tarball, how, done, err := decompress(verified)
		if err != nil {
			return err
		}
		defer done()
		out.packing = how
		left := &budget{tarball, &a.unpacked, &a.stored}
		tee := io.TeeReader(left, sum.Hash())
		if err := use(tee); err != nil {
			return err
		}
		for _, r := range []io.Reader{tee, verified} { // what is behind the tar counts
			if _, err := io.Copy(io.Discard, r); err != nil {
				return err
			}
		}
		return verified.Verify()
	}()
	switch {
	case err == nil:
		out.id = sum.Digest()
		return out, nil
	case raw.err == nil && ctx.Err() == nil && !errors.Is(err, tree.ErrTooLarge) && !errors.Is(err, errBudget) && !errors.Is(err, errRatio):
		return out, fmt.Errorf("layer %s: %w: %w", d.Digest, errContent, err)
	}
	return out, fmt.Errorf("layer %s: %w", d.Digest, err)
}
