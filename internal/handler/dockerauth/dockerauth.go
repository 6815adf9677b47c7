// Package dockerauth is this host's answer to docker-auth@1: a Docker configuration
// inside with a stand-in for each login, which the boundary presents
// (internal/boundary/dockerauth). The grammar is in capability/dockerauth.
package dockerauth

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"path"
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/dockerauth"
	"github.com/kitbox-dev/kitbox/internal/handler"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// A Handler plans the use of logins.
type Handler struct {
	// Login reports whether this host has a login for a registry that can
	// be presented; the error says why not and holds nothing of one. Nil:
	// this host has none.
	Login func(ctx context.Context, registry string) error

	// Config is the directory of the Docker configuration of the host.
	Config string
}

// Types implements [handler.Handler].
func (*Handler) Types() []string { return []string{dockerauth.Type} }

// Accept implements [handler.Handler].
func (h *Handler) Accept(ctx context.Context, _ *handler.Scene, c capability.Contribution) error {
	config, err := dockerauth.Decode(c.Request)
	if err != nil {
		return err
	}
	if h.Login == nil {
		return &capability.RefusedError{Kit: c.Kit, Type: c.Request.Type, Reason: "this host presents no registry logins"}
	}
	if err := h.Login(ctx, config.Host()); err != nil {
		return &capability.RefusedError{Kit: c.Kit, Type: c.Request.Type, Reason: err.Error()}
	}
	return nil
}

// hub is the key of Docker Hub in a Docker configuration.
const hub = "https://index.docker.io/v1/"

// Plan implements [handler.Handler].
func (h *Handler) Plan(_ context.Context, s *handler.Scene, cs []capability.Contribution, p *plan.Plan) error {
	type entry struct {
		Auth string `json:"auth"`
	}
	auths := map[string]entry{}
	for _, c := range cs {
		config, err := dockerauth.Decode(c.Request)
		if err != nil {
			return err
		}
		a := plan.DockerAuth{Registry: config.Host(), Placeholder: "kitbox-login-" + rand.Text(), Config: h.Config}
		for _, part := range handler.Parts(c) {
			if !slices.Contains(a.Kits, part.Kit) {
				a.Kits = append(a.Kits, part.Kit)
			}
		}
		p.DockerAuth = append(p.DockerAuth, a)
		key := a.Registry
		if key == "docker.io" {
			key = hub
		}
		auths[key] = entry{base64.StdEncoding.EncodeToString([]byte(plan.DockerUser + ":" + a.Placeholder))}
	}
	b, err := json.MarshalIndent(map[string]any{"auths": auths}, "", "  ")
	if err != nil {
		return err
	}
	p.Files = append(p.Files, plan.File{Kit: p.DockerAuth[0].Kits[0], Path: path.Join(directory(s, p), "config.json"), Content: string(b) + "\n", Mode: 0o600, Overwrite: true, Span: plan.BothPhases})
	return nil
}

// directory is where programs of the workload's user look for the configuration.
func directory(s *handler.Scene, p *plan.Plan) string {
	for _, kv := range p.Launch.Env {
		if d, ok := strings.CutPrefix(kv, "DOCKER_CONFIG="); ok && path.IsAbs(d) {
			return path.Clean(d)
		}
	}
	home := s.Image.Identity.Home
	if !path.IsAbs(home) {
		home = "/"
	}
	return path.Join(home, ".docker")
}
