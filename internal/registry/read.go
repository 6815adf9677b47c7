package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/annotation"
)

// A closure is what one manifest or index leads to within the store.
type closure struct {
	manifests map[digest.Digest]ocispec.Descriptor // with itself; those that are stored
	blobs     map[digest.Digest]bool
	kit       bool
}

// document is a manifest or an index, whichever.
type document struct {
	MediaType   string               `json:"mediaType"`
	Config      *ocispec.Descriptor  `json:"config"`
	Layers      []ocispec.Descriptor `json:"layers"`
	Manifests   []ocispec.Descriptor `json:"manifests"`
	Annotations map[string]string    `json:"annotations"`
}

// maxChildren bounds the manifests of an index and the layers of a manifest.
const maxChildren = 512

// parse reads a document that has media type typ. An index of indexes is none:
// nothing that builds Kits makes one.
func parse(typ string, data []byte) (document, error) {
	var d document
	if err := json.Unmarshal(data, &d); err != nil {
		return d, errors.New("it is not JSON of the right form")
	}
	switch {
	case d.MediaType != "" && d.MediaType != typ:
		return d, fmt.Errorf("it says of itself that it is %.100q", d.MediaType)
	case len(d.Layers) > maxChildren || len(d.Manifests) > maxChildren:
		return d, fmt.Errorf("it has more than %d parts", maxChildren)
	case layout.IsManifest(typ):
		if d.Config == nil || d.Manifests != nil {
			return d, errors.New("a manifest has a config and layers")
		}
		d.Layers = append(d.Layers, *d.Config)
	case layout.IsIndex(typ):
		if d.Config != nil || d.Layers != nil || d.Manifests == nil {
			return d, errors.New("an index has manifests and nothing else")
		}
		for _, m := range d.Manifests {
			if !layout.IsManifest(m.MediaType) {
				return d, fmt.Errorf("an index lists manifests, and %.100q is none", m.MediaType)
			}
		}
	default:
		return d, fmt.Errorf("%.100q is neither a manifest nor an index", typ)
	}
	for _, part := range slices.Concat(d.Layers, d.Manifests) {
		if _, err := parseDigest(part.Digest.String()); err != nil {
			return d, fmt.Errorf("%.100q is no digest", part.Digest)
		}
	}
	return d, nil
}

// closure reads what desc leads to. Documents never change, so it is remembered,
// once all parts that an index lists are there.
func (s *Server) closure(ctx context.Context, desc ocispec.Descriptor) (*closure, error) {
	s.mu.Lock()
	c := s.known[desc.Digest]
	s.mu.Unlock()
	if c != nil {
		return c, nil
	}
	c = &closure{manifests: map[digest.Digest]ocispec.Descriptor{}, blobs: map[digest.Digest]bool{}}
	data, err := s.images.Document(ctx, desc)
	if err != nil {
		return nil, err
	}
	d, err := parse(desc.MediaType, data)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", desc.Digest, err)
	}
	c.manifests[desc.Digest] = ocispec.Descriptor{MediaType: desc.MediaType, Digest: desc.Digest, Size: int64(len(data))}
	for _, l := range d.Layers {
		c.blobs[l.Digest] = true
	}
	c.kit = isKit(d.Annotations)
	whole, parts, kits := true, 0, 0
	for _, m := range d.Manifests {
		part, err := s.closure(ctx, m)
		if errors.Is(err, kiterr.ErrNotFound) {
			whole = false // pulled for one platform
			continue
		}
		if err != nil {
			return nil, err
		}
		c.manifests[m.Digest] = part.manifests[m.Digest]
		for b := range part.blobs {
			c.blobs[b] = true
		}
		if m.Platform == nil || m.Platform.OS != "unknown" { // an attestation is no image
			parts++
			if part.kit {
				kits++
			}
		}
	}
	c.kit = c.kit || parts > 0 && kits == parts
	if whole {
		s.mu.Lock()
		if len(s.known) >= maxImages {
			clear(s.known)
		}
		s.known[desc.Digest] = c
		s.mu.Unlock()
	}
	return c, nil
}

// isKit reports whether annotations hold a descriptor that is valid as a
// published one.
func isKit(annotations map[string]string) bool {
	text := annotations[annotation.Descriptor]
	if text == "" {
		return false
	}
	_, err := spec.DecodePublished([]byte(text))
	return err == nil
}

// seen are the closures that repo shows to the sandbox.
func (s *Server) seen(ctx context.Context, repo string) ([]*closure, error) {
	v, err := s.view(repo)
	if err != nil {
		return nil, err
	}
	var cs []*closure
	for _, n := range v {
		c, err := s.closure(ctx, n.Descriptor)
		if err != nil || n.kit && !c.kit {
			continue // damaged, or none of its business
		}
		cs = append(cs, c)
	}
	return cs, nil
}

