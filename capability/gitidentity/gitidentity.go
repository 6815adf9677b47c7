// Package gitidentity is the grammar of the git-identity capability: the
// name and mail address that the user's commits carry. Which pair that is, the
// host decides in internal/handler/gitidentity.
package gitidentity

import (
	_ "embed"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/presence"
)

// Type is the wire name.
const Type = capability.Namespace + "/git-identity@1"

// A Config is empty: the entry is the whole request.
type Config struct{}

// Decode checks that r has no config. The error is a [capability.InvalidError].
func Decode(r capability.Request) (Config, error) { return Config{}, presence.Decode(Type, r) }

// Encode returns the request, which cannot fail.
func (Config) Encode() (capability.Request, error) { return capability.Request{Type: Type}, nil }

//go:embed schema.json
var schema []byte

var definition = presence.Definition(Type, capability.ListServices, "git-identity@1/no-config", schema)

// Definition returns the grammar of the type. It is a service on
// the permission surface.
func Definition() capability.Definition { return definition }
