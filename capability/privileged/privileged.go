// Package privileged is the grammar of the privileged capability: elevated
// privilege, which dissolves most of the boundary. Whether a host ever grants it
// is decided in internal/handler/privileged.
package privileged

import (
	_ "embed"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/presence"
)

// Type is the wire name.
const Type = capability.Namespace + "/privileged@1"

// A Config is empty: the entry is the whole request.
type Config struct{}

// Decode checks that r has no config. The error is a [capability.InvalidError].
func Decode(r capability.Request) (Config, error) { return Config{}, presence.Decode(Type, r) }

// Encode returns the request, which cannot fail.
func (Config) Encode() (capability.Request, error) { return capability.Request{Type: Type}, nil }

//go:embed schema.json
var schema []byte

var definition = presence.Definition(Type, capability.ListPrivileged, "", schema)

// Definition returns the grammar of the type. It is the
// strongest single line of the permission surface.
func Definition() capability.Definition { return definition }
