package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/kitbox-dev/kitbox/internal/secret/vault"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
)

const (
	// maxLayer bounds one blob, in bytes. Nobody ships more, and a registry
	// must not fill a disk by claiming to.
	maxLayer = 32 << 30

	// maxTotal bounds all layers that are got at once, in bytes, for the same
	// reason.
	maxTotal = 64 << 30

	// pulls is how many blobs come at once.
	pulls = 4
)

// A remoteImage is an image whose documents are with a registry and whose layers
// are still there. Its methods can be called concurrently.
type remoteImage struct {
	f      *Fetcher
	images *layout.Store
	ref    string             // as it was given
	at     registry.Reference // never without a tag or digest
	root   ocispec.Descriptor

	mu    sync.Mutex
	where []site                   // guarded by mu; nil: nobody was asked yet
	docs  map[digest.Digest][]byte // guarded by mu
}

// asked reports whether a registry has been.
func (r *remoteImage) asked() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.where != nil
}

// sites are where the image can be had.
func (r *remoteImage) sites() ([]site, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.where != nil {
		return r.where, nil
	}
	where, err := r.f.sites(r.at)
	r.where = where
	return where, err
}

// head asks what the name stands for, and gets nothing.
func (r *remoteImage) head(ctx context.Context) (ocispec.Descriptor, error) {
	where, err := r.sites()
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	return try(ctx, naming(where), func(s site) (ocispec.Descriptor, error) {
		desc, err := s.repo.Resolve(ctx, r.at.Reference)
		return ocispec.Descriptor{MediaType: desc.MediaType, Digest: desc.Digest, Size: desc.Size}, err
	})
}

// get reads the document that the name stands for and makes it the root: in one
// request, or in two when the registry says what the name stands for and a
// mirror has it.
func (r *remoteImage) get(ctx context.Context) error {
	where, err := r.sites()
	if err != nil {
		return err
	}
	if len(where) > 1 && where[0].mirror && !where[0].tags {
		if r.root, err = r.head(ctx); err != nil {
			return err
		}
		_, err := r.Document(ctx, r.root)
		return err
	}
	_, err = try(ctx, naming(where), func(s site) (struct{}, error) {
		desc, rc, err := s.repo.Manifests().FetchReference(ctx, r.at.Reference)
		if err != nil {
			return struct{}{}, err
		}
		defer rc.Close()
		data, err := readDocument(rc, desc)
		if err != nil {
			return struct{}{}, err
		}
		r.root = ocispec.Descriptor{MediaType: desc.MediaType, Digest: desc.Digest, Size: desc.Size}
		r.keep(desc.Digest, data)
		return struct{}{}, nil
	})
	return err
}

func (r *remoteImage) keep(d digest.Digest, data []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.docs[d] = data
}

func (r *remoteImage) kept(d digest.Digest) ([]byte, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	data, ok := r.docs[d]
	return data, ok
}

// Document implements [layout.Source]. What the store has is read there.
func (r *remoteImage) Document(ctx context.Context, desc ocispec.Descriptor) ([]byte, error) {
	if data, ok := r.kept(desc.Digest); ok {
		return data, nil
	}
	data, err := r.images.Document(ctx, desc)
	if errors.Is(err, kiterr.ErrNotFound) {
		data, err = r.fetch(ctx, desc)
	}
	if err != nil {
		return nil, err
	}
	r.keep(desc.Digest, data)
	return data, nil
}

func (r *remoteImage) fetch(ctx context.Context, desc ocispec.Descriptor) ([]byte, error) {
	if err := desc.Digest.Validate(); err != nil {
		return nil, fmt.Errorf("digest %q: %w: %w", desc.Digest, err, kiterr.ErrRefused)
	}
	if desc.Size > layout.MaxDocument || desc.Size < 0 {
		return nil, tooLarge(desc)
	}
	where, err := r.sites()
	if err != nil {
		return nil, err
	}
	return try(ctx, where, func(s site) ([]byte, error) {
		rc, err := s.repo.Fetch(ctx, desc)
		if err != nil {
			return nil, err
		}
		defer rc.Close()
		return readDocument(rc, desc)
	})
}

