// Package fetch turns a reference into a Kit: its manifest, its descriptor and
// the layers it consists of. A reference is a directory or descriptor file,
// which is built when its sources changed; the name or digest of an image in the
// local store; a registry's; or an OCI image layout.
//
// It is the input side of kitbox and the only package left of the plan that
// reads anything. It judges no descriptor: package spec does, from the bytes
// that are returned here. Layers are unpacked and laid over each other by
// package assemble.
package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// Annotation is the manifest annotation that makes an image a Kit (§9.3).
const Annotation = "vnd.docker.sandbox.kit.descriptor"

// LocalDomain is the registry name of images that exist only in the local
// store. It is never looked up on a network.
const LocalDomain = "kitbox.local"

// A Fetcher resolves references against one home. Set its fields before first
// use; it can be used concurrently then, and beside other processes.
type Fetcher struct {
	// Home is the KITBOX_HOME directory. Required; it must exist.
	Home string

	// Platform is the one to choose from an index. Zero means this machine's.
	Platform ocispec.Platform

	// Refresh asks the registry even when the local store has an image of
	// that name.
	Refresh bool

	// Builder is the path of kit-builder. Empty looks in the directory that
	// KITBOX_LIBEXEC names, beside this executable and in PATH.
	Builder string

	// Address is that of another BuildKit, unix://… or tcp://…, for Builder
	// to use. Empty: a private one of Home's.
	Address string

	// NoCache builds what has been built already, and runs every step.
	NoCache bool

	// BuildNetwork is what steps of a recipe can reach: "none", also when
	// empty, "public", or "host", which is the operator's consent.
	BuildNetwork string

	// Progress gets lines for people about long work. Nil discards them. A
	// builder is given it as its standard error if it is an *os.File.
	Progress io.Writer

	// ProgressMode is how a builder shows progress: auto (also when empty),
	// tty, plain, json or quiet.
	ProgressMode string

	mu sync.Mutex // one line of Progress at a time
}

// A Kind says where a Kit came from.
type Kind string

const (
	Directory Kind = "directory" // built from sources
	Store     Kind = "store"     // an image of the local store
	Registry  Kind = "registry"
	Layout    Kind = "layout" // an OCI image layout directory
)

// A Layer is one layer of a Kit.
type Layer struct {
	DiffID digest.Digest      `json:"diffId"`
	Blob   ocispec.Descriptor `json:"blob"`
}

// A Kit is what a reference stands for on one platform.
type Kit struct {
	Ref        string // as it was given
	Source     Kind
	Digest     digest.Digest // of the platform's manifest
	Manifest   ocispec.Manifest
	Config     ocispec.Image
	Descriptor []byte  // the annotation: the published descriptor
	Layers     []Layer // lowest first

	// Built means that a builder ran for it now, as opposed to long ago.
	Built bool

	// BuildArgs are those of the arguments supplied that the build consumed.
	BuildArgs []string

	missing *remoteImage // where the content is, if not yet in the store
}

// Fetch resolves ref. For a directory it builds what is not built yet, with
// those of args that are build-phase; args do not matter for other references.
// It reads documents only: use [Fetcher.Pull] before the layers are needed.
//
// A reference that leads nowhere is [kiterr.ErrNotFound], and the error says
// where was looked; one that is ambiguous, or an image that is no Kit, is
// [kiterr.ErrRefused].
func (f *Fetcher) Fetch(ctx context.Context, ref string, args map[string]string) (*Kit, error) {
	kit, err := f.fetch(ctx, ref, args)
	if err != nil {
		return nil, err
	}
	kit.Ref = ref
	return kit, nil
}

func (f *Fetcher) fetch(ctx context.Context, ref string, args map[string]string) (*Kit, error) {
	if ref == "" {
		return nil, fmt.Errorf("an empty reference names no Kit: %w", kiterr.ErrNotFound)
	}
	if isPath(ref) {
		return f.path(ctx, ref, args)
	}
	images, err := f.images()
	if err != nil {
		return nil, err
	}
	host, remote := registryHost(ref)
	if !f.Refresh || !remote || host == LocalDomain {
		kit, err := f.stored(ctx, images, ref)
		if err == nil || !errors.Is(err, kiterr.ErrNotFound) {
			return kit, err
		}
	}
	if remote && host != LocalDomain {
		return f.remote(ctx, images, ref)
	}
	hint := "'kitbox images' lists what is there"
	if _, err := os.Stat(ref); err == nil {
		hint = fmt.Sprintf("write ./%s for the directory or file of that name", ref)
	}
	return nil, fmt.Errorf("kit %s: %w in the local store, and its first part names no registry: %s", ref, kiterr.ErrNotFound, hint)
}

// isPath reports whether ref is a path: it says so by its first characters.
// "hello" is a name, "./hello" a directory, whatever exists.
func isPath(ref string) bool {
	return ref == "." || ref == ".." || strings.HasPrefix(ref, "./") || strings.HasPrefix(ref, "../") || strings.HasPrefix(ref, "/")
}

// registryHost returns the registry of ref, and whether ref has one: a first
// component with a dot or a port, or localhost.
func registryHost(ref string) (string, bool) {
	host, _, ok := strings.Cut(ref, "/")
	if !ok || !(strings.ContainsAny(host, ".:") || host == "localhost") {
		return "", false
	}
	return host, true
}

