// Package platform makes the platform base: the image that Kits of a machine
// without a registry are built from, holding what every Kit may count on (§12):
// bash, sh, curl, git, a CA store, Python, and a user "agent".
//
// It is built from the mirror that the machine's own distribution uses, by
// mmdebstrap, or taken from a root filesystem that somebody else made. The image
// goes into the local store; nothing here knows what a Kit is.
package platform

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// Ref is the name of the base that the examples and the documentation use.
const Ref = "kitbox.local/base:1"

// The user of the base (§12).
const (
	agent    = "agent"
	agentID  = 1000
	agentDir = "/home/agent"
)

// Options say which base to make. The zero value works on Debian.
type Options struct {
	// Ref is the tag that the image gets. Empty means [Ref].
	Ref string

	// Suite is the release to install, such as bookworm. Empty means this
	// machine's own; it is required on a machine that is not Debian.
	Suite string

	// Mirror is where packages come from. Empty means the mirrors that this
	// machine's apt is set up with, if they have Suite.
	Mirror string

	// Rootfs is a directory or a tar (plain, gzip or zstd) to take instead
	// of installing anything.
	Rootfs string

	// Force makes the base again although there is one.
	Force bool

	// Progress is told one line for each step. Nil discards them.
	Progress func(line string)

	// Time is the time of the image, and the latest that a file in it may
	// have. Zero means today at midnight, UTC, so that the same packages give
	// the same bytes all day long.
	Time time.Time

	// Program is the mmdebstrap to run. Empty looks in PATH.
	Program string

	// Root is where this machine's configuration is read: /. Tests have
	// another.
	Root string
}

// Create makes the base and returns the digest of its manifest. If there is one
// already it returns that, unless o.Force. Two at once follow each other. On
// error, or after a kill, the tag is what it was.
func Create(ctx context.Context, images *layout.Store, o Options) (digest.Digest, error) {
	o.Ref = cmp.Or(o.Ref, Ref)
	o.Root = cmp.Or(o.Root, "/")
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	if o.Time.IsZero() {
		o.Time = time.Now().UTC().Truncate(24 * time.Hour)
	}
	if d, err := existing(ctx, images, o.Ref); err == nil && !o.Force {
		return d, nil
	}
	lock, err := lock(ctx, images, o)
	if err != nil {
		return "", err
	}
	defer lock.Unlock()
	if d, err := existing(ctx, images, o.Ref); err == nil && !o.Force { // by whoever had the lock
		return d, nil
	}
	w, err := images.NewWriter()
	if err != nil {
		return "", err
	}
	defer w.Abort()
	l, err := newLayer(w)
	if err != nil {
		return "", err
	}
	comment := "mmdebstrap"
	if o.Rootfs != "" {
		comment = "imported"
		err = importRootfs(ctx, o.Rootfs, l)
	} else {
		err = bootstrap(ctx, images, o, l)
	}
	if err != nil {
		return "", err
	}
	id, err := l.finish(o.Progress)
	if err != nil {
		return "", err
	}
	blob, err := w.Commit(ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerZstd})
	if err != nil {
		return "", err
	}
	d, err := tag(ctx, images, o, id, blob, comment)
	if err == nil {
		o.Progress(fmt.Sprintf("%s is ready: %.0f MB, %.0f MB unpacked", o.Ref, float64(blob.Size)/1e6, float64(l.size)/1e6))
	}
	return d, err
}

// existing returns the manifest that ref stands for, if all of it is there.
func existing(ctx context.Context, images *layout.Store, ref string) (digest.Digest, error) {
	desc, err := images.Resolve(ctx, ref)
	if err != nil {
		return "", err
	}
	img, err := images.Image(ctx, desc, layout.HostPlatform())
	if err != nil {
		return "", err
	}
	for _, b := range img.Manifest.Layers {
		if ok, err := images.Exists(ctx, b); err != nil || !ok {
			return "", fmt.Errorf("layer %s: %w", b.Digest, kiterr.ErrNotFound)
		}
	}
	return img.Descriptor.Digest, nil
}

// lock keeps two from making a base at once; each takes minutes.
func lock(ctx context.Context, images *layout.Store, o Options) (*durable.Lock, error) {
	file := filepath.Join(images.Dir(), ".base.lock")
	now, cancel := context.WithCancel(ctx)
	cancel()
	l, err := durable.AcquireLock(now, file, durable.Exclusive)
	if busy := (*durable.BusyError)(nil); errors.As(err, &busy) && ctx.Err() == nil {
		o.Progress("waiting for " + cmp.Or(busy.Holder, "another kitbox") + ", which makes a base too")
		l, err = durable.AcquireLock(ctx, file, durable.Exclusive)
	}
	if err == nil {
		l.Sign("kitbox base create")
	}
	return l, err
}

