package builder

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/moby/buildkit/client"
	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/kiterr"
)

// A Status describes the private builder of a home.
type Status struct {
	Running    bool   `json:"running"`
	PID        int    `json:"pid,omitzero"`
	Started    string `json:"started,omitzero"`    // RFC 3339
	Idle       string `json:"idle,omitzero"`       // how long it stays without clients
	CacheLimit string `json:"cacheLimit,omitzero"` // bytes
	Snapshots  string `json:"snapshots,omitzero"`  // overlayfs or native
	CacheBytes int64  `json:"cacheBytes"`          // cache records while it runs, else size on disk
	Address    string `json:"address"`             // for clients, also while it does not run
	Dir        string `json:"dir"`
	Log        string `json:"log"`
}

// ReadStatus looks at the builder in dir without starting one.
func ReadStatus(ctx context.Context, dir string) (Status, error) {
	s := Status{Dir: dir, Log: filepath.Join(dir, logName), Address: "unix://" + filepath.Join(dir, socketName)}
	c, pid, err := attach(ctx, dir)
	if errors.Is(err, errNoBuilder) {
		s.CacheBytes = diskUsage(filepath.Join(dir, rootName))
		return s, nil
	}
	if err != nil {
		return s, err
	}
	defer c.Close()
	l := workerLabels(ctx, c)
	s.Running, s.PID = true, pid
	s.Started, s.Idle, s.CacheLimit = l[labelStarted], l[labelIdle], l[labelCache]
	s.Snapshots = l["org.mobyproject.buildkit.worker.snapshotter"]
	du, err := c.DiskUsage(ctx)
	if err != nil {
		return s, err
	}
	for _, u := range du {
		s.CacheBytes += u.Size
	}
	return s, nil
}

// Stop ends the builder in dir and the builds it runs. No builder is
// [kiterr.ErrNotRunning].
func Stop(ctx context.Context, dir string) error {
	conn, err := dial(dir)
	if err != nil {
		return errNoBuilder
	}
	pid := peerPID(conn)
	conn.Close()
	if signalAndWait(pid, unix.SIGTERM, 15*time.Second) {
		return nil
	}
	// Its namespace goes with it: steps, mounts and all.
	if !signalAndWait(pid, unix.SIGKILL, 5*time.Second) {
		return fmt.Errorf("builder process %d does not end: %w", pid, kiterr.ErrUnavailable)
	}
	return nil
}

func diskUsage(dir string) int64 {
	var n int64
	_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil //nolint:nilerr // what cannot be read is not counted
		}
		if fi, err := os.Lstat(p); err == nil {
			n += fi.Size()
		}
		return nil
	})
	return n
}

// Prune drops what the builder in dir has cached and nobody uses, and returns
// its size in bytes. It starts a builder if none runs, since the cache is the
// builder's to change.
func Prune(ctx context.Context, dir string) (int64, error) {
	c, err := Connect(ctx, dir, Launch{})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	var freed int64
	ch := make(chan client.UsageInfo)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for u := range ch {
			freed += u.Size
		}
	}()
	err = c.Prune(ctx, ch, client.PruneAll)
	close(ch)
	<-done
	return freed, err
}
