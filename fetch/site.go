package fetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/retry"

	"github.com/kitbox-dev/kitbox/internal/mirror"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/internal/upstream"
	"github.com/kitbox-dev/kitbox/kiterr"
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
			Client:     &http.Client{Transport: retry.NewTransport(elsewhere{idleTransport{transport, silence}}), CheckRedirect: follow},
			Cache:      auth.NewCache(),
			Credential: f.login,
		}
		f.client.SetUserAgent("kitbox")
		f.mirrors, f.setupErr = mirror.Read(f.Home, os.Getenv)
	})
	return &remote.Repository{Reference: r, Client: f.client, PlainHTTP: loopback(r.Registry), MaxMetadataBytes: layout.MaxDocument}, f.setupErr
}

// maxRedirects is what programs follow before they take it for a circle.
const maxRedirects = 10

// follow refuses where no registry keeps anything: a place without TLS, reached from
// one with it, where anybody on the way could answer for a tag; and addresses that
// mean another machine for everybody, such as this machine's own, or the one that
// tells a cloud's machines their secrets.
func follow(req *http.Request, via []*http.Request) error {
	from := via[0].URL
	to := req.URL
	switch {
	case len(via) >= maxRedirects:
		return fmt.Errorf("stopped after %d redirects", maxRedirects)
	case from.Scheme == "https" && to.Scheme != "https":
		return fmt.Errorf("%s sends its clients to %s, without TLS: %w", from.Host, to.Host, kiterr.ErrRefused)
	case to.Hostname() != from.Hostname() && near(to.Hostname(), loopback(from.Host)):
		return fmt.Errorf("%s sends its clients to %s, an address within this machine or its network segment: %w", from.Host, to.Host, kiterr.ErrRefused)
	}
	return nil
}

// elsewhere makes an error of a refusal by a place that a registry sends its clients
// to: it is not the registry's, and does not say that there is no such Kit.
type elsewhere struct{ next http.RoundTripper }

func (e elsewhere) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := e.next.RoundTrip(req)
	if err != nil || req.Response == nil || req.Response.Request.URL.Host == req.URL.Host {
		return resp, err
	}
	switch resp.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusGone:
		resp.Body.Close()
		return nil, &elsewhereError{req.URL.Host, resp.StatusCode}
	}
	return resp, nil
}

// An elsewhereError is what a place answers that a registry sends its clients to.
type elsewhereError struct {
	host   string
	status int
}

func (e *elsewhereError) Error() string {
	return fmt.Sprintf("%s answers %d %s", e.host, e.status, http.StatusText(e.status))
}

// near reports whether host is an address that is another machine's everywhere, or
// this one's unless that is where we are.
func near(host string, here bool) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return !here && (host == "localhost" || strings.HasSuffix(host, ".localhost"))
	}
	ip = ip.Unmap()
	return ip.IsLinkLocalUnicast() || ip.IsMulticast() || ip.IsUnspecified() || ip.IsLoopback() && !here
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
