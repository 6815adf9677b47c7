package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"
	"oras.land/oras-go/v2/registry/remote/errcode"
	"oras.land/oras-go/v2/registry/remote/retry"

	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/internal/upstream"
	"github.com/kitbox-dev/kitbox/kiterr"
)

const (
	// maxLayer bounds one blob, in bytes. Nobody ships more, and a registry
	// must not fill a disk by claiming to.
	maxLayer = 32 << 30

	// pulls is how many blobs come at once.
	pulls = 4
)

// A remoteImage is an image whose documents are known and whose layers are
// still with the registry.
type remoteImage struct {
	repo *remote.Repository
	root ocispec.Descriptor
	name string // the tag it gets in the local store
	docs map[digest.Digest][]byte
}

// remote looks ref up at its registry.
func (f *Fetcher) remote(ctx context.Context, images *layout.Store, ref string) (*Kit, error) {
	src, err := f.locate(ctx, ref)
	if err != nil {
		return nil, err
	}
	kit, err := f.read(ctx, cached{images, src}, src.root, ref, Registry)
	if err != nil {
		return nil, explainRemote(ref, src.repo.Reference, err)
	}
	kit.missing = src
	return kit, nil
}

// locate asks a registry what ref stands for.
func (f *Fetcher) locate(ctx context.Context, ref string) (*remoteImage, error) {
	r, err := registry.ParseReference(ref)
	if err != nil {
		return nil, fmt.Errorf("kit %s is not a valid reference: %w: %w", ref, err, kiterr.ErrRefused)
	}
	if r.Reference == "" {
		r.Reference = "latest"
	}
	repo, err := repository(r)
	if err != nil {
		return nil, err
	}
	f.say("looking up %s", ref)
	desc, err := repo.Resolve(ctx, r.Reference)
	if err != nil {
		return nil, explainRemote(ref, r, err)
	}
	desc.Annotations = nil
	if !layout.IsIndex(desc.MediaType) && !layout.IsManifest(desc.MediaType) {
		return nil, fmt.Errorf("kit %s has media type %q, which is not an image: %w", ref, desc.MediaType, kiterr.ErrRefused)
	}
	return &remoteImage{repo: repo, root: desc, name: r.String(), docs: map[digest.Digest][]byte{}}, nil
}

// PullImage gets an image of a registry, Kit or not, into the local store for
// this Fetcher's platform, under its name there, and returns its root. It always
// asks the registry, and transfers what the store lacks.
func (f *Fetcher) PullImage(ctx context.Context, ref string) (ocispec.Descriptor, error) {
	if host, ok := registryHost(ref); !ok || host == LocalDomain {
		return ocispec.Descriptor{}, fmt.Errorf("image %s names no registry to pull from: write HOST/NAME:TAG: %w", ref, kiterr.ErrRefused)
	}
	images, err := f.images()
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	src, err := f.locate(ctx, ref)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	img, err := layout.ReadImage(ctx, cached{images, src}, src.root, f.platform())
	if err != nil {
		return ocispec.Descriptor{}, explainRemote(ref, src.repo.Reference, err)
	}
	return src.root, f.bring(ctx, images, src, ref, img.Descriptor.Digest, img.Manifest)
}

// cached reads documents from the store before it asks the registry.
type cached struct {
	images *layout.Store
	remote *remoteImage
}

func (c cached) Document(ctx context.Context, desc ocispec.Descriptor) ([]byte, error) {
	data, err := c.images.Document(ctx, desc)
	if err == nil {
		c.remote.docs[desc.Digest] = data
		return data, nil
	}
	if !errors.Is(err, kiterr.ErrNotFound) {
		return nil, err
	}
	return c.remote.Document(ctx, desc)
}

