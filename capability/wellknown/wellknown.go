// Package wellknown is the list of the capability types whose grammar this
// module has. Everything else is opaque (§7.3).
package wellknown

import (
	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/lifecycle"
	"github.com/kitbox-dev/kitbox/capability/networkpolicy"
	"github.com/kitbox-dev/kitbox/capability/sbx"
	"github.com/kitbox-dev/kitbox/capability/volume"
)

// Definitions returns the grammars in the order of their names. Adding a type
// is adding a line here and in Find.
func Definitions() []capability.Definition {
	return []capability.Definition{
		lifecycle.Definition(),
		networkpolicy.Definition(),
		sbx.Definition(),
		volume.Definition(),
	}
}

// Find returns the grammar that typ belongs to.
func Find(typ string) (capability.Definition, bool) {
	switch typ {
	case lifecycle.Type:
		return lifecycle.Definition(), true
	case networkpolicy.Type, networkpolicy.TypeV2:
		return networkpolicy.Definition(), true
	case sbx.Type:
		return sbx.Definition(), true
	case volume.Type:
		return volume.Definition(), true
	}
	return capability.Definition{}, false
}