// resolve finds the manifest that reference, a tag or a digest, is in repo.
func (s *Server) resolve(ctx context.Context, repo, reference string) (ocispec.Descriptor, error) {
	unknown := &fault{http.StatusNotFound, "MANIFEST_UNKNOWN", fmt.Sprintf("%s has no %.140s that this sandbox may read", repo, reference)}
	if !strings.Contains(reference, ":") {
		v, err := s.view(repo)
		if err != nil {
			return ocispec.Descriptor{}, err
		}
		n, ok := v[reference]
		if !ok {
			return ocispec.Descriptor{}, unknown
		}
		c, err := s.closure(ctx, n.Descriptor)
		if err != nil {
			return ocispec.Descriptor{}, err
		}
		if n.kit && !c.kit {
			return ocispec.Descriptor{}, unknown
		}
		return c.manifests[n.Digest], nil
	}
	d, err := parseDigest(reference)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	cs, err := s.seen(ctx, repo)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	for _, c := range cs {
		if desc, ok := c.manifests[d]; ok {
			return desc, nil
		}
	}
	s.mu.Lock()
	loose := s.loose[looseKey{repo, d}]
	s.mu.Unlock()
	if loose {
		return s.images.Describe(ctx, d)
	}
	return ocispec.Descriptor{}, unknown
}

// readable reports whether the sandbox may read blob d in repo: a Kit there
// leads to it, or the sandbox has shown that it has it.
func (s *Server) readable(ctx context.Context, repo string, d digest.Digest) (bool, error) {
	s.mu.Lock()
	sent := s.sent[d]
	s.mu.Unlock()
	if sent {
		return true, nil
	}
	cs, err := s.seen(ctx, repo)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(cs, func(c *closure) bool { return c.blobs[d] }), nil
}

// manifest serves /manifests/.
func (s *Server) manifest(w http.ResponseWriter, r *http.Request, repo, reference string) error {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
	case http.MethodPut:
		return s.putManifest(w, r, repo, reference)
	default:
		return unsupported(r.Method)
	}
	desc, err := s.resolve(r.Context(), repo, reference)
	if err != nil {
		return err
	}
	data, err := s.images.Document(r.Context(), desc)
	if err != nil {
		return err
	}
	s.log(Access{Method: r.Method, Path: r.URL.Path, Allowed: true, Why: "read " + desc.Digest.String()})
	h := w.Header()
	h.Set("Content-Type", desc.MediaType)
	h.Set("Docker-Content-Digest", desc.Digest.String())
	h.Set("Content-Length", strconv.Itoa(len(data)))
	if r.Method == http.MethodGet {
		_, err = w.Write(data)
	}
	return quiet(err)
}

// blob serves /blobs/.
func (s *Server) blob(w http.ResponseWriter, r *http.Request, repo, rest string) error {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return unsupported(r.Method)
	}
	d, err := parseDigest(rest)
	if err != nil {
		return err
	}
	unknown := &fault{http.StatusNotFound, "BLOB_UNKNOWN", fmt.Sprintf("%s has no %s that this sandbox may read", repo, d)}
	ok, err := s.readable(r.Context(), repo, d)
	if err != nil {
		return err
	}
	if !ok {
		return unknown
	}
	path, err := s.images.BlobPath(d)
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return unknown // a layer of a set whose Kits were never pulled
	}
	if err != nil {
		return err
	}
	defer f.Close()
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Docker-Content-Digest", d.String())
	h.Set("Etag", `"`+d.String()+`"`)
	http.ServeContent(w, r, "", time.Time{}, f)
	return nil
}

// list serves /tags/list.
func (s *Server) list(w http.ResponseWriter, r *http.Request, repo, rest string) error {
	if rest != "list" || r.Method != http.MethodGet {
		return notFound("no such resource")
	}
	v, err := s.view(repo)
	if err != nil {
		return err
	}
	names := []string{}
	for name, n := range v {
		if c, err := s.closure(r.Context(), n.Descriptor); err == nil && (c.kit || !n.kit) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return notFound("there is no " + repo + " that this sandbox may read")
	}
	slices.Sort(names)
	if last := r.URL.Query().Get("last"); last != "" {
		names = slices.DeleteFunc(names, func(n string) bool { return n <= last })
	}
	if n, err := strconv.Atoi(r.URL.Query().Get("n")); err == nil && n >= 0 && n < len(names) {
		names = names[:n]
		if n > 0 {
			w.Header().Set("Link", fmt.Sprintf("</v2/%s/tags/list?n=%d&last=%s>; rel=\"next\"", repo, n, names[n-1]))
		}
	}
	return answerJSON(w, "application/json", map[string]any{"name": repo, "tags": names})
}

// referrers says that nothing refers to anything: Kits carry what there is to
// say of them themselves.
func (s *Server) referrers(w http.ResponseWriter, r *http.Request, _, rest string) error {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return unsupported(r.Method)
	}
	if _, err := parseDigest(rest); err != nil {
		return err
	}
	return answerJSON(w, ocispec.MediaTypeImageIndex, map[string]any{"schemaVersion": 2, "mediaType": ocispec.MediaTypeImageIndex, "manifests": []any{}})
}

func answerJSON(w http.ResponseWriter, typ string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", typ)
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	_, err = w.Write(b)
	return quiet(err)
}
