// Package registry is what a sandbox with kit-registry sees of the local store:
// an OCI distribution endpoint of its own, which serves Kits and the frontend
// that builds them, and takes Kits.
//
// A sandbox sees three things: Kits that the operator put into the Kit namespace
// of the store, Kits that it pushed itself, and the frontend. Nothing else of the
// store exists for it, whatever digest it guesses; a blob is served because a
// Kit that it may read leads there, or because it sent it. What it pushes gets a
// name of its own in the store, under which nobody else's can lie.
//
// The boundary brings the connections, and has decided that they may be; this
// package knows nothing of networks.
package registry

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/time/rate"

	"github.com/kitbox-dev/kitbox/internal/handover"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
)

// Bounds of what one sandbox can hold or do.
const (
	DefaultQuota = 32 << 30 // bytes of new content

	maxUploads  = 16               // that are begun and not ended
	uploadIdle  = 10 * time.Minute // after which one is dropped to make room
	maxTags     = 1000             // of a sandbox
	maxKnown    = 50_000           // blobs that it sent, or has in the store
	maxImages   = 256              // whose documents are remembered
	tagsASecond = 20               // names given, each of which rewrites the index of the store
	bodyIdle    = time.Minute      // between two bytes of a body
	headerTime  = 30 * time.Second // for the headers of a request, and a handshake
	idleTime    = 5 * time.Minute  // between requests
	maxHeaders  = 64 << 10         // bytes
)

// A Server serves one sandbox. Make it with [New]; its methods can be called
// concurrently.
type Server struct {
	images *layout.Store
	owner  string
	quota  int64
	log    func(Access)
	leaf   func() (*tls.Certificate, error)
	http   *http.Server
	conns  *handover.Listener
	over   sync.WaitGroup
	naming *rate.Limiter

	mu      sync.Mutex
	ledger  *ledger                    // guarded by mu
	stored  int64                      // guarded by mu; bytes that it brought, begun uploads included
	uploads map[string]*upload         // guarded by mu; by id
	sent    map[digest.Digest]bool     // guarded by mu; blobs that the sandbox has shown to have
	loose   map[looseKey]bool          // guarded by mu; manifests that it put without a name
	known   map[digest.Digest]*closure // guarded by mu; documents that were read
}

type looseKey struct {
	repo string
	d    digest.Digest
}

// An Options says whom a server serves. Images and Owner are required.
type Options struct {
	Images *layout.Store

	// Owner is the name of the sandbox, which keeps what it pushes apart.
	Owner string

	// Quota is how many bytes that the store did not have may be pushed.
	// What is gone from the store counts no more. Zero means [DefaultQuota].
	Quota int64

	// Ledger is a file that remembers what was pushed, over the end of the
	// server. Empty: each server counts from nothing.
	Ledger string

	// Leaf returns the certificate for connections with TLS. Nil refuses
	// them.
	Leaf func() (*tls.Certificate, error)

	// Log is told of every manifest that is read or written and of every
	// refusal. Nil discards.
	Log func(Access)
}

// An Access is one request as it is logged.
type Access struct {
	Method, Path string
	Allowed      bool
	Why          string
}

// New returns a server. End it with Close. The error is one of the ledger.
func New(o Options) (*Server, error) {
	l, stored, err := openLedger(o.Ledger, o.Images)
	if err != nil {
		return nil, err
	}
	s := &Server{ledger: l, stored: stored, images: o.Images, owner: o.Owner, quota: o.Quota, log: o.Log, leaf: o.Leaf,
		conns: handover.New(), naming: rate.NewLimiter(tagsASecond, tagsASecond),
		uploads: map[string]*upload{}, sent: map[digest.Digest]bool{}, loose: map[looseKey]bool{}, known: map[digest.Digest]*closure{}}
	if s.quota == 0 {
		s.quota = DefaultQuota
	}
	if s.log == nil {
		s.log = func(Access) {}
	}
	s.http = &http.Server{Handler: s, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeaders,
		DisableGeneralOptionsHandler: true, ErrorLog: log.New(io.Discard, "", 0)} // what clients do wrong is theirs to see
	s.over.Go(func() { _ = s.http.Serve(s.conns) })
	return s, nil
}