func tooLarge(desc ocispec.Descriptor) error {
	return fmt.Errorf("document %s has %d bytes, the limit is %d: %w", desc.Digest, desc.Size, layout.MaxDocument, kiterr.ErrRefused)
}

// readDocument reads a manifest, index or config, bounded and verified.
func readDocument(r io.Reader, desc ocispec.Descriptor) ([]byte, error) {
	if desc.Size > layout.MaxDocument || desc.Size < 0 {
		return nil, tooLarge(desc)
	}
	data, err := io.ReadAll(io.LimitReader(r, desc.Size+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) != desc.Size || digest.FromBytes(data) != desc.Digest {
		return nil, fmt.Errorf("document %s: the registry sent something else: %w", desc.Digest, kiterr.ErrRefused)
	}
	return data, nil
}

// PullImage gets an image of a registry, Kit or not, into the local store for
// this Fetcher's platform, under its name there, and returns its root. It always
// asks the registry, and transfers what the store lacks.
func (f *Fetcher) PullImage(ctx context.Context, ref string) (ocispec.Descriptor, error) {
	none := ocispec.Descriptor{}
	if host, ok := registryHost(ref); !ok || host == LocalDomain {
		return none, fmt.Errorf("image %s names no registry to pull from: write HOST/NAME:TAG", ref)
	}
	images, err := f.images()
	if err != nil {
		return none, err
	}
	src, err := f.remoteImage(images, ref)
	if err != nil {
		return none, err
	}
	f.note("looking up %s", ref)
	if src.root, err = src.head(ctx); err != nil {
		return none, explainRemote(ref, src.at, err)
	}
	if err := isImage(ref, src.root); err != nil {
		return none, err
	}
	img, err := layout.ReadImage(ctx, src, src.root, f.platform())
	if err != nil {
		return none, explainRemote(ref, src.at, err)
	}
	return src.root, f.bring(ctx, src, img.Descriptor.Digest, img.Manifest)
}

// remoteImage says where ref would be, and asks nobody.
func (f *Fetcher) remoteImage(images *layout.Store, ref string) (*remoteImage, error) {
	r, err := registry.ParseReference(ref)
	if err != nil {
		return nil, fmt.Errorf("kit %s is not a valid reference: %w: %w", ref, err, kiterr.ErrRefused)
	}
	if r.Reference == "" {
		r.Reference = "latest"
	}
	return &remoteImage{f: f, images: images, ref: ref, at: r, docs: map[digest.Digest][]byte{}}, nil
}

func isImage(ref string, d ocispec.Descriptor) error {
	if strings.HasPrefix(d.MediaType, "text/") {
		return fmt.Errorf("kit %s: a page (%s) is answered instead of an image: a proxy or a login page stands before the registry, or there is none by that name", ref, d.MediaType)
	}
	if !layout.IsIndex(d.MediaType) && !layout.IsManifest(d.MediaType) {
		return fmt.Errorf("kit %s has media type %q, which is not an image: %w", ref, d.MediaType, kiterr.ErrRefused)
	}
	return nil
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
		if err := f.bring(ctx, kit.missing, kit.Digest, kit.Manifest); err != nil {
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
	return f.layers(ctx, images, kit.Ref, kit.Manifest, func(d ocispec.Descriptor, use func(io.Reader) error) error {
		return f.fromOrigins(ctx, d, from, func(r io.Reader, _ string) error { return use(r) })
	})
}

// Complete gets what the store lacks of the layers of root, which it has: those
// of a set are still where its Kits came from. Of other images it gets nothing.
func (f *Fetcher) Complete(ctx context.Context, root ocispec.Descriptor) error {
	images, err := f.images()
	if err != nil {
		return err
	}
	all, err := layout.ReadAll(ctx, images, root)
	if err != nil {
		return err
	}
	var blobs []ocispec.Descriptor
	for _, im := range all {
		blobs = append(blobs, im.Manifest.Layers...)
	}
	if err := affordable(blobs); err != nil {
		return fmt.Errorf("image %s: %w", root.Digest, err)
	}
	for _, im := range all {
		from := origins(im.Annotations[Annotation])
		if len(from) == 0 {
			continue
		}
		if err := f.layers(ctx, images, im.Platform(), im.Manifest, func(d ocispec.Descriptor, use func(io.Reader) error) error {
			return f.fromOrigins(ctx, d, from, func(r io.Reader, _ string) error { return use(r) })
		}); err != nil {
			return err
		}
	}
	return nil
}

// bring gets what the store lacks of one platform's image, and names it there.
func (f *Fetcher) bring(ctx context.Context, src *remoteImage, manifest digest.Digest, m ocispec.Manifest) error {
	where, err := src.sites()
	if err == nil {
		err = f.layers(ctx, src.images, src.ref, m, func(d ocispec.Descriptor, use func(io.Reader) error) error {
			return blob(ctx, where, d, use)
		})
	}
	if err != nil {
		return explainRemote(src.ref, src.at, err)
	}
	// Documents last, each after what it names: the config, the manifest, and
	// the index it was chosen from.
	for _, d := range []digest.Digest{m.Config.Digest, manifest, src.root.Digest} {
		data, ok := src.kept(d)
		if !ok {
			return fmt.Errorf("kit %s: document %s: %w", src.ref, d, kiterr.ErrNotFound)
		}
		if _, err := src.images.PushBytes(ctx, "", data); err != nil {
			return err
		}
	}
	return src.images.Tag(ctx, src.root, src.at.String())
}

// affordable refuses layers that claim to be larger than anything is.
func affordable(layers []ocispec.Descriptor) error {
	seen := map[digest.Digest]bool{}
	total := int64(0)
	for _, l := range layers {
		if l.Size > maxLayer || l.Size < 0 {
			return fmt.Errorf("layer %s has %d bytes, the limit is %d: %w", l.Digest, l.Size, int64(maxLayer), kiterr.ErrRefused)
		}
		if !seen[l.Digest] {
			total += l.Size // of 64000 layers at most, so that it does not overflow
		}
		seen[l.Digest] = true
	}
	if total > maxTotal {
		return fmt.Errorf("its layers have %d bytes, the limit is %d: %w", total, int64(maxTotal), kiterr.ErrRefused)
	}
	return nil
}

// layers stores those layers of m that are not there.
func (f *Fetcher) layers(ctx context.Context, images *layout.Store, ref string, m ocispec.Manifest, read func(ocispec.Descriptor, func(io.Reader) error) error) error {
	if err := affordable(m.Layers); err != nil {
		return fmt.Errorf("kit %s: %w", ref, err)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(pulls)
	for n, l := range m.Layers {
		g.Go(func() error {
			if ok, err := images.Exists(gctx, l); err != nil || ok {
				return err
			}
			f.note("pulling %s layer %d of %d (%.1f MB)", ref, n+1, len(m.Layers), float64(l.Size)/1e6)
			return read(l, func(r io.Reader) error { return images.Push(gctx, l, r) })
		})
	}
	return g.Wait()
}

// login returns the secret that the home has for a registry, or else what docker
// knows. It reads docker's file each time that a registry asks, which is once for a
// token.
func (f *Fetcher) login(ctx context.Context, host string) (auth.Credential, error) {
	named := host
	if host == "registry-1.docker.io" {
		named = "docker.io" // as references call it
	}
	user, password, err := vault.Open(vault.Dir(f.Home)).Login(named)
	if err == nil {
		return auth.Credential{Username: user, Password: password}, nil
	}
	if !errors.Is(err, kiterr.ErrNotFound) {
		return auth.EmptyCredential, err
	}
	store, err := credentials.NewStoreFromDocker(credentials.StoreOptions{})
	if err != nil {
		return auth.EmptyCredential, fmt.Errorf("reading docker's logins: %w", err)
	}
	return credentials.Credential(store)(ctx, host)
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

// explainRemote puts an error of a registry in its family and in one line. The
// store has not what ref names.
func explainRemote(ref string, r registry.Reference, err error) error {
	return explainRegistry(ref, r, err, "in the local store and ", "in the local store, and ")
}

// explainRegistry says only at which registry something was not found, unless it
// is told where else: before "at registry" and before "registry … cannot".
func explainRegistry(ref string, r registry.Reference, err error, at, and string) error {
	var resp *errcode.ErrorResponse
	var op *net.OpError
	var dns *net.DNSError
	var theirs *elsewhereError
	switch {
	case errors.Is(err, context.Canceled), strings.HasPrefix(err.Error(), "kit "):
		return err
	case errors.Is(err, kiterr.ErrRefused), errors.Is(err, kiterr.ErrUnavailable):
		// As it is, but for whose it is.
		if !strings.Contains(err.Error(), ref) {
			return fmt.Errorf("kit %s: %w", ref, err)
		}
		return err
	case errors.As(err, &resp) && !asked(resp, r):
		// What somebody else answers says nothing about the Kit.
		return fmt.Errorf("kit %s: registry %s sends its clients to %s, which answers %s: try again later, or ask who runs the registry", ref, r.Registry, resp.URL.Host, status(resp))
	case errors.As(err, &theirs):
		return fmt.Errorf("kit %s: registry %s sends its clients on, and %w: try again later, or ask who runs the registry", ref, r.Registry, theirs)
	case errors.Is(err, auth.ErrBasicCredentialNotFound), errors.As(err, &resp) && (resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden):
		return fmt.Errorf("kit %s: registry %s denies access: check the name, or log in with 'docker login %s' or 'kitbox secret set --registry %s': %w", ref, r.Registry, r.Registry, r.Registry, kiterr.ErrNotFound)
	case errors.Is(err, errdef.ErrNotFound), errors.As(err, &resp) && resp.StatusCode == http.StatusNotFound:
		next := ""
		if strings.Contains(ref, "@") {
			next = ", which may have deleted it: pin what there is now; 'kitbox update' does so for a lock"
		}
		return fmt.Errorf("kit %s: %w %sat registry %s%s", ref, kiterr.ErrNotFound, at, r.Registry, next)
	case errors.As(err, &dns), errors.As(err, &op):
		cause := err
		if op != nil {
			cause = op
		}
		if and == "" {
			return fmt.Errorf("kit %s: registry %s cannot be reached: %v: %w", ref, r.Registry, cause, kiterr.ErrNotFound)
		}
		return fmt.Errorf("kit %s: %w %sregistry %s cannot be reached: %v", ref, kiterr.ErrNotFound, and, r.Registry, cause)
	case resp != nil && resp.StatusCode == http.StatusTooManyRequests:
		return fmt.Errorf("kit %s: registry %s answers %s: wait a while and try again, or log in for more with 'docker login %s'", ref, r.Registry, status(resp), r.Registry)
	case resp != nil && resp.StatusCode >= http.StatusInternalServerError:
		return fmt.Errorf("kit %s: registry %s answers %s: try again later", ref, r.Registry, status(resp))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("kit %s: registry %s broke its answer off: try again: %w", ref, r.Registry, err)
	}
	return fmt.Errorf("kit %s: %w", ref, err)
}

func status(resp *errcode.ErrorResponse) string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", resp.StatusCode, http.StatusText(resp.StatusCode)))
}

// asked reports whether an answer is that of the registry r, or of a token service
// that lets nobody in: of no other place can it say that a Kit is not there, or that
// a login is missing.
func asked(resp *errcode.ErrorResponse, r registry.Reference) bool {
	if resp.URL == nil || resp.URL.Host == r.Host() && strings.HasPrefix(resp.URL.Path, "/v2/") {
		return true
	}
	q := resp.URL.Query()
	tokens := q.Has("service") || q.Has("scope") || resp.Method == http.MethodPost
	return tokens && (resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden)
}