// Document reads a manifest, index or config, bounded and verified.
func (r *remoteImage) Document(ctx context.Context, desc ocispec.Descriptor) ([]byte, error) {
	if desc.Size > layout.MaxDocument || desc.Size < 0 {
		return nil, fmt.Errorf("document %s has %d bytes, the limit is %d: %w", desc.Digest, desc.Size, layout.MaxDocument, kiterr.ErrRefused)
	}
	if err := desc.Digest.Validate(); err != nil {
		return nil, fmt.Errorf("digest %q: %w: %w", desc.Digest, err, kiterr.ErrRefused)
	}
	rc, err := r.repo.Fetch(ctx, desc)
	if err != nil {
		return nil, err
	}
	defer rc.Close()
	data, err := io.ReadAll(io.LimitReader(rc, desc.Size+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) != desc.Size || digest.FromBytes(data) != desc.Digest {
		return nil, fmt.Errorf("document %s: the registry sent something else: %w", desc.Digest, kiterr.ErrRefused)
	}
	r.docs[desc.Digest] = data
	return data, nil
}

// Pull gets the layers of kit into the local store, those that are not there,
// and then its documents and its tag. For a Kit that is complete it does
// nothing. After an error, blobs that arrived are kept for the next try.
func (f *Fetcher) Pull(ctx context.Context, kit *Kit) error {
	images, err := f.images()
	if err != nil {
		return err
	}
	if kit.missing != nil {
		if err := f.bring(ctx, images, kit.missing, kit.Ref, kit.Digest, kit.Manifest); err != nil {
			return err
		}
		kit.missing = nil
		return nil
	}
	// A set is assembled from documents; its layers are still where its Kits
	// came from.
	from := origins(string(kit.Descriptor))
	if len(from) == 0 {
		return nil
	}
	return f.layers(ctx, images, kit.Ref, kit.Manifest, func(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
		return fromOrigins(ctx, d, from)
	})
}

// bring gets what the store lacks of one platform's image.
func (f *Fetcher) bring(ctx context.Context, images *layout.Store, src *remoteImage, ref string, manifest digest.Digest, m ocispec.Manifest) error {
	err := f.layers(ctx, images, ref, m, func(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
		return openBlob(ctx, src.repo, d)
	})
	if err != nil {
		return explainRemote(ref, src.repo.Reference, err)
	}
	// Documents last, each after what it names: the config, the manifest, and
	// the index it was chosen from.
	for _, d := range []ocispec.Descriptor{m.Config, {Digest: manifest, Size: int64(len(src.docs[manifest]))}, src.root} {
		if err := images.Push(ctx, d, strings.NewReader(string(src.docs[d.Digest]))); err != nil {
			return err
		}
	}
	return images.Tag(ctx, src.root, src.name)
}

// layers stores those layers of m that are not there.
func (f *Fetcher) layers(ctx context.Context, images *layout.Store, ref string, m ocispec.Manifest, open func(context.Context, ocispec.Descriptor) (io.ReadCloser, error)) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(pulls)
	for n, l := range m.Layers {
		g.Go(func() error {
			if ok, err := images.Exists(gctx, l); err != nil || ok {
				return err
			}
			if l.Size > maxLayer || l.Size < 0 {
				return fmt.Errorf("layer %s has %d bytes, the limit is %d: %w", l.Digest, l.Size, int64(maxLayer), kiterr.ErrRefused)
			}
			f.say("pulling %s layer %d of %d (%.1f MB)", ref, n+1, len(m.Layers), float64(l.Size)/1e6)
			rc, err := open(gctx, l)
			if err != nil {
				return err
			}
			defer rc.Close()
			return images.Push(gctx, l, rc)
		})
	}
	return g.Wait()
}

// repository prepares access to r with the logins that docker has, if any.
func repository(r registry.Reference) (*remote.Repository, error) {
	repo := &remote.Repository{Reference: r, PlainHTTP: loopback(r.Registry), MaxMetadataBytes: layout.MaxDocument}
	proxies, err := upstream.FromEnv(os.Getenv)
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy = proxies.Chooser().Request
	transport.ResponseHeaderTimeout = 60 * time.Second
	client := &auth.Client{Client: &http.Client{Transport: retry.NewTransport(idleTransport{transport, idle})}, Cache: auth.NewCache()}
	client.SetUserAgent("kitbox")
	if store, err := credentials.NewStoreFromDocker(credentials.StoreOptions{}); err == nil {
		client.Credential = credentials.Credential(store)
	} else {
		return nil, fmt.Errorf("reading docker's logins: %w", err)
	}
	repo.Client = client
	return repo, nil
}

// loopback reports whether host is this machine, where TLS protects nothing
// and test registries have none.
func loopback(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return ip != nil && ip.IsLoopback()
}

// explainRemote puts an error of a registry in its family and in one line.
func explainRemote(ref string, r registry.Reference, err error) error {
	var resp *errcode.ErrorResponse
	var op *net.OpError
	var dns *net.DNSError
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, kiterr.ErrRefused), errors.Is(err, kiterr.ErrUnavailable):
		return err
	case errors.Is(err, auth.ErrBasicCredentialNotFound), errors.As(err, &resp) && (resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden):
		return fmt.Errorf("kit %s: registry %s denies access: check the name, or log in with 'docker login %s': %w", ref, r.Registry, r.Registry, kiterr.ErrNotFound)
	case errors.Is(err, errdef.ErrNotFound), errors.As(err, &resp) && resp.StatusCode == http.StatusNotFound:
		return fmt.Errorf("kit %s: %w in the local store and at registry %s", ref, kiterr.ErrNotFound, r.Registry)
	case errors.As(err, &dns), errors.As(err, &op):
		cause := err
		if op != nil {
			cause = op
		}
		return fmt.Errorf("kit %s: %w in the local store, and registry %s cannot be reached: %v", ref, kiterr.ErrNotFound, r.Registry, cause)
	case strings.HasPrefix(err.Error(), "kit "):
		return err
	}
	return fmt.Errorf("kit %s: %w", ref, err)
}