// Take serves c until its end; secure says that the client begins with TLS.
func (s *Server) Take(c net.Conn, secure bool) {
	if secure {
		c = tls.Server(c, &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, SessionTicketsDisabled: true,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
				if s.leaf == nil {
					return nil, net.ErrClosed
				}
				return s.leaf()
			}})
	}
	if !s.conns.Put(c) {
		c.Close()
	}
}

// Close ends every connection and drops what was not finished.
func (s *Server) Close() {
	s.http.Close()
	s.over.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, u := range s.uploads {
		u.drop()
		delete(s.uploads, id)
	}
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	r.Body = patient{r.Body, http.NewResponseController(w)}
	err := s.serve(w, r)
	var f *fault
	if errors.As(err, &f) {
		if f.status != http.StatusNotFound || r.Method != http.MethodHead {
			s.log(Access{Method: r.Method, Path: r.URL.Path, Why: f.message})
		}
		f.write(w)
	} else if err != nil {
		(&fault{http.StatusInternalServerError, "UNKNOWN", "the store of the host cannot be used"}).write(w)
		s.log(Access{Method: r.Method, Path: r.URL.Path, Why: err.Error()})
	}
}

// serve finds what a request is about. The name of a repository has slashes, so
// what follows it is looked for from the end.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) error {
	path, ok := strings.CutPrefix(r.URL.Path, "/v2")
	if !ok || path != "" && path[0] != '/' {
		return notFound("there is nothing but /v2/ here")
	}
	if path == "" || path == "/" {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			return unsupported(r.Method)
		}
		w.Header().Set("Content-Type", "application/json")
		_, err := io.WriteString(w, "{}")
		return quiet(err)
	}
	for _, route := range []struct {
		kind  string
		serve func(w http.ResponseWriter, r *http.Request, repo, rest string) error
	}{{"/blobs/uploads/", s.upload}, {"/manifests/", s.manifest}, {"/blobs/", s.blob}, {"/tags/", s.list}, {"/referrers/", s.referrers}} {
		i := strings.LastIndex(path, route.kind)
		if i < 1 {
			continue
		}
		repo, rest := path[1:i], path[i+len(route.kind):]
		if err := checkRepository(repo); err != nil {
			return err
		}
		return route.serve(w, r, repo, rest)
	}
	return notFound("no such resource")
}

// patient ends a body of which nothing comes for a while.
type patient struct {
	io.ReadCloser
	rc *http.ResponseController
}

func (p patient) Read(b []byte) (int, error) {
	_ = p.rc.SetReadDeadline(time.Now().Add(bodyIdle))
	return p.ReadCloser.Read(b)
}

// quiet drops the error of writing to a client, which is the client's.
func quiet(error) error { return nil }

// A fault is a refusal in the form that the protocol has for it.
type fault struct {
	status        int
	code, message string
}

func (f *fault) Error() string { return f.message }

func (f *fault) write(w http.ResponseWriter) {
	type item struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	b, err := json.Marshal(map[string][]item{"errors": {{f.code, f.message}}})
	if err != nil {
		b = []byte(`{"errors":[]}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Del("Docker-Content-Digest")
	w.WriteHeader(f.status)
	_, _ = w.Write(b)
}

func notFound(message string) *fault { return &fault{http.StatusNotFound, "NAME_UNKNOWN", message} }
func denied(message string) *fault   { return &fault{http.StatusForbidden, "DENIED", message} }
func unsupported(method string) *fault {
	return &fault{http.StatusMethodNotAllowed, "UNSUPPORTED", method + " is not supported here"}
}

// parseDigest reads the digest of a path or a query.
func parseDigest(s string) (digest.Digest, error) {
	d := digest.Digest(s)
	if d.Validate() != nil || d.Algorithm() != digest.SHA256 {
		return "", &fault{http.StatusBadRequest, "DIGEST_INVALID", "a digest is sha256: and 64 hex digits"}
	}
	return d, nil
}
