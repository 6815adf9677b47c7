package builder

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/docker/cli/cli/config"
	"github.com/moby/buildkit/client"
	"github.com/moby/buildkit/exporter/containerimage/exptypes"
	gateway "github.com/moby/buildkit/frontend/gateway/client"
	"github.com/moby/buildkit/session"
	"github.com/moby/buildkit/session/auth/authprovider"
	"github.com/moby/buildkit/util/entitlements"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/tonistiigi/fsutil"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/authoring"
	"github.com/kitbox-dev/kitbox/internal/frontend"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// The networks of RUN steps.
const (
	NetworkNone   = "none"   // a loopback of the step's own, nothing else
	NetworkPublic = "public" // hosts by name at public addresses; not this machine or its networks
	NetworkHost   = "host"   // this machine's own, services on its loopback included
)

// A Request is one build. Its JSON form is what kit-builder build reads.
type Request struct {
	// Home is the KITBOX_HOME whose builder is used. Required unless Builder
	// is set.
	Home string `json:"home,omitzero"`

	// Context is the Kit's directory. Required.
	Context string `json:"context"`

	// Descriptor is the descriptor's file, relative to Context. Empty finds
	// it by the rules of [authoring.Find].
	Descriptor string `json:"descriptor,omitzero"`

	// Args are values of the Kit's build-phase args, by their Kit-arg name.
	Args map[string]string `json:"args,omitzero"`

	// Labels are added to the image config.
	Labels map[string]string `json:"labels,omitzero"`

	// Contexts are images that a recipe's FROM finds under a name without
	// asking a registry. The tags under [LocalDomain] of Layout are there
	// without being listed.
	Contexts []NamedContext `json:"contexts,omitzero"`

	// Platform is an OCI platform such as linux/arm64, or several with commas
	// between, which make an index. Empty is this machine's.
	Platform string `json:"platform,omitzero"`

	// Layout is the OCI layout that the image goes into. Empty is "images"
	// below Home.
	Layout string `json:"layout,omitzero"`

	// Tag is a name to give the image in Layout. Empty tags nothing.
	Tag string `json:"tag,omitzero"`

	// Network is what RUN steps can reach: [NetworkNone], also when empty,
	// [NetworkPublic], which only the private builder has, or [NetworkHost].
	// Stating one of the latter is the operator's consent.
	Network string `json:"network,omitzero"`

	// SourceDateEpoch, in seconds since 1970, clamps all times in the image,
	// so that a build without a cache gives the same bytes. Nil leaves the
	// times of files alone.
	SourceDateEpoch *int64 `json:"sourceDateEpoch,omitzero"`

	// Pull says when a registry is asked what the name of an image that the
	// recipe needs stands for; see [fetch.Policy]. Empty means always.
	Pull fetch.Policy `json:"pull,omitzero"`

	// NoCache runs every step again.
	NoCache bool `json:"noCache,omitzero"`

	// Builder is the address of an outside BuildKit, unix://… or tcp://….
	// Empty uses the private builder of Home.
	Builder string `json:"builder,omitzero"`

	// IdleSeconds and CacheBytes configure the private builder if this build
	// has to start it. Zero means the defaults, see [ServeOptions].
	IdleSeconds float64 `json:"idleSeconds,omitzero"`
	CacheBytes  int64   `json:"cacheBytes,omitzero"`

	// Frontend is what says on the image by whom it was built.
	Frontend frontend.Builder `json:"-"`
}

// A NamedContext makes an image of a layout available to FROM.
type NamedContext struct {
	Name   string        `json:"name"`   // as recipes write it, e.g. kitbox.local/base:1
	Layout string        `json:"layout"` // directory
	Digest digest.Digest `json:"digest"` // of the manifest or index
}

// A Result is what a build made.
type Result struct {
	Digest       digest.Digest `json:"digest"`       // of the manifest, or index
	MediaType    string        `json:"mediaType"`    // of what Digest names
	Size         int64         `json:"size"`         // bytes of the document itself
	ConfigDigest digest.Digest `json:"configDigest"` // empty for an index
	ImageSize    int64         `json:"imageSize"`    // bytes of all blobs, compressed
	Stem         string        `json:"stem"`         // of the descriptor's file
	Warnings     []Warning     `json:"warnings"`     // never null
	Cached       bool          `json:"cached"`       // no step of the recipe ran
	Network      string        `json:"network"`      // as granted to RUN steps

	// Bases are the images of registries that the recipe needed.
	Bases []fetch.Base `json:"bases,omitzero"`
}

// A Warning is something the author should look at.
type Warning struct {
	Message string `json:"message"`
	File    string `json:"file,omitzero"`
	Line    int    `json:"line,omitzero"`
}

