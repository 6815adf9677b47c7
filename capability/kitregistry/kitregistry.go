// Package kitregistry is the grammar of the kit-registry capability: a way to
// the registry over the host's own image store. Where it is and what it serves,
// the host decides in internal/handler/kitregistry.
package kitregistry

import (
	_ "embed"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/presence"
)

// Type is the wire name.
const Type = capability.Namespace + "/kit-registry@1"

// A Config is empty: the entry is the whole request.
type Config struct{}

// Decode checks that r has no config. The error is a [capability.InvalidError].
func Decode(r capability.Request) (Config, error) { return Config{}, presence.Decode(Type, r) }

// Encode returns the request, which cannot fail.
func (Config) Encode() (capability.Request, error) { return capability.Request{Type: Type}, nil }

//go:embed schema.json
var schema []byte

var definition = presence.Definition(Type, capability.ListServices, "", schema)

// Definition returns the grammar of the type. It is a service on
// the permission surface.
func Definition() capability.Definition { return definition }
