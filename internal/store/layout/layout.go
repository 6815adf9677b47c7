// Package layout keeps images: an OCI image layout directory that several
// processes read and write at once. Blobs are files named by their digest and
// never change; tags are entries of index.json, which changes atomically under
// a lock on the file ".lock" beside it.
//
// A Store has the methods that a copy target and source of the registry client
// needs (Exists, Fetch, Push), without depending on it. Package fetch talks to
// registries; package layer unpacks what is stored here.
package layout

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// MaxDocument bounds manifests, indexes and configs, in bytes. It is the limit
// that registries have; a larger one is an attack or a mistake.
const MaxDocument = 4 << 20

// lockWait bounds the wait for index.json, which nobody holds for long.
const lockWait = 30 * time.Second

// A Store is an image layout. Its methods can be called concurrently and by
// several processes.
type Store struct{ dir string }

// Open makes the layout at dir if need be.
func Open(dir string) (*Store, error) {
	s := &Store{dir: dir}
	marker := filepath.Join(dir, ocispec.ImageLayoutFile)
	if _, err := os.Stat(marker); err == nil {
		return s, nil
	}
	if err := durable.MkdirAll(filepath.Join(dir, ocispec.ImageBlobsDir, "sha256"), 0o700); err != nil {
		return nil, err
	}
	if err := durable.MkdirAll(s.ingest(), 0o700); err != nil {
		return nil, err
	}
	err := s.update(context.Background(), func(*ocispec.Index) error { return nil })
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion})
	if err != nil {
		return nil, err
	}
	return s, durable.WriteFile(marker, data, 0o644)
}

// Dir is the layout directory, for programs that read it themselves.
func (s *Store) Dir() string { return s.dir }

func (s *Store) ingest() string { return filepath.Join(s.dir, "ingest") }

// BlobPath is where blob d is, or would be. It fails for a digest that is not
// sha256, so that no digest can name a path of its own choosing.
func (s *Store) BlobPath(d digest.Digest) (string, error) {
	if err := d.Validate(); err != nil || d.Algorithm() != digest.SHA256 {
		return "", fmt.Errorf("digest %q: only sha256: and 64 hex digits are supported", string(d))
	}
	return filepath.Join(s.dir, ocispec.ImageBlobsDir, "sha256", d.Encoded()), nil
}

// Exists reports whether the blob of desc is stored, and marks it as used.
func (s *Store) Exists(_ context.Context, desc ocispec.Descriptor) (bool, error) {
	path, err := s.BlobPath(desc.Digest)
	if err != nil {
		return false, err
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, durable.Explain(path, err)
	}
	return touch(path), nil
}

// touch tells a sweep that path is in use. It reports whether path was there.
func touch(path string) bool {
	now := time.Now()
	err := os.Chtimes(path, now, now)
	return err == nil || !errors.Is(err, fs.ErrNotExist)
}

// Push stores the bytes of r as the blob of desc. It returns an error and
// stores nothing when they do not have desc's digest and size; it reads no
// more than one byte past the size. A blob that is there already is not
// written again. A negative size means that it is not known.
func (s *Store) Push(ctx context.Context, desc ocispec.Descriptor, r io.Reader) error {
	path, err := s.BlobPath(desc.Digest)
	if err != nil {
		return err
	}
	if ok, err := s.Exists(ctx, desc); err != nil || ok {
		return err
	}
	w, err := s.NewWriter()
	if err != nil {
		return err
	}
	defer w.Abort()
	if desc.Size >= 0 {
		r = io.LimitReader(r, desc.Size+1)
	}
	from := &contextReader{ctx: ctx, r: r}
	if _, err := io.Copy(w, from); from.err != nil {
		return fmt.Errorf("blob %s: %w", desc.Digest, from.err)
	} else if err != nil {
		return durable.Explain(path, err)
	}
	if desc.Size >= 0 && w.size != desc.Size {
		return fmt.Errorf("blob %s: got %d bytes or more, its descriptor says %d", desc.Digest, w.size, desc.Size)
	}
	if got := w.Digest(); got != desc.Digest {
		return fmt.Errorf("blob %s: content has digest %s", desc.Digest, got)
	}
	_, err = w.Commit(ocispec.Descriptor{MediaType: desc.MediaType})
	return err
}

// PushBytes stores data and returns its descriptor.
func (s *Store) PushBytes(ctx context.Context, mediaType string, data []byte) (ocispec.Descriptor, error) {
	desc := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	return desc, s.Push(ctx, desc, bytes.NewReader(data))
}

// PushJSON stores the JSON form of v and returns its descriptor.
func (s *Store) PushJSON(ctx context.Context, mediaType string, v any) (ocispec.Descriptor, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	return s.PushBytes(ctx, mediaType, data)
}

