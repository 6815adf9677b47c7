// Package longrunning is the grammar of the long-running capability: the
// sandbox is not stopped for want of a client. What the host does about it is in
// internal/handler/longrunning.
package longrunning

import (
	_ "embed"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/presence"
)

// Type is the wire name.
const Type = capability.Namespace + "/long-running@1"

// A Config is empty: the entry is the whole request.
type Config struct{}

// Decode checks that r has no config. The error is a [capability.InvalidError].
func Decode(r capability.Request) (Config, error) { return Config{}, presence.Decode(Type, r) }

// Encode returns the request, which cannot fail.
func (Config) Encode() (capability.Request, error) { return capability.Request{Type: Type}, nil }

//go:embed schema.json
var schema []byte

var definition = presence.Definition(Type, "", "long-running@1/no-config", schema)

// Definition returns the grammar of the type. It grants
// nothing: it changes when the host stops the workload.
func Definition() capability.Definition { return definition }