// cutLayout splits DIR:TAG and DIR@DIGEST where DIR is an OCI layout. Both
// parts may hold colons.
func cutLayout(ref string) (dir, tag string, ok bool) {
	for i, c := range ref {
		if (c == ':' || c == '@') && i+1 < len(ref) && isLayout(ref[:i]) {
			return ref[:i], ref[i+1:], true
		}
	}
	return "", "", false
}

// path resolves a directory, a descriptor file or an OCI layout.
func (f *Fetcher) path(ctx context.Context, ref string, args map[string]string) (*Kit, error) {
	st, err := os.Stat(ref)
	if errors.Is(err, fs.ErrNotExist) {
		if dir, tag, ok := cutLayout(ref); ok {
			return f.layout(ctx, dir, tag)
		}
		return nil, fmt.Errorf("kit %s: no such file or directory; name the directory of a Kit, or an image that 'kitbox images' lists: %w", ref, kiterr.ErrNotFound)
	}
	if err != nil {
		return nil, durable.Explain(ref, err)
	}
	if st.IsDir() && isLayout(ref) {
		return f.layout(ctx, ref, "")
	}
	return f.build(ctx, ref, st.IsDir(), args)
}

func isLayout(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, ocispec.ImageLayoutFile))
	return err == nil
}

// layout imports an image of the layout at dir; tag is its name or digest there
// and may be empty when there is only one.
func (f *Fetcher) layout(ctx context.Context, dir, tag string) (*Kit, error) {
	src, err := layout.OpenExisting(dir)
	if err != nil {
		return nil, err
	}
	var desc ocispec.Descriptor
	if tag != "" {
		if desc, err = src.Resolve(ctx, tag); err != nil {
			return nil, fmt.Errorf("layout %s: %w", dir, err)
		}
	} else {
		idx, err := src.Index()
		if err != nil {
			return nil, err
		}
		switch len(idx.Manifests) {
		case 0:
			return nil, fmt.Errorf("layout %s holds no image: %w", dir, kiterr.ErrNotFound)
		case 1:
			desc = idx.Manifests[0]
		default:
			return nil, fmt.Errorf("layout %s holds %d images: name one as %s:TAG or %s@sha256:…: %w", dir, len(idx.Manifests), dir, dir, kiterr.ErrRefused)
		}
	}
	images, err := f.images()
	if err != nil {
		return nil, err
	}
	if err := images.Import(ctx, dir, desc); err != nil {
		return nil, fmt.Errorf("layout %s: %w", dir, err)
	}
	return f.read(ctx, images, desc, dir, Layout)
}

// stored finds ref among the tags and digests of the local store.
func (f *Fetcher) stored(ctx context.Context, images *layout.Store, ref string) (*Kit, error) {
	desc, err := named(ctx, images, ref)
	if err != nil {
		return nil, err
	}
	return f.read(ctx, images, desc, ref, Store)
}

// named resolves a tag, with ":latest" if it states none, or a digest.
func named(ctx context.Context, images *layout.Store, ref string) (ocispec.Descriptor, error) {
	desc, err := images.Resolve(ctx, ref)
	if errors.Is(err, kiterr.ErrNotFound) {
		if _, d, ok := strings.Cut(ref, "@"); ok {
			// The digest alone says which content; the name, where else
			// it could be had.
			return images.Resolve(ctx, d)
		} else if base := ref[strings.LastIndexByte(ref, '/')+1:]; !strings.Contains(base, ":") {
			return images.Resolve(ctx, ref+":latest")
		}
	}
	return desc, err
}

// read makes a Kit of an image of the store.
func (f *Fetcher) read(ctx context.Context, src layout.Source, desc ocispec.Descriptor, name string, from Kind) (*Kit, error) {
	img, err := layout.ReadImage(ctx, src, desc, f.platform())
	if err != nil {
		return nil, fmt.Errorf("kit %s: %w", name, err)
	}
	descriptor, ok := img.Annotations[Annotation]
	if !ok {
		return nil, fmt.Errorf("image %s is not a Kit: its manifest has no annotation %s: %w", name, Annotation, kiterr.ErrRefused)
	}
	kit := &Kit{Source: from, Digest: img.Descriptor.Digest, Manifest: img.Manifest, Config: img.Config, Descriptor: []byte(descriptor)}
	for _, l := range img.Layers() {
		kit.Layers = append(kit.Layers, Layer{DiffID: l.DiffID, Blob: l.Blob})
	}
	return kit, nil
}

func (f *Fetcher) platform() ocispec.Platform {
	if f.Platform.OS == "" {
		return layout.HostPlatform()
	}
	return f.Platform
}

func (f *Fetcher) images() (*layout.Store, error) {
	return layout.Open(filepath.Join(f.Home, "images"))
}

// say writes a line of progress, unless there are only documents.
func (f *Fetcher) say(format string, args ...any) {
	if f.Progress != nil && f.ProgressMode != "json" {
		f.mu.Lock()
		defer f.mu.Unlock()
		fmt.Fprintf(f.Progress, format+"\n", args...)
	}
}
