package builder

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A landing takes the blobs of one build. What the layout already has is not
// sent again; what is new lands in a directory of its own beside the layout's
// blobs and moves over when the build is done, so that a build that dies leaves
// no half of an image, and builds that run at once never write one file.
type landing struct {
	content.Store // the new blobs
	have          content.Store
	dir           string
	layout        string
	lock          *os.File

	// fresh makes the layout's own blobs invisible. It is for a second try
	// after somebody removed one of them meanwhile.
	fresh bool
}

// landingPrefix begins the names of landings, inside the layout's directory for
// what is not finished.
const landingPrefix = "build-"

// newLanding prepares to export into layout, which it makes if need be.
func newLanding(layout string, fresh bool) (_ *landing, err error) {
	ingest := filepath.Join(layout, "ingest")
	for _, d := range []string{filepath.Join(layout, ocispec.ImageBlobsDir, "sha256"), ingest} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("preparing the image store: %w", err)
		}
	}
	sweepLandings(ingest)
	dir, err := os.MkdirTemp(ingest, landingPrefix)
	if err != nil {
		return nil, fmt.Errorf("preparing the image store: %w", err)
	}
	l := &landing{dir: dir, layout: layout, fresh: fresh}
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	if l.lock, err = tryLock(filepath.Join(dir, lockName)); err != nil {
		return nil, err
	}
	if l.Store, err = local.NewStore(dir); err != nil {
		return nil, err
	}
	if l.have, err = readOnlyLayout(layout); err != nil {
		return nil, err
	}
	return l, nil
}

// Close removes what has not been published.
func (l *landing) Close() error {
	if l.lock != nil {
		l.lock.Close()
	}
	return os.RemoveAll(l.dir)
}

// sweepLandings removes the landings of builds that were killed: those nobody
// holds the lock of. One that has no lock yet may be a moment old.
func sweepLandings(ingest string) {
	dirs, _ := filepath.Glob(filepath.Join(ingest, landingPrefix+"*"))
	for _, d := range dirs {
		file := filepath.Join(d, lockName)
		if fi, err := os.Stat(d); err != nil || time.Since(fi.ModTime()) < time.Minute {
			continue
		}
		if f, err := tryLock(file); err == nil {
			os.RemoveAll(d)
			f.Close()
		}
	}
}

func (l *landing) Info(ctx context.Context, d digest.Digest) (content.Info, error) {
	if info, err := l.Store.Info(ctx, d); err == nil || l.fresh {
		return info, err
	}
	return l.info(ctx, d)
}

// info looks for a blob in the layout and marks it as used, so that a sweep
// leaves it alone until the image is complete.
func (l *landing) info(ctx context.Context, d digest.Digest) (content.Info, error) {
	info, err := l.have.Info(ctx, d)
	if err == nil {
		now := time.Now()
		os.Chtimes(filepath.Join(l.layout, ocispec.ImageBlobsDir, d.Algorithm().String(), d.Encoded()), now, now)
	}
	return info, err
}

func (l *landing) ReaderAt(ctx context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	if ra, err := l.Store.ReaderAt(ctx, desc); err == nil || l.fresh {
		return ra, err
	}
	return l.have.ReaderAt(ctx, desc)
}

func (l *landing) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	var o content.WriterOpts
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			return nil, err
		}
	}
	if d := o.Desc.Digest; d != "" && !l.fresh {
		if info, err := l.info(ctx, d); err == nil && (o.Desc.Size == 0 || info.Size == o.Desc.Size) {
			return nil, fmt.Errorf("blob %s: %w", d, errdefs.ErrAlreadyExists)
		}
	}
	return l.Store.Writer(ctx, opts...)
}

// errGone means that a blob this image counts on has left the layout.
var errGone = errors.New("a blob has been removed from the image store while it was needed")

// publish moves the new blobs into the layout and checks that all of the image
// is there then. It returns the image's blobs, root first.
func (l *landing) publish(ctx context.Context, root ocispec.Descriptor) (blobs []ocispec.Descriptor, err error) {
	from, to := filepath.Join(l.dir, "blobs", "sha256"), filepath.Join(l.layout, "blobs", "sha256")
	entries, err := os.ReadDir(from)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		name := filepath.Join(from, e.Name())
		if err := errors.Join(os.Chmod(name, 0o644), syncFile(name)); err != nil {
			return nil, err
		}
		if err := os.Rename(name, filepath.Join(to, e.Name())); err != nil {
			return nil, fmt.Errorf("storing the image: %w", err)
		}
	}
	if len(entries) > 0 {
		if err := syncFile(to); err != nil {
			return nil, err
		}
	}
	if err := writeLayoutFile(l.layout); err != nil {
		return nil, err
	}
	err = walkImage(ctx, l.have, root, func(d ocispec.Descriptor) error {
		if _, err := l.have.Info(ctx, d.Digest); err != nil {
			return fmt.Errorf("%s: %w", d.Digest, errGone)
		}
		blobs = append(blobs, d)
		return nil
	})
	return blobs, err
}

func syncFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

func writeLayoutFile(layout string) error {
	name := filepath.Join(layout, ocispec.ImageLayoutFile)
	if _, err := os.Stat(name); err == nil {
		return nil
	}
	return os.WriteFile(name, []byte(`{"imageLayoutVersion":"`+ocispec.ImageLayoutVersion+`"}`), 0o644)
}
