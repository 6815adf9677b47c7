// Package sbx is this host's answer to sbx@1: the guest is process 1, the
// workload is launched under bash as the image's own user, the workspace is the
// image's working directory, and four variables belong to the host.
//
// The grammar is in capability/sbx.
package sbx

import (
	"context"
	"path"
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/sbx"
	"github.com/kitbox-dev/kitbox/internal/handler"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// A Handler needs nothing of the host.
type Handler struct{}

// Types implements [handler.Handler].
func (*Handler) Types() []string { return []string{sbx.Type} }

// shells are what the host runs hooks and the workload through.
var shells = []string{"/bin/sh", "/bin/bash"}

// Accept implements [handler.Handler]. It declines an image that does not keep
// its half: a user that resolves, and both shells.
func (*Handler) Accept(_ context.Context, s *handler.Scene, c capability.Contribution) error {
	if _, err := sbx.Decode(c.Request); err != nil {
		return err
	}
	refuse := func(reason string) error {
		return &capability.RefusedError{Kit: c.Kit, Type: c.Request.Type, Reason: reason}
	}
	switch {
	case s.Image.User == "":
		return refuse("the image declares no user; add USER to its recipe")
	case s.Image.IdentityErr != nil:
		return refuse("the image's " + s.Image.IdentityErr.Error())
	}
	if s.Image.Executable == nil {
		return nil
	}
	for _, sh := range shells {
		if err := s.Image.Executable(sh); err != nil {
			return refuse("the image's " + err.Error())
		}
	}
	return nil
}

// Plan implements [handler.Handler].
func (*Handler) Plan(_ context.Context, s *handler.Scene, _ []capability.Contribution, p *plan.Plan) error {
	p.Launch.Bash = true
	if path.IsAbs(s.Image.Dir) && path.Clean(s.Image.Dir) != "/" { // nothing can be mounted over "/"
		p.Launch.Dir = path.Clean(s.Image.Dir)
	}
	owned := map[string]string{"WORKSPACE_DIR": p.Launch.Dir, "SANDBOX_NAME": s.Name, "SANDBOX_ID": s.ID, "IS_SANDBOX": "1"}
	if s.NoWorkspace {
		owned["WORKSPACE_DIR"] = ""
	}
	env := slices.DeleteFunc(slices.Clone(p.Launch.Env), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		_, ours := owned[name]
		return ours
	})
	for name, value := range owned {
		if value != "" {
			env = append(env, name+"="+value)
		}
		p.Launch.Owned = append(p.Launch.Owned, name)
	}
	slices.Sort(env)
	slices.Sort(p.Launch.Owned)
	p.Launch.Env = env
	return nil
}
