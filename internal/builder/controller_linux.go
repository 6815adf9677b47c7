package builder

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/diff/apply"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/gc"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/containerd/v2/plugins/diff/walking"
	"github.com/containerd/containerd/v2/plugins/snapshots/native"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay/overlayutils"
	"github.com/containerd/platforms"
	cachemeta "github.com/moby/buildkit/cache/metadata"
	"github.com/moby/buildkit/client"
	"github.com/moby/buildkit/cmd/buildkitd/config"
	"github.com/moby/buildkit/control"
	"github.com/moby/buildkit/executor/oci"
	"github.com/moby/buildkit/executor/resources"
	"github.com/moby/buildkit/executor/runcexecutor"
	bkfrontend "github.com/moby/buildkit/frontend"
	dockerfile "github.com/moby/buildkit/frontend/dockerfile/builder"
	"github.com/moby/buildkit/frontend/gateway"
	"github.com/moby/buildkit/frontend/gateway/forwarder"
	"github.com/moby/buildkit/session"
	containerdsnapshot "github.com/moby/buildkit/snapshot/containerd"
	"github.com/moby/buildkit/solver"
	"github.com/moby/buildkit/solver/bboltcachestorage"
	"github.com/moby/buildkit/solver/pb"
	"github.com/moby/buildkit/util/db/boltutil"
	"github.com/moby/buildkit/util/entitlements"
	"github.com/moby/buildkit/util/leaseutil"
	"github.com/moby/buildkit/util/network"
	"github.com/moby/buildkit/util/resolver"
	resolverconfig "github.com/moby/buildkit/util/resolver/config"
	"github.com/moby/buildkit/worker"
	"github.com/moby/buildkit/worker/base"
	wlabel "github.com/moby/buildkit/worker/label"
	"github.com/moby/sys/userns"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.etcd.io/bbolt"

	"github.com/kitbox-dev/kitbox/internal/frontend"
	"github.com/kitbox-dev/kitbox/internal/mirror"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// This file is the only one that wires BuildKit's parts together. None of these
// constructors promise to keep their shape: BuildKit is pinned to one version,
// and an upgrade is an edit here.

// Labels of the worker, by which a client learns what it is talking to.
const (
	labelIdentity = "dev.kitbox.builder.identity"
	labelIdle     = "dev.kitbox.builder.idle"
	labelCache    = "dev.kitbox.builder.cache-bytes"
	labelStarted  = "dev.kitbox.builder.started"
)

// A controller is BuildKit's with a way to bring its cache below the bound at
// once: BuildKit itself does so at most once a minute, which a builder that ends
// earlier does not see.
type controller struct {
	*control.Controller
	trim func(context.Context) error
}

// newController opens the state in root and returns the controller that builds
// with it. Only one process can have root open.
func newController(ctx context.Context, root string, o ServeOptions) (*controller, error) {
	runcPath, err := findRunc(sbin)
	if err != nil {
		return nil, err
	}
	sessions, err := session.NewManager()
	if err != nil {
		return nil, err
	}
	opt, err := workerOpt(ctx, root, runcPath, filepath.Dir(o.Dir))
	if err != nil {
		return nil, fmt.Errorf("opening the build cache %s: %w", root, err)
	}
	maps.Copy(opt.Labels, map[string]string{
		labelIdentity: identity(),
		labelIdle:     o.idle().String(),
		labelCache:    fmt.Sprint(o.cacheBytes()),
		labelStarted:  time.Now().UTC().Format(time.RFC3339),
	})
	opt.GCPolicy = gcPolicy(o.cacheBytes())

	w, err := base.NewWorker(ctx, opt)
	if err != nil {
		return nil, err
	}
	workers := &worker.Controller{}
	if err := workers.Add(w); err != nil {
		return nil, err
	}
	gw, err := gateway.NewGatewayFrontend(workers.Infos(), nil)
	if err != nil {
		return nil, err
	}
	cache, err := bboltcachestorage.NewStore(filepath.Join(root, "cache.db"))
	if err != nil {
		return nil, err
	}
	history, err := boltutil.SafeOpen(filepath.Join(root, "history.db"), 0o600, boltOptions())
	if err != nil {
		return nil, err
	}
	builtin := forwarder.NewGatewayForwarder(workers.Infos(), o.Frontend.Build)
	ctl, err := control.NewController(control.Opt{
		SessionManager:   sessions,
		WorkerController: workers,
		Frontends: map[string]bkfrontend.Frontend{
			"dockerfile.v0":        forwarder.NewGatewayForwarder(workers.Infos(), dockerfile.Build),
			"gateway.v0":           standIn{gw, builtin},
			frontend.BuiltinSource: builtin,
		},
		CacheManager:   solver.NewCacheManager(ctx, "local", cache, worker.NewCacheResultStorage(workers)),
		Entitlements:   []string{entitlements.EntitlementNetworkHost.String()},
		HistoryDB:      history,
		CacheStore:     cache,
		LeaseManager:   w.LeaseManager(),
		ContentStore:   w.ContentStore(),
		HistoryConfig:  &config.HistoryConfig{MaxAge: config.Duration{Duration: 24 * time.Hour}, MaxEntries: new(int64(20))},
		GarbageCollect: w.GarbageCollect,
		GracefulStop:   ctx.Done(),
	})
	if err != nil {
		return nil, err
	}
	return &controller{ctl, func(ctx context.Context) error {
		freed := make(chan client.UsageInfo)
		go func() {
			for range freed { // Prune waits for its reader
			}
		}()
		defer close(freed)
		return w.Prune(ctx, freed, opt.GCPolicy...)
	}}, nil
}

