// Package sbx is the grammar of the sbx capability: the workload is made for an
// agent sandbox, whose host starts the agent itself and honours the user that
// the image names. The duties of image and host are in internal/handler/sbx.
package sbx

import (
	_ "embed"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/presence"
)

// Type is the wire name.
const Type = capability.Namespace + "/sbx@1"

// A Config is empty: the entry is the whole request.
type Config struct{}

// Decode checks that r has no config. The error is a [capability.InvalidError].
func Decode(r capability.Request) (Config, error) { return Config{}, presence.Decode(Type, r) }

// Encode returns the request, which cannot fail.
func (Config) Encode() (capability.Request, error) { return capability.Request{Type: Type}, nil }

//go:embed schema.json
var schema []byte

var definition = presence.Definition(Type, "", "", schema)

// Definition returns the grammar of the type. It grants nothing: it changes how
// the host runs the workload, not what the workload may reach.
func Definition() capability.Definition { return definition }
