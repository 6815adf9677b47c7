// Package fetch turns a reference into a Kit: its manifest, its descriptor and
// the layers it consists of. A reference is a directory or descriptor file,
// which is built when its sources changed; one in a git repository, built of the
// commit; the name or digest of an image in the local store; a registry's; or an
// OCI image layout.
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
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/kitbox-dev/kitbox/internal/checkout"
	"github.com/kitbox-dev/kitbox/internal/mirror"
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

	// Policy says when a registry is asked, about Kits and about the images that
	// recipes build on. Empty means [Missing].
	Policy Policy

	// Sets assembles a directory that holds a set. Nil leaves it to the
	// builder, which knows no Kits of the store.
	Sets func(ctx context.Context, f *Fetcher, images *layout.Store, s SetSource) (ocispec.Descriptor, error)

	// Platforms are those that a directory is built for. Empty means Platform
	// for a recipe, and all that its Kits have in common for a set.
	Platforms []ocispec.Platform

	// SetName is what a set that is built will be called, if that is known: no
	// Kit of that name can be in it.
	SetName string

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

	// Notice gets lines for people about registries: what was looked up and
	// what it is, what is transferred. Calls do not overlap. Nil writes them to
	// Progress.
	Notice func(line string)

	// ProgressMode is how a builder shows progress: auto (also when empty),
	// tty, plain, json or quiet.
	ProgressMode string

	// Idle is how long a registry may neither send nor take a byte before it
	// is given up. Zero means a minute.
	Idle time.Duration

	mu sync.Mutex // one line of Progress at a time

	once     sync.Once
	client   *auth.Client  // set by once
	mirrors  mirror.Config // set by once
	setupErr error         // set by once
}

// A Policy says when a registry is asked about a name. A digest is not asked
// about while the store has it: it cannot come to mean something else.
type Policy string

const (
	Missing Policy = "missing" // when the store does not have it
	Always  Policy = "always"  // each time; what the store has is not transferred again
	Never   Policy = "never"
)

// A Kind says where a Kit came from.
type Kind string

const (
	Directory Kind = "directory" // built from sources
	Store     Kind = "store"     // an image of the local store
	Registry  Kind = "registry"
	Layout    Kind = "layout" // an OCI image layout directory
	Git       Kind = "git"    // built from a commit of a repository
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
	Root       digest.Digest // what the reference stands for: an index, or the manifest itself
	Digest     digest.Digest // of the platform's manifest
	Manifest   ocispec.Manifest
	Config     ocispec.Image
	Descriptor []byte  // the annotation: the published descriptor
	Layers     []Layer // lowest first

	Commit string // of a git source

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
	if checkout.Is(ref) {
		return f.git(ctx, ref, args)
	}
	if IsPath(ref) {
		return f.path(ctx, ref, args)
	}
	images, err := f.images()
	if err != nil {
		return nil, err
	}
	at, err := f.locate(ctx, images, ref)
	if err != nil {
		return nil, err
	}
	kit, err := f.read(ctx, at, at.root, ref, at.kind)
	if err != nil {
		return nil, at.explain(err)
	}
	if at.remote != nil && at.remote.asked() {
		kit.Source, kit.missing = Registry, at.remote
	}
	return kit, nil
}

// Pin returns the reference to what ref stood for when it had the digest root:
// the same name by digest, or the same place in a repository at the commit. A
// path has none: whether it still is that is for the caller to compare.
func Pin(ref string, root digest.Digest, commit string) (string, error) {
	switch {
	case IsPath(ref), strings.HasPrefix(ref, string(root)), strings.Contains(ref, "@") && !checkout.Is(ref):
		return ref, nil
	case !checkout.Is(ref):
		return ref + "@" + root.String(), nil
	case commit == "":
		return "", fmt.Errorf("kit %s: no commit is known of it: %w", ref, kiterr.ErrRefused)
	}
	s, err := checkout.Parse(ref)
	if err != nil {
		return "", fmt.Errorf("kit %w", err)
	}
	s.Ref = commit
	return s.String(), nil
}

// IsPath reports whether ref is a path: it says so by its first characters.
// "hello" is a name, "./hello" a directory, whatever exists.
func IsPath(ref string) bool {
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

// git builds what a source of a repository names, at the commit that its ref
// stands for.
func (f *Fetcher) git(ctx context.Context, ref string, args map[string]string) (*Kit, error) {
	s, err := checkout.Parse(ref)
	if err != nil {
		return nil, fmt.Errorf("kit %w", err)
	}
	c := checkout.Cache{Dir: filepath.Join(f.Home, "builds", "git"), Notice: func(line string) { f.note("%s", line) }}
	ask := map[Policy]checkout.Ask{Always: checkout.Always, Never: checkout.Never}[f.Policy]
	tree, err := c.Get(ctx, s, ask)
	if err != nil {
		return nil, fmt.Errorf("kit %w", err)
	}
	kit, err := f.build(ctx, filepath.Join(tree.Dir, tree.File), tree.File == "", args)
	if err != nil {
		return nil, fmt.Errorf("kit %s: %w", s, err)
	}
	kit.Source, kit.Commit = Git, tree.Commit
	return kit, nil
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
		return nil, notAKit(name)
	}
	kit := &Kit{Source: from, Root: img.Root.Digest, Digest: img.Descriptor.Digest, Manifest: img.Manifest, Config: img.Config, Descriptor: []byte(descriptor)}
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

// note tells of registries.
func (f *Fetcher) note(format string, args ...any) {
	if f.Notice == nil {
		f.say(format, args...)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Notice(fmt.Sprintf(format, args...))
}

// say writes a line of progress, unless there are only documents.
func (f *Fetcher) say(format string, args ...any) {
	if f.Progress != nil && f.ProgressMode != "json" {
		f.mu.Lock()
		defer f.mu.Unlock()
		fmt.Fprintf(f.Progress, format+"\n", args...)
	}
}