// Build builds r, telling w about it as it goes, and stores the image in the
// layout. An error that is the author's or the operator's to solve is a
// [*Failure]. When ctx is done, running steps are killed. Nothing is left in
// the layout on error.
func Build(ctx context.Context, r Request, show Progress) (*Result, error) {
	if err := r.complete(); err != nil {
		return nil, err
	}
	c, err := r.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	res, err := r.build(ctx, c, show, false)
	if errors.Is(err, errGone) {
		res, err = r.build(ctx, c, show, true)
	}
	return res, err
}

// complete checks r and fills in what is empty.
func (r *Request) complete() (err error) {
	if r.Context == "" {
		return errors.New("no Kit directory given")
	}
	if fi, err := os.Stat(r.Context); err != nil {
		return fmt.Errorf("kit directory %s: %w: %w", r.Context, unwrapPath(err), kiterr.ErrNotFound)
	} else if !fi.IsDir() {
		return fmt.Errorf("kit directory %s is not a directory", r.Context)
	}
	if r.Context, err = filepath.Abs(r.Context); err != nil {
		return err
	}
	if r.Descriptor == "" {
		if r.Descriptor, err = authoring.Find(r.Context); err != nil {
			return err
		}
	}
	if !filepath.IsLocal(r.Descriptor) {
		return fmt.Errorf("descriptor %s is not inside %s", r.Descriptor, r.Context)
	}
	r.Descriptor = filepath.ToSlash(filepath.Clean(r.Descriptor))
	switch r.Network {
	case "":
		r.Network = NetworkNone
	case NetworkNone, NetworkHost:
	case NetworkPublic:
		if r.Builder != "" {
			return fmt.Errorf("network %s: only the private builder can see to what it means, not %s: %w", r.Network, r.Builder, kiterr.ErrUnsupported)
		}
	default:
		return fmt.Errorf("network %q: RUN steps can have %s, %s or %s", r.Network, NetworkNone, NetworkPublic, NetworkHost)
	}
	switch r.Pull {
	case "":
		r.Pull = fetch.Always
	case fetch.Always, fetch.Missing, fetch.Never:
	default:
		return fmt.Errorf("pull %q: there are %s, %s and %s", r.Pull, fetch.Always, fetch.Missing, fetch.Never)
	}
	if r.Layout == "" {
		if r.Home == "" {
			return errors.New("no image store given; set KITBOX_HOME or --layout")
		}
		r.Layout = filepath.Join(r.Home, "images")
	}
	if r.Platform == "" {
		// Stated, because a base with several platforms is chosen by it.
		r.Platform = "linux/" + runtime.GOARCH
	}
	for _, p := range strings.Split(r.Platform, ",") {
		if _, err := layout.ParsePlatform(p); err != nil {
			return err
		}
	}
	named := map[string]bool{}
	for _, n := range r.Contexts {
		if err := n.Digest.Validate(); err != nil || n.Name == "" || n.Layout == "" {
			return fmt.Errorf("named context %q: needs a name, a layout and a digest", n.Name)
		}
		named[n.Name] = true
	}
	for name, d := range localTags(r.Layout) {
		if !named[name] {
			r.Contexts = append(r.Contexts, NamedContext{Name: name, Layout: r.Layout, Digest: d})
		}
	}
	return nil
}

func unwrapPath(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

func (r *Request) connect(ctx context.Context) (*client.Client, error) {
	if r.Builder != "" {
		c, err := client.New(ctx, r.Builder)
		if err != nil {
			return nil, err
		}
		bound, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		if _, err := c.Info(bound); err != nil {
			c.Close()
			return nil, fmt.Errorf("builder %s does not answer: %w", r.Builder, err)
		}
		return c, nil
	}
	dir, err := Dir(r.Home)
	if err != nil {
		return nil, err
	}
	return Connect(ctx, dir, Launch{Idle: time.Duration(r.IdleSeconds * float64(time.Second)), CacheBytes: r.CacheBytes})
}

// build is one attempt.
func (r *Request) build(ctx context.Context, c *client.Client, show Progress, fresh bool) (*Result, error) {
	land, err := newLanding(r.Layout, fresh)
	if err != nil {
		return nil, diskFull(err)
	}
	defer land.Close()
	opt, err := r.solveOpt(land)
	if err != nil {
		return nil, err
	}
	obs := newObserver()
	ch := make(chan *client.SolveStatus)
	shown := make(chan struct{})
	bases := newProvider(r, obs.extra, shown)
	go func() {
		defer close(shown)
		show.run(obs.tee(ch))
	}()
	// BuildKit carries the frontend's error to itself and back as text. The
	// original still knows its family.
	var cause error
	build := func(ctx context.Context, c gateway.Client) (*gateway.Result, error) {
		fe := r.Frontend
		if r.Home != "" {
			fe.Images = bases.provide
		}
		res, err := fe.Build(ctx, c)
		cause = err
		return res, err
	}
	resp, err := c.Build(ctx, opt, "kitbox", build, ch)
	<-shown
	if err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("build of %s: %w", r.Context, context.Cause(ctx))
		}
		return nil, r.explain(err, cause, obs)
	}
	desc, err := exported(resp.ExporterResponse)
	if err != nil {
		return nil, err
	}
	blobs, err := land.publish(ctx, desc)
	if err != nil {
		return nil, diskFull(err)
	}
	res := &Result{
		Digest: desc.Digest, MediaType: desc.MediaType, Size: desc.Size,
		ConfigDigest: digest.Digest(resp.ExporterResponse[exptypes.ExporterImageConfigDigestKey]),
		Stem:         authoring.Stem(r.Descriptor),
		Warnings:     obs.warnings(),
		Cached:       !obs.ran(),
		Network:      r.Network,
		Bases:        bases.used(),
	}
	for _, b := range blobs {
		res.ImageSize += b.Size
	}
	return res, r.tag(ctx, desc)
}

