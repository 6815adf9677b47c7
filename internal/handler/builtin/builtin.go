// Package builtin lists the handlers of this host. Adding a capability is adding
// a line here; what is not listed is refused by name when a Kit requires it.
package builtin

import (
	"context"

	"github.com/kitbox-dev/kitbox/internal/handler"
	"github.com/kitbox-dev/kitbox/internal/handler/credential"
	"github.com/kitbox-dev/kitbox/internal/handler/dockerauth"
	"github.com/kitbox-dev/kitbox/internal/handler/hostmount"
	"github.com/kitbox-dev/kitbox/internal/handler/hostport"
	"github.com/kitbox-dev/kitbox/internal/handler/kitregistry"
	"github.com/kitbox-dev/kitbox/internal/handler/lifecycle"
	"github.com/kitbox-dev/kitbox/internal/handler/longrunning"
	"github.com/kitbox-dev/kitbox/internal/handler/networkpolicy"
	"github.com/kitbox-dev/kitbox/internal/handler/port"
	"github.com/kitbox-dev/kitbox/internal/handler/privileged"
	"github.com/kitbox-dev/kitbox/internal/handler/resources"
	"github.com/kitbox-dev/kitbox/internal/handler/sbx"
	"github.com/kitbox-dev/kitbox/internal/handler/volume"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// Host is what handlers may ask of the machine they run on.
type Host struct {
	Storage volume.Storage              // required
	Rule    func(plan.EgressRule) error // judges an egress rule; nil accepts all

	// HostMount places the shared directory of a Kit and a path; nil: there
	// are none.
	HostMount func(identity, path string) (handle, dir string)

	// Secret says what is stored for a service, asked for by a Kit of this
	// identity in a sandbox of this name; nil: nothing is.
	Secret func(service, identity, sandbox string) (credential.Binding, error)

	// Domain judges a pattern of hosts that secrets would be sent to; nil
	// accepts all.
	Domain func(pattern string) error

	// Capabilities are all that root inside can be given; none: there is no
	// privileged mode.
	Capabilities []string

	// Login reports whether there is a login for an image registry that can
	// be presented; nil: there is none. DockerConfig is where it is kept.
	Login        func(ctx context.Context, registry string) error
	DockerConfig string

	// Registry is where sandboxes reach the registry of Kits; empty: there
	// is none.
	Registry string

	Resources resources.Host // what the machine has and holds
}

// Handlers returns one handler per capability, in the order their effects are
// laid down: identity and workspace first, since mounts and hooks refer to
// them.
func Handlers(h Host) handler.List {
	return handler.List{
		&sbx.Handler{},
		&networkpolicy.Handler{Check: h.Rule},
		&credential.Handler{Stored: h.Secret, Domain: h.Domain},
		&resources.Handler{Host: h.Resources},
		&volume.Handler{Storage: h.Storage},
		&hostmount.Handler{Place: h.HostMount},
		&port.Handler{},
		&hostport.Handler{},
		&kitregistry.Handler{Address: h.Registry},
		&dockerauth.Handler{Login: h.Login, Config: h.DockerConfig},
		&longrunning.Handler{},
		&privileged.Handler{Capabilities: h.Capabilities},
		&lifecycle.Handler{},
	}
}
