package fetch

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/retry"

	"github.com/kitbox-dev/kitbox/internal/mirror"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/internal/upstream"
)

// A site is where a repository can be read: its registry, or a mirror of that.
type site struct {
	repo   *remote.Repository
	mirror bool
	tags   bool // it is believed what a tag stands for
}

// repository prepares access to r with the logins that docker has, if any. All
// of a Fetcher's share their connections and tokens.
func (f *Fetcher) repository(r registry.Reference) (*remote.Repository, error) {
	f.once.Do(func() {
		var proxies upstream.Settings
		if proxies, f.setupErr = upstream.FromEnv(os.Getenv); f.setupErr != nil {
			return
		}
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.Proxy = proxies.Chooser().Request
		silence := cmp.Or(f.Idle, idle)
		// After a large blob a registry has to think before it answers.
		transport.ResponseHeaderTimeout = 2 * silence
		transport.MaxIdleConnsPerHost = 2 * pulls
		f.client = &auth.Client{
			Client:     &http.Client{Transport: retry.NewTransport(idleTransport{transport, silence})},
			Cache:      auth.NewCache(),
			Credential: f.login,
		}
		f.client.SetUserAgent("kitbox")
		f.mirrors, f.setupErr = mirror.Read(f.Home, os.Getenv)
	})
	return &remote.Repository{Reference: r, Client: f.client, PlainHTTP: loopback(r.Registry), MaxMetadataBytes: layout.MaxDocument}, f.setupErr
}

// sites are where r can be read, in the order to try: mirrors, and the registry
// itself.
func (f *Fetcher) sites(r registry.Reference) ([]site, error) {
	origin, err := f.repository(r)
	if err != nil {
		return nil, err
	}
	var out []site
	for _, m := range f.mirrors.Of(r.Registry) {
		at := r
		at.Registry, at.Repository = m.Host, path.Join(m.Prefix, r.Repository)
		repo, err := f.repository(at)
		if err != nil {
			return nil, err
		}
		out = append(out, site{repo, true, m.Tags})
	}
	return append(out, site{origin, false, true}), nil
}

// naming are those of where that are believed what a tag stands for.
func naming(where []site) []site {
	var out []site
	for _, s := range where {
		if s.tags {
			out = append(out, s)
		}
	}
	return out
}

// try asks one after the other. The error is the last one's, which is that of
// the registry itself.
func try[T any](ctx context.Context, where []site, ask func(site) (T, error)) (T, error) {
	var out T
	err := errors.New("there is no registry to ask")
	for _, s := range where {
		if out, err = ask(s); err == nil || ctx.Err() != nil {
			return out, err
		}
	}
	return out, err
}

// blob hands the content of d to use, from the first of where that has it.
// Content that use refuses, since it is not what its digest says, is had from
// the next one: a mirror that lies is like one that is down.
func blob(ctx context.Context, where []site, d ocispec.Descriptor, use func(io.Reader) error) error {
	_, err := try(ctx, where, func(s site) (struct{}, error) {
		rc, err := openBlob(ctx, s.repo, d)
		if err != nil {
			return struct{}{}, err
		}
		defer rc.Close()
		return struct{}{}, use(rc)
	})
	return err
}
