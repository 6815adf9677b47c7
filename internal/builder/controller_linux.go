package builder

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/plugins/snapshots/native"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay/overlayutils"
	"github.com/moby/buildkit/client"
	"github.com/moby/buildkit/cmd/buildkitd/config"
	"github.com/moby/buildkit/control"
	"github.com/moby/buildkit/executor/oci"
	bkfrontend "github.com/moby/buildkit/frontend"
	dockerfile "github.com/moby/buildkit/frontend/dockerfile/builder"
	"github.com/moby/buildkit/frontend/gateway"
	"github.com/moby/buildkit/frontend/gateway/forwarder"
	"github.com/moby/buildkit/session"
	"github.com/moby/buildkit/solver"
	"github.com/moby/buildkit/solver/bboltcachestorage"
	"github.com/moby/buildkit/solver/pb"
	"github.com/moby/buildkit/util/db/boltutil"
	"github.com/moby/buildkit/util/entitlements"
	"github.com/moby/buildkit/util/network"
	"github.com/moby/buildkit/util/network/netproviders"
	"github.com/moby/buildkit/util/resolver"
	"github.com/moby/buildkit/worker"
	"github.com/moby/buildkit/worker/base"
	"github.com/moby/buildkit/worker/runc"
	"github.com/moby/sys/userns"
	"go.etcd.io/bbolt"

	"github.com/kitbox-dev/kitbox/internal/frontend"
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

// newController opens the state in root and returns the controller that builds
// with it. Only one process can have root open.
func newController(ctx context.Context, root string, o ServeOptions) (*control.Controller, error) {
	runcPath, err := findRunc(sbin)
	if err != nil {
		return nil, err
	}
	sessions, err := session.NewManager()
	if err != nil {
		return nil, err
	}
	hosts := localOnly(resolver.NewRegistryConfig(nil))
	opt, err := runc.NewWorkerOpt(root, snapshotter(root), userns.RunningInUserNS(), oci.ProcessSandbox,
		map[string]string{
			labelIdentity: identity(),
			labelIdle:     o.idle().String(),
			labelCache:    fmt.Sprint(o.cacheBytes()),
			labelStarted:  time.Now().UTC().Format(time.RFC3339),
		},
		nil, netproviders.Opt{Mode: "host"}, nil, runcPath, "", false, nil,
		"", // no trace socket: its default is one path for the whole machine
		cgroupParent(root), nil)
	if err != nil {
		return nil, fmt.Errorf("opening the build cache %s: %w", root, err)
	}
	// The executor shares this map. A step gets no network unless its build asks
	// for the host's and is entitled to it: BuildKit's own default, where no
	// CNI plugin is found, is the host's network with everything on its loopback.
	opt.NetworkProviders[pb.NetMode_UNSET] = network.NewNoneProvider()
	opt.GCPolicy = gcPolicy(o.cacheBytes())
	opt.RegistryHosts = hosts

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
	history, err := boltutil.SafeOpen(filepath.Join(root, "history.db"), 0o600, &bbolt.Options{
		FreelistType:   bbolt.FreelistMapType,
		NoFreelistSync: true,
	})
	if err != nil {
		return nil, err
	}
	return control.NewController(control.Opt{
		SessionManager:   sessions,
		WorkerController: workers,
		Frontends: map[string]bkfrontend.Frontend{
			"dockerfile.v0":        forwarder.NewGatewayForwarder(workers.Infos(), dockerfile.Build),
			"gateway.v0":           gw,
			frontend.BuiltinSource: forwarder.NewGatewayForwarder(workers.Infos(), frontend.Builder{}.Build),
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
}

// snapshotter prefers overlayfs; native copies every layer of every step and
// took ten times as long when measured, but works on any file system.
func snapshotter(root string) runc.SnapshotterFactory {
	if overlayutils.Supported(root) == nil {
		return runc.SnapshotterFactory{Name: "overlayfs", New: func(dir string) (snapshots.Snapshotter, error) {
			return overlay.NewSnapshotter(dir, overlay.AsynchronousRemove)
		}}
	}
	return runc.SnapshotterFactory{Name: "native", New: native.NewSnapshotter}
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

// errLocalOnly is what a lookup of a name under [LocalDomain] gives.
var errLocalOnly = errors.New("not in the local image store")

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
