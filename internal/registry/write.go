package registry

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/internal/store/layout"
)

// An upload is a blob that has begun to arrive.
type upload struct {
	repo string

	mu   sync.Mutex // held while bytes of it arrive
	w    *layout.Writer
	size int64
	used time.Time
	gone bool
}

// drop gives up what has arrived. It waits for the request that is writing.
func (u *upload) drop() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.gone = true
	u.w.Abort()
}

var errQuota = errors.New("quota")

// account takes n bytes of the quota.
func (s *Server) account(n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stored+n > s.quota {
		return errQuota
	}
	s.stored += n
	return nil
}

func (s *Server) refund(n int64) {
	s.mu.Lock()
	s.stored -= n
	s.mu.Unlock()
}

func (s *Server) overQuota() error {
	return denied(fmt.Sprintf("a sandbox may have pushed %d bytes of new content; what its names do not need goes with kitbox image prune", s.quota))
}

// upload serves /blobs/uploads/.
func (s *Server) upload(w http.ResponseWriter, r *http.Request, repo, id string) error {
	if !strings.HasPrefix(repo, namespace) {
		return denied("only repositories in " + namespace + " can be pushed to")
	}
	if id == "" {
		if r.Method != http.MethodPost {
			return unsupported(r.Method)
		}
		return s.begin(w, r, repo)
	}
	s.mu.Lock()
	u := s.uploads[id]
	s.mu.Unlock()
	if u == nil || u.repo != repo {
		return &fault{http.StatusNotFound, "BLOB_UPLOAD_UNKNOWN", "no such upload has begun"}
	}
	if !u.mu.TryLock() {
		return &fault{http.StatusConflict, "BLOB_UPLOAD_INVALID", "another request writes to this upload"}
	}
	defer u.mu.Unlock()
	if u.gone {
		return &fault{http.StatusNotFound, "BLOB_UPLOAD_UNKNOWN", "the upload has ended"}
	}
	switch r.Method {
	case http.MethodGet:
		s.progress(w, repo, id, u, http.StatusNoContent)
		return nil
	case http.MethodDelete:
		s.end(id, u)
		w.WriteHeader(http.StatusNoContent)
		return nil
	case http.MethodPatch:
		if err := u.follows(r); err != nil {
			return err
		}
		if err := s.receive(id, u, r.Body); err != nil {
			return err
		}
		s.progress(w, repo, id, u, http.StatusAccepted)
		return nil
	case http.MethodPut:
		return s.finish(w, r, repo, id, u)
	}
	return unsupported(r.Method)
}

// begin starts an upload, or does without one.
func (s *Server) begin(w http.ResponseWriter, r *http.Request, repo string) error {
	q := r.URL.Query()
	if m := q.Get("mount"); m != "" {
		d, err := parseDigest(m)
		if err != nil {
			return err
		}
		if from := q.Get("from"); checkRepository(from) == nil {
			ok, err := s.readable(r.Context(), from, d)
			if err != nil {
				return err
			}
			if there, err := s.images.Exists(r.Context(), ocispec.Descriptor{Digest: d}); ok && there && err == nil {
				return s.have(w, repo, d)
			}
		}
	}
	if q.Get("digest") != "" {
		if _, err := parseDigest(q.Get("digest")); err != nil {
			return err
		}
	}
	if err := s.room(); err != nil {
		return err
	}
	writer, err := s.images.NewWriter()
	if err != nil {
		return err
	}
	u := &upload{repo: repo, w: writer, used: time.Now()}
	id := rand.Text()
	s.mu.Lock()
	s.uploads[id] = u
	s.mu.Unlock()
	u.mu.Lock()
	defer u.mu.Unlock()
	if q.Get("digest") != "" {
		return s.finish(w, r, repo, id, u)
	}
	s.progress(w, repo, id, u, http.StatusAccepted)
	return nil
}

// room makes sure that one more upload may begin.
func (s *Server) room() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, u := range s.uploads {
		if len(s.uploads) < maxUploads {
			break
		}
		if !u.mu.TryLock() {
			continue // something is arriving
		}
		if time.Since(u.used) > uploadIdle {
			u.gone = true
			u.w.Abort()
			s.stored -= u.size
			delete(s.uploads, id)
		}
		u.mu.Unlock()
	}
	if len(s.uploads) >= maxUploads {
		return &fault{http.StatusTooManyRequests, "TOOMANYREQUESTS", fmt.Sprintf("%d uploads have begun and not ended, the most there may be", maxUploads)}
	}
	return nil
}