// workerOpt opens the stores in root that a worker needs and gives it an
// executor. BuildKit has a constructor for this, which also generates an RSA key
// at each start for a proxy that is not used here: most of the time a start took.
func workerOpt(ctx context.Context, root, runcPath, home string) (opt base.WorkerOpt, err error) {
	name, newSnapshotter := snapshotter(root)
	root = filepath.Join(root, "runc-"+name)
	if err := os.MkdirAll(root, 0o700); err != nil {
		return opt, err
	}
	if opt.ResourceMonitor, err = resources.NewMonitor(); err != nil {
		return opt, err
	}
	// BuildKit's own default, where it finds no CNI plugin, is the host's
	// network with everything that listens on its loopback. Here, a step that
	// states nothing gets the public one, and a build that was not given a
	// network makes all of its steps state that they have none.
	public, err := newPublicNetwork(root)
	if err != nil {
		return opt, err
	}
	opt.NetworkProviders = map[pb.NetMode]network.Provider{
		pb.NetMode_UNSET: public,
		pb.NetMode_NONE:  network.NewNoneProvider(),
		pb.NetMode_HOST:  network.NewHostProvider(),
	}
	opt.Executor, err = runcexecutor.New(runcexecutor.Opt{
		Root:                filepath.Join(root, "executor"),
		CommandCandidates:   []string{runcPath},
		Rootless:            userns.RunningInUserNS(),
		ProcessMode:         oci.ProcessSandbox,
		DefaultCgroupParent: cgroupParent(filepath.Dir(root)),
		ResourceMonitor:     opt.ResourceMonitor,
	}, opt.NetworkProviders)
	if err != nil {
		return opt, err
	}

	snaps, err := newSnapshotter(filepath.Join(root, "snapshots"))
	if err != nil {
		return opt, err
	}
	blobs, err := local.NewStore(filepath.Join(root, "content"))
	if err != nil {
		return opt, err
	}
	db, err := boltutil.Open(filepath.Join(root, "containerdmeta.db"), 0o600, boltOptions())
	if err != nil {
		return opt, err
	}
	meta := metadata.NewDB(db, blobs, map[string]snapshots.Snapshotter{name: snaps})
	if err := meta.Init(ctx); err != nil {
		return opt, err
	}
	const namespace = "buildkit"
	opt.ContentMetadata = db
	opt.ContentStore = containerdsnapshot.NewContentStore(meta.ContentStore(), namespace)
	opt.Snapshotter = containerdsnapshot.NewSnapshotter(name, meta.Snapshotter(name), namespace, nil)
	opt.LeaseManager = leaseutil.WithNamespace(metadata.NewLeaseManager(meta), namespace)
	// One collection removes from disk what it has found, while another that begins
	// meanwhile finds nothing and would be over before: a builder that ends after it
	// would leave all that on disk.
	var collecting sync.Mutex
	opt.GarbageCollect = func(ctx context.Context) (gc.Stats, error) {
		collecting.Lock()
		defer collecting.Unlock()
		return meta.GarbageCollect(ctx)
	}
	opt.Applier = apply.NewFileSystemApplier(opt.ContentStore)
	opt.Differ = walking.NewWalkingDiff(opt.ContentStore)
	if opt.MetadataStore, err = cachemeta.NewStore(filepath.Join(root, "metadata_v2.db")); err != nil {
		return opt, err
	}
	if opt.ID, err = base.ID(root); err != nil {
		return opt, err
	}
	opt.Root = root
	opt.MountPoolRoot = filepath.Join(root, "cachemounts")
	opt.Platforms = []ocispec.Platform{platforms.Normalize(platforms.DefaultSpec())}
	opt.RegistryHosts = localOnly(mirrored(home))
	opt.Labels = map[string]string{wlabel.Executor: "oci", wlabel.Snapshotter: name, wlabel.Network: NetworkPublic}
	return opt, nil
}