// solveOpt translates r for BuildKit.
func (r *Request) solveOpt(land *landing) (client.SolveOpt, error) {
	files, err := fsutil.NewFS(r.Context)
	if err != nil {
		return client.SolveOpt{}, err
	}
	attrs := map[string]string{
		"filename": r.Descriptor,
		"platform": r.Platform,
	}
	if r.Network != NetworkPublic {
		attrs["force-network-mode"] = r.Network
	}
	for k, v := range r.Args {
		attrs["build-arg:"+k] = v
	}
	for k, v := range r.Labels {
		attrs["label:"+k] = v
	}
	if r.NoCache {
		attrs["no-cache"] = ""
	}
	export := client.ExportEntry{Type: client.ExporterOCI, OutputStore: land, Attrs: map[string]string{"tar": "false"}}
	if e := r.SourceDateEpoch; e != nil {
		attrs["build-arg:SOURCE_DATE_EPOCH"] = strconv.FormatInt(*e, 10)
		export.Attrs["source-date-epoch"] = strconv.FormatInt(*e, 10)
		export.Attrs["rewrite-timestamp"] = "true"
	}
	stores := map[string]content.Store{}
	ids := map[string]string{} // by directory
	for _, n := range r.Contexts {
		id, ok := ids[n.Layout]
		if !ok {
			id = fmt.Sprintf("layout%d", len(ids))
			s, err := readOnlyLayout(n.Layout)
			if err != nil {
				return client.SolveOpt{}, fmt.Errorf("named context %s: %w", n.Name, err)
			}
			ids[n.Layout], stores[id] = id, s
		}
		attrs["context:"+strings.TrimSuffix(n.Name, ":latest")] = "oci-layout://" + id + "@" + n.Digest.String()
	}
	if r.Home != "" {
		dir := r.imageDir()
		if err := os.MkdirAll(filepath.Join(dir, ocispec.ImageBlobsDir, "sha256"), 0o700); err != nil {
			return client.SolveOpt{}, fmt.Errorf("preparing the image store: %w", err)
		}
		if stores[basesID], err = readOnlyLayout(dir); err != nil {
			return client.SolveOpt{}, err
		}
	}
	opt := client.SolveOpt{
		LocalMounts:   map[string]fsutil.FS{"context": files, "dockerfile": files},
		FrontendAttrs: attrs,
		Exports:       []client.ExportEntry{export},
		OCIStores:     stores,
		SharedKey:     r.Context,
		Session: []session.Attachable{
			authprovider.NewDockerAuthProvider(authprovider.DockerAuthProviderConfig{
				AuthConfigProvider: authprovider.LoadAuthConfig(config.LoadDefaultConfigFile(discard{})),
			}),
		},
	}
	if r.Network == NetworkHost {
		opt.AllowedEntitlements = []string{entitlements.EntitlementNetworkHost.String()}
	}
	return opt, nil
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// exported reads what the exporter says it exported.
func exported(resp map[string]string) (ocispec.Descriptor, error) {
	var desc ocispec.Descriptor
	b, err := base64.StdEncoding.DecodeString(resp[exptypes.ExporterImageDescriptorKey])
	if err == nil {
		err = json.Unmarshal(b, &desc)
	}
	if err != nil || desc.Digest == "" {
		return desc, fmt.Errorf("the builder gave no image: %w", err)
	}
	desc.Annotations = nil
	return desc, nil
}

// tag names the image in the layout. With no tag there is nothing to do.
func (r *Request) tag(ctx context.Context, desc ocispec.Descriptor) error {
	if r.Tag == "" {
		return nil
	}
	s, err := layout.Open(r.Layout)
	if err != nil {
		return err
	}
	return s.Tag(ctx, desc, r.Tag)
}
