package credential

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/kitbox-dev/kitbox/capability/credential"
	"github.com/kitbox-dev/kitbox/internal/handler"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// shortest is the least length of a sentinel that a Kit chooses. A shorter one
// could stand in a header by accident.
const shortest = 8

// oauth plans tokens, and the file in which an agent looks for them.
func (h *Handler) oauth(s *handler.Scene, c *plan.Credential, o *credential.OAuth, bound Binding) (*plan.File, error) {
	if o.Passthrough && !s.AllowPassthrough {
		return nil, errors.New("the Kit wants the tokens themselves inside the sandbox (passthrough); that needs your consent, which --allow-passthrough gives")
	}
	out := &plan.OAuth{Passthrough: o.Passthrough, Access: sentinel(s.ID, c.Identity, c.Service, "access-"), Refresh: sentinel(s.ID, c.Identity, c.Service, "refresh-")}
	if t := o.Sentinels; t != nil {
		out.Access, out.Refresh = cmp.Or(t.AccessToken, out.Access), cmp.Or(t.RefreshToken, out.Refresh)
	}
	if out.Access == out.Refresh {
		return nil, errors.New("one sentinel cannot stand for the access token and the refresh token")
	}
	for _, t := range []string{out.Access, out.Refresh} {
		if len(t) < shortest || len(t) > 1024 || !httpguts.ValidHeaderFieldValue(t) || strings.ContainsAny(t, " \t") {
			return nil, fmt.Errorf("%q cannot stand for a token: %d characters at least, and nothing that a header cannot hold", t, shortest)
		}
	}
	if bound.Key {
		out.Key = sentinel(s.ID, c.Identity, c.Service, "key-")
	}
	for _, host := range o.ResourceHosts {
		if err := h.domain(host); err != nil {
			return nil, err
		}
	}
	out.Hosts = o.ResourceHosts
	if e := o.TokenEndpoint; e != nil {
		if err := h.domain(e.Host); err != nil {
			return nil, err
		}
		out.TokenHost, out.TokenPath = e.Host, e.Path
	}
	out.AccessField, out.RefreshField, out.ExpiresField = "access_token", "refresh_token", "expires_in"
	if f := o.ResponseFields; f != nil {
		out.AccessField = cmp.Or(f.AccessToken, out.AccessField)
		out.RefreshField = cmp.Or(f.RefreshToken, out.RefreshField)
		out.ExpiresField = cmp.Or(f.ExpiresIn, out.ExpiresField)
	}
	c.OAuth = out
	if o.CredentialFile == nil || o.CredentialFile.Structure == nil {
		return nil, nil
	}
	v := values{access: out.Access, refresh: out.Refresh, key: out.Key, scopes: bound.Scopes, expires: bound.Expires}
	if v.expires.IsZero() {
		// Nothing is known of its end: an agent must not look for a new one
		// where there is none to be had.
		v.expires = time.Unix(1<<32, 0)
	}
	content, err := v.render(o.CredentialFile)
	if err != nil {
		return nil, fmt.Errorf("the file %s: %w", o.CredentialFile.Path, err)
	}
	return &plan.File{Kit: c.Kit, Path: place(o.CredentialFile.Path, s.Image.Identity.Home), Content: content, Mode: 0o600, Overwrite: true, Span: span(c.Phases)}, nil
}

// place is where a file goes whose path may be below the agent's home.
func place(p, home string) string {
	if rest, ok := strings.CutPrefix(p, "~/"); ok {
		return path.Join("/", home, rest)
	}
	return path.Clean(p)
}