func boltOptions() *bbolt.Options {
	return &bbolt.Options{FreelistType: bbolt.FreelistMapType, NoFreelistSync: true}
}

// snapshotter prefers overlayfs; native copies every layer of every step and
// took ten times as long when measured, but works on any file system.
func snapshotter(root string) (name string, open func(dir string) (snapshots.Snapshotter, error)) {
	if overlayutils.Supported(root) == nil {
		return "overlayfs", func(dir string) (snapshots.Snapshotter, error) {
			return overlay.NewSnapshotter(dir, overlay.AsynchronousRemove)
		}
	}
	return "native", native.NewSnapshotter
}

// gcPolicy keeps the whole cache below max bytes: first by dropping what can be
// had again cheaply, then by age, then by use.
func gcPolicy(max int64) []client.PruneInfo {
	return []client.PruneInfo{
		{
			Filter:       []string{"type==source.local", "type==exec.cachemount", "type==source.git.checkout"},
			KeepDuration: 48 * time.Hour,
			MaxUsedSpace: max / 10,
		},
		{KeepDuration: 60 * 24 * time.Hour, MaxUsedSpace: max},
		{MaxUsedSpace: max},
		{All: true, MaxUsedSpace: max},
	}
}

// sbin is where Debian and others install runc; an ordinary user's PATH lacks it.
var sbin = []string{"/usr/sbin", "/usr/local/sbin", "/sbin"}

// findRunc returns the runtime that RUN steps use, from PATH or else from dirs.
// crun is not an alternative: BuildKit passes it flags that it refuses.
func findRunc(dirs []string) (string, error) {
	for _, name := range []string{"buildkit-runc", "runc"} {
		if p, err := exec.LookPath(name); err == nil {
			return p, nil
		}
	}
	for _, d := range dirs {
		if p, err := exec.LookPath(filepath.Join(d, "runc")); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("building needs runc, which is not installed; get it with: apt install runc: %w", kiterr.ErrUnavailable)
}

// errLocalOnly is what a lookup of a name under [LocalDomain] gives. What our own builds
// say of it, see [Failure], comes after it; other clients show nothing else.
var errLocalOnly = errors.New("no context of this name is given, as kitbox build does for what its store has: give one by --build-context, or take the image from a registry")

// localOnly keeps names of the local store off the network: they can only be
// given as named contexts, and a missing one must not turn into a DNS query.
func localOnly(next docker.RegistryHosts) docker.RegistryHosts {
	return func(host string) ([]docker.RegistryHost, error) {
		if host == LocalDomain || strings.HasSuffix(host, "."+LocalDomain) {
			return nil, errLocalOnly
		}
		return next(host)
	}
}

// mirrored asks the mirrors that the operator's file names, which is read each
// time: a builder lives longer than what is in it. It serves clients that bring
// no provider of images, such as buildx, and recipes of other frontends.
func mirrored(home string) docker.RegistryHosts {
	return func(host string) ([]docker.RegistryHost, error) {
		c, err := mirror.Read(home, os.Getenv)
		if err != nil {
			return nil, err
		}
		mirrors := c.Of(host)
		var own resolverconfig.RegistryConfig
		for _, m := range mirrors {
			own.Mirrors = append(own.Mirrors, path.Join(m.Host, m.Prefix))
		}
		known := map[string]resolverconfig.RegistryConfig{}
		if len(mirrors) > 0 {
			known[host] = own
		}
		hosts, err := resolver.NewRegistryConfig(known)(host)
		if err != nil {
			return nil, err
		}
		for i, m := range mirrors {
			if !m.Tags {
				hosts[i].Capabilities &^= docker.HostCapabilityResolve // content by digest only
			}
		}
		return hosts, nil
	}
}
