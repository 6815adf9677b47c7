// Package schema holds the JSON Schemas (2020-12) of descriptors and of the
// configs of all known types, as files for editors and as bytes for programs.
//
// The files are generated from descriptor.json in package compose and from the
// schema.json of each type. A schema refuses what can be refused without
// knowing other entries, values that wait for arguments, or the kind of Kit; the
// rest is for package spec. To use one, begin a descriptor with
//
//	# yaml-language-server: $schema=kit.schema.json
package schema

import (
	"embed"
	"slices"
)

//go:generate go run github.com/kitbox-dev/kitbox/schema/generate

//go:embed kit.schema.json
var kit []byte

//go:embed capabilities
var capabilities embed.FS

// Kit returns the schema of descriptors. It refers to no other document.
func Kit() []byte { return slices.Clone(kit) }

// Capability returns the schema of the config of typ, a full type name; false if
// the type is not known. For a config-less type it accepts nothing.
func Capability(typ string) ([]byte, bool) {
	b, err := capabilities.ReadFile("capabilities/" + typ + ".schema.json")
	return b, err == nil
}