// tag stores config and manifest and gives the image its name.
func tag(ctx context.Context, images *layout.Store, o Options, id digest.Digest, blob ocispec.Descriptor, comment string) (digest.Digest, error) {
	config, err := images.PushJSON(ctx, ocispec.MediaTypeImageConfig, ocispec.Image{
		Created:  &o.Time,
		Platform: ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH},
		Config: ocispec.ImageConfig{
			User:       agent,
			Env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			Cmd:        []string{"bash"},
			WorkingDir: agentDir,
		},
		RootFS:  ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{id}},
		History: []ocispec.History{{Created: &o.Time, CreatedBy: "kitbox base create", Comment: comment}},
	})
	if err != nil {
		return "", err
	}
	manifest, err := images.PushJSON(ctx, ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: config, Layers: []ocispec.Descriptor{blob},
	})
	if err != nil {
		return "", err
	}
	manifest.Platform = &ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}
	return manifest.Digest, images.Tag(ctx, manifest, o.Ref)
}

// A layer takes a tar as bytes, compresses it into a blob, and looks at what
// goes by: a base that lacks what Kits count on should not surprise them later.
type layer struct {
	zw    *zstd.Encoder
	sum   digest.Digester
	size  int64
	scan  *io.PipeWriter
	found chan contents // one value, when the scanner has ended
}

// contents is what was seen of a root filesystem.
type contents struct {
	has    map[string]bool // of wanted
	passwd string
	err    error
}

// wanted are the paths that make a platform base, each with alternatives.
var wanted = [][]string{
	{"usr/bin/bash", "bin/bash"}, {"usr/bin/sh", "bin/sh"}, {"usr/bin/curl"}, {"usr/bin/git"},
	{"etc/ssl/certs/ca-certificates.crt"}, {"usr/bin/python3"},
}

func newLayer(w io.Writer) (*layer, error) {
	zw, err := zstd.NewWriter(w)
	if err != nil {
		return nil, err
	}
	pr, pw := io.Pipe()
	l := &layer{zw: zw, sum: digest.SHA256.Digester(), scan: pw, found: make(chan contents, 1)}
	go func() {
		c := look(pr)
		_, _ = io.Copy(io.Discard, pr) // the writer must not wait for a scanner that gave up
		l.found <- c
	}()
	return l, nil
}

func (l *layer) Write(p []byte) (int, error) {
	l.sum.Hash().Write(p)
	l.size += int64(len(p))
	if _, err := l.scan.Write(p); err != nil {
		return 0, err
	}
	return l.zw.Write(p)
}

// finish ends the blob and returns the layer's diff id.
func (l *layer) finish(warn func(string)) (digest.Digest, error) {
	l.scan.Close()
	c := <-l.found
	if c.err != nil {
		return "", fmt.Errorf("the root filesystem is not a tar: %w: %w", c.err, kiterr.ErrRefused)
	}
	if err := l.zw.Close(); err != nil {
		return "", err
	}
	if len(c.has) == 0 && c.passwd == "" {
		return "", fmt.Errorf("the root filesystem holds none of what a base needs (/usr/bin/bash, /etc/passwd): %w", kiterr.ErrRefused)
	}
	for _, alternatives := range wanted {
		if !slices.ContainsFunc(alternatives, func(p string) bool { return c.has[p] }) {
			warn(fmt.Sprintf("warning: the base has no /%s, which Kits may count on", alternatives[0]))
		}
	}
	if !hasAgent(c.passwd) {
		warn(fmt.Sprintf("warning: the base has no user %s with id %d and home %s", agent, agentID, agentDir))
	}
	return l.sum.Digest(), nil
}

// look reads a tar to its end.
func look(r io.Reader) contents {
	c := contents{has: map[string]bool{}}
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return c
		}
		if err != nil {
			c.err = err
			return c
		}
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		for _, alternatives := range wanted {
			if slices.Contains(alternatives, name) {
				c.has[name] = true
			}
		}
		if name == "etc/passwd" {
			data, err := io.ReadAll(io.LimitReader(tr, 1<<20))
			if err != nil {
				c.err = err
				return c
			}
			c.passwd = string(data)
		}
	}
}

func hasAgent(passwd string) bool {
	for line := range strings.Lines(passwd) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) == 7 && f[0] == agent && f[2] == fmt.Sprint(agentID) && f[5] == agentDir {
			return true
		}
	}
	return false
}

// importRootfs writes the root filesystem at from, a directory or a tar, to w.
func importRootfs(ctx context.Context, from string, w io.Writer) error {
	st, err := os.Stat(from)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("root filesystem %s: %w", from, kiterr.ErrNotFound)
	}
	if err != nil {
		return durable.Explain(from, err)
	}
	if st.IsDir() {
		return writeTree(ctx, from, w)
	}
	f, err := os.Open(from)
	if err != nil {
		return durable.Explain(from, err)
	}
	defer f.Close()
	br := bufio.NewReaderSize(f, 1<<20)
	magic, _ := br.Peek(4)
	var r io.Reader = br
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(br)
		if err != nil {
			return fmt.Errorf("%s: %w", from, err)
		}
		defer z.Close()
		r = z
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(br)
		if err != nil {
			return fmt.Errorf("%s: %w", from, err)
		}
		defer z.Close()
		r = z
	}
	if _, err := io.Copy(w, contextReader{ctx, r}); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	return nil
}

// contextReader ends a copy when ctx is done.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