// end forgets u and what has arrived of it. The caller holds its lock.
func (s *Server) end(id string, u *upload) {
	u.gone = true
	u.w.Abort()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.uploads[id] == u {
		delete(s.uploads, id)
		s.stored -= u.size
	}
}

// follows checks that a chunk begins where the last one ended.
func (u *upload) follows(r *http.Request) error {
	text := r.Header.Get("Content-Range")
	if text == "" {
		return nil
	}
	from, _, _ := strings.Cut(strings.TrimPrefix(text, "bytes "), "-")
	if n, err := strconv.ParseInt(from, 10, 64); err != nil || n != u.size {
		return &fault{http.StatusRequestedRangeNotSatisfiable, "BLOB_UPLOAD_INVALID", fmt.Sprintf("the upload has %d bytes, and the next chunk begins there", u.size)}
	}
	return nil
}

// receive adds body to u. A body that breaks off leaves what came: the client
// asks how much and goes on. The caller holds u's lock.
func (s *Server) receive(id string, u *upload, body io.Reader) error {
	defer func() { u.used = time.Now() }()
	buf := make([]byte, 64<<10)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			if s.account(int64(n)) != nil {
				s.end(id, u)
				return s.overQuota()
			}
			m, werr := u.w.Write(buf[:n])
			u.size += int64(m)
			if werr != nil {
				s.refund(int64(n - m))
				s.end(id, u)
				return werr
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return &fault{http.StatusBadRequest, "BLOB_UPLOAD_INVALID", "the body broke off"}
		}
	}
}

// finish takes the last of u and stores it as the blob that the client says it
// is. The caller holds u's lock.
func (s *Server) finish(w http.ResponseWriter, r *http.Request, repo, id string, u *upload) error {
	d, err := parseDigest(r.URL.Query().Get("digest"))
	if err != nil {
		return err
	}
	if err := u.follows(r); err != nil {
		return err
	}
	if err := s.receive(id, u, r.Body); err != nil {
		return err
	}
	if got := u.w.Digest(); got != d {
		s.end(id, u)
		return &fault{http.StatusBadRequest, "DIGEST_INVALID", fmt.Sprintf("what arrived has digest %s", got)}
	}
	// Content that is there costs nothing; that it was sent shows that the
	// sandbox has it.
	there, err := s.images.Exists(r.Context(), ocispec.Descriptor{Digest: d})
	if err == nil && !there {
		if err = s.record(d, u.size); err == nil {
			if _, err = u.w.Commit(ocispec.Descriptor{}); err != nil {
				s.forget(d)
			}
		}
	}
	if there || err != nil {
		s.end(id, u)
	} else {
		u.gone = true
		s.mu.Lock()
		delete(s.uploads, id)
		s.mu.Unlock()
	}
	if err != nil {
		return err
	}
	return s.have(w, repo, d)
}

// have records that the sandbox has d.
func (s *Server) have(w http.ResponseWriter, repo string, d digest.Digest) error {
	s.mu.Lock()
	full := len(s.sent) >= maxKnown && !s.sent[d]
	if !full {
		s.sent[d] = true
	}
	s.mu.Unlock()
	if full {
		return denied(fmt.Sprintf("a sandbox may push %d blobs between two starts", maxKnown))
	}
	w.Header().Set("Location", "/v2/"+repo+"/blobs/"+d.String())
	w.Header().Set("Docker-Content-Digest", d.String())
	w.WriteHeader(http.StatusCreated)
	return nil
}

// progress says how far u has come.
func (s *Server) progress(w http.ResponseWriter, repo, id string, u *upload, status int) {
	h := w.Header()
	h.Set("Location", "/v2/"+repo+"/blobs/uploads/"+id)
	h.Set("Docker-Upload-Uuid", id)
	h.Set("Range", fmt.Sprintf("0-%d", max(u.size-1, 0)))
	h.Set("Content-Length", "0")
	w.WriteHeader(status)
}