// A Writer takes a blob whose digest is not known yet.
type Writer struct {
	s    *Store
	f    *os.File
	sum  hash.Hash
	size int64
}

// NewWriter starts a blob. End it with Commit or Abort; a kill leaves a file
// that a sweep deletes.
func (s *Store) NewWriter() (*Writer, error) {
	f, err := os.CreateTemp(s.ingest(), durable.TempPrefix+"*")
	if errors.Is(err, fs.ErrNotExist) { // a layout made by another program
		if err := durable.MkdirAll(s.ingest(), 0o700); err != nil {
			return nil, err
		}
		f, err = os.CreateTemp(s.ingest(), durable.TempPrefix+"*")
	}
	if err != nil {
		return nil, durable.Explain(s.dir, err)
	}
	return &Writer{s: s, f: f, sum: sha256.New()}, nil
}

func (w *Writer) Write(p []byte) (int, error) {
	n, err := w.f.Write(p)
	w.sum.Write(p[:n])
	w.size += int64(n)
	return n, err
}

// Digest is the digest of what was written so far.
func (w *Writer) Digest() digest.Digest {
	return digest.NewDigestFromEncoded(digest.SHA256, hex.EncodeToString(w.sum.Sum(nil)))
}

// Commit stores what was written as a blob and returns like with its digest
// and size filled in.
func (w *Writer) Commit(like ocispec.Descriptor) (ocispec.Descriptor, error) {
	like.Digest, like.Size = w.Digest(), w.size
	path, err := w.s.BlobPath(like.Digest)
	if err != nil {
		return like, err
	}
	if err := errors.Join(w.f.Chmod(0o644), w.f.Sync(), w.f.Close()); err != nil {
		return like, durable.Explain(path, err)
	}
	if err := os.Rename(w.f.Name(), path); err != nil {
		if err := durable.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return like, err
		}
		if err := os.Rename(w.f.Name(), path); err != nil {
			return like, durable.Explain(path, err)
		}
	}
	w.f = nil
	return like, durable.SyncDir(filepath.Dir(path))
}

// Abort drops what was written. After Commit it does nothing.
func (w *Writer) Abort() {
	if w.f != nil {
		w.f.Close()
		os.Remove(w.f.Name())
	}
}

// Fetch opens the blob of desc. A reader that comes to its end has checked
// digest and size: instead of io.EOF it gets an error when they do not match.
// A blob that is not stored is [kiterr.ErrNotFound].
func (s *Store) Fetch(_ context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	path, err := s.BlobPath(desc.Digest)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("blob %s: %w in %s", desc.Digest, kiterr.ErrNotFound, s.dir)
	}
	if err != nil {
		return nil, durable.Explain(path, err)
	}
	return &verifier{f: f, desc: desc, sum: sha256.New()}, nil
}

// verifier checks a blob as it is read: a disk that rots or a person who edits
// is noticed here and not inside a sandbox.
type verifier struct {
	f    *os.File
	desc ocispec.Descriptor
	sum  hash.Hash
	n    int64
}

func (v *verifier) Read(p []byte) (int, error) {
	n, err := v.f.Read(p)
	v.sum.Write(p[:n])
	v.n += int64(n)
	if err == io.EOF {
		if v.desc.Size > 0 && v.n != v.desc.Size {
			return n, fmt.Errorf("blob %s is damaged: %d bytes instead of %d; delete %s and fetch it again", v.desc.Digest, v.n, v.desc.Size, v.f.Name())
		}
		if hex.EncodeToString(v.sum.Sum(nil)) != v.desc.Digest.Encoded() {
			return n, fmt.Errorf("blob %s is damaged: its content has another digest; delete %s and fetch it again", v.desc.Digest, v.f.Name())
		}
	}
	return n, err
}

func (v *verifier) Close() error { return v.f.Close() }

// Document reads a small blob, verified. One larger than [MaxDocument] is
// refused unread.
func (s *Store) Document(ctx context.Context, desc ocispec.Descriptor) ([]byte, error) {
	if desc.Size > MaxDocument {
		return nil, fmt.Errorf("document %s has %d bytes, the limit is %d: %w", desc.Digest, desc.Size, MaxDocument, kiterr.ErrRefused)
	}
	r, err := s.Fetch(ctx, desc)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, MaxDocument+1))
	if err == nil && len(data) > MaxDocument {
		err = fmt.Errorf("document %s has more than %d bytes: %w", desc.Digest, MaxDocument, kiterr.ErrRefused)
	}
	return data, err
}

// emptyIndex is what a new layout holds.
func emptyIndex() ocispec.Index {
	return ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{}}
}

// contextReader ends a copy when ctx is done, and remembers why reading ended.
type contextReader struct {
	ctx context.Context
	r   io.Reader
	err error // other than the end
}

func (c *contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		c.err = err
		return 0, err
	}
	n, err := c.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	return n, err
}