// putManifest stores a manifest or an index all of whose parts the sandbox may
// read in repo, and names it if it is a Kit.
func (s *Server) putManifest(w http.ResponseWriter, r *http.Request, repo, reference string) error {
	ctx := r.Context()
	v, err := s.view(repo)
	if err != nil {
		return err
	}
	name := ""
	want, byDigest := digest.Digest(""), strings.Contains(reference, ":")
	if byDigest {
		if want, err = parseDigest(reference); err != nil {
			return err
		}
		if _, err := s.writable(v, repo, "x"); err != nil {
			return err
		}
	} else if name, err = s.writable(v, repo, reference); err != nil {
		return err
	}
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, layout.MaxDocument))
	if err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return &fault{http.StatusRequestEntityTooLarge, "SIZE_INVALID", fmt.Sprintf("a manifest has %d bytes at the most", layout.MaxDocument)}
		}
		return &fault{http.StatusBadRequest, "MANIFEST_INVALID", "the body broke off"}
	}
	typ := r.Header.Get("Content-Type")
	invalid := func(why string) error { return &fault{http.StatusBadRequest, "MANIFEST_INVALID", why} }
	doc, err := parse(typ, data)
	if err != nil {
		return invalid("this is no manifest: " + err.Error())
	}
	desc := ocispec.Descriptor{MediaType: typ, Digest: digest.FromBytes(data), Size: int64(len(data))}
	if byDigest && want != desc.Digest {
		return &fault{http.StatusBadRequest, "DIGEST_INVALID", "the body has digest " + desc.Digest.String()}
	}
	for _, l := range doc.Layers {
		ok, err := s.readable(ctx, repo, l.Digest)
		if err == nil && ok {
			ok, err = s.images.Exists(ctx, l)
		}
		if err != nil {
			return err
		}
		if !ok {
			return &fault{http.StatusBadRequest, "MANIFEST_BLOB_UNKNOWN", l.Digest.String() + " was not pushed to " + repo}
		}
		if n, err := s.size(l.Digest); err != nil {
			return err
		} else if n != l.Size {
			return invalid(fmt.Sprintf("%s has %d bytes and not %d", l.Digest, n, l.Size))
		}
	}
	for _, m := range doc.Manifests {
		if _, err := s.resolve(ctx, repo, m.Digest.String()); err != nil {
			return &fault{http.StatusBadRequest, "MANIFEST_BLOB_UNKNOWN", m.Digest.String() + " was not pushed to " + repo}
		}
	}
	there, err := s.images.Exists(ctx, desc)
	if err != nil {
		return err
	}
	if !there {
		if s.account(desc.Size) != nil {
			return s.overQuota()
		}
		if err = s.record(desc.Digest, desc.Size); err == nil {
			if _, err = s.images.PushBytes(ctx, typ, data); err != nil {
				s.forget(desc.Digest)
			}
		}
		if err != nil {
			s.refund(desc.Size)
			return err
		}
	}
	if byDigest {
		s.mu.Lock()
		full := len(s.loose) >= maxKnown
		if !full {
			s.loose[looseKey{repo, desc.Digest}] = true
		}
		s.mu.Unlock()
		if full {
			return denied(fmt.Sprintf("a sandbox may push %d manifests between two starts", maxKnown))
		}
	} else if err := s.give(r, v, desc, reference, name); err != nil {
		return err
	}
	s.log(Access{Method: r.Method, Path: r.URL.Path, Allowed: true, Why: "stored " + desc.Digest.String()})
	w.Header().Set("Location", "/v2/"+repo+"/manifests/"+desc.Digest.String())
	w.Header().Set("Docker-Content-Digest", desc.Digest.String())
	w.WriteHeader(http.StatusCreated)
	return nil
}

// size is how many bytes a stored blob has.
func (s *Server) size(d digest.Digest) (int64, error) {
	path, err := s.images.BlobPath(d)
	if err != nil {
		return 0, err
	}
	st, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

// give gives desc a name in the store, if it is a Kit.
func (s *Server) give(r *http.Request, v view, desc ocispec.Descriptor, reference, name string) error {
	c, err := s.closure(r.Context(), desc)
	if err != nil {
		return err
	}
	if !c.kit {
		return denied("only Kits can be pushed here, and this image has no valid Kit descriptor")
	}
	// What the store names, commands about the whole store read.
	if _, err := s.images.Image(r.Context(), desc, layout.HostPlatform()); err != nil {
		return &fault{http.StatusBadRequest, "MANIFEST_INVALID", "this image could not be run here: " + err.Error()}
	}
	if _, again := v[reference]; !again {
		tags, err := s.images.Tags()
		if err != nil {
			return err
		}
		n := 0
		for _, t := range tags {
			if strings.HasPrefix(t.Name, Pushed(s.owner)) {
				n++
			}
		}
		if n >= maxTags {
			return denied(fmt.Sprintf("a sandbox may have %d names of its own", maxTags))
		}
	}
	if !s.naming.Allow() {
		return &fault{http.StatusTooManyRequests, "TOOMANYREQUESTS", "too many names in a second"}
	}
	return s.images.Tag(r.Context(), desc, name)
}
