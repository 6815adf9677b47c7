// Package compose makes the schemas of this module into files that an editor
// can use without a network: one for descriptors, with the schemas of all known
// types inside it, and one per type. It runs when schemas are generated and
// when a test asks whether they are current; programs read package schema.
package compose

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/wellknown"
)

// descriptor is the schema of everything but configs.
//
//go:embed descriptor.json
var descriptor []byte

// A File is generated. Name is relative to the schema directory, with slashes.
type File struct {
	Name string
	Data []byte
}

// Files returns the generated files in the order of their names' types, the
// same bytes at every call. It fails only if a schema in this module is not
// well formed.
func Files() ([]File, error) {
	var types []File
	var root map[string]any
	if err := json.Unmarshal(descriptor, &root); err != nil {
		return nil, fmt.Errorf("descriptor.json: %w", err)
	}
	defs := root["$defs"].(map[string]any)
	var rules []any // one per type, about the config of an entry
	for _, d := range wellknown.Definitions() {
		for _, typ := range d.Types {
			var config map[string]any
			if err := json.Unmarshal(d.Schema(typ), &config); err != nil {
				return nil, fmt.Errorf("schema of %s: %w", typ, err)
			}
			alone, err := render(config)
			if err != nil {
				return nil, err
			}
			types = append(types, File{"capabilities/" + typ + ".schema.json", alone})

			then := map[string]any{"required": []any{"config"}, "properties": map[string]any{"config": map[string]any{"$ref": "#/$defs/" + name(typ)}}}
			if _, configless := config["not"].(map[string]any); configless && config["properties"] == nil {
				then = map[string]any{"not": map[string]any{"required": []any{"config"}}}
			} else {
				delete(config, "$schema") // only the root of a document may state it
				rebase(config, "#/$defs/"+name(typ))
				defs[name(typ)] = config
			}
			rules = append(rules, map[string]any{
				"if":   map[string]any{"required": []any{"type"}, "properties": map[string]any{"type": map[string]any{"const": typ}}},
				"then": then,
			})
			for _, def := range []string{"entry", "member"} {
				offer(defs[def].(map[string]any), typ)
			}
		}
	}
	for _, def := range []string{"entry", "member"} {
		defs[def].(map[string]any)["allOf"] = rules
	}
	all, err := render(root)
	if err != nil {
		return nil, err
	}
	return append([]File{{"kit.schema.json", all}}, types...), nil
}

// name returns the key of typ among the definitions.
func name(typ string) string { return strings.TrimPrefix(typ, capability.Namespace+"/") }

// rebase makes references within a schema hold where the schema is now: at the
// pointer to, instead of at the root of a document. Editors follow pointers;
// not all of them follow an $id inside a document.
func rebase(node any, to string) {
	switch n := node.(type) {
	case map[string]any:
		if ref, ok := n["$ref"].(string); ok {
			n["$ref"] = to + strings.TrimPrefix(ref, "#")
		}
		for _, v := range n {
			rebase(v, to)
		}
	case []any:
		for _, v := range n {
			rebase(v, to)
		}
	}
}

// offer lists typ among the types that an editor proposes. Other types stay
// legal: they are opaque.
func offer(entry map[string]any, typ string) {
	field := entry["properties"].(map[string]any)["type"].(map[string]any)
	examples, _ := field["examples"].([]any)
	field["examples"] = append(examples, typ)
}

// render writes v with sorted fields.
func render(v any) ([]byte, error) {
	b, err := json.Marshal(v, json.Deterministic(true), jsontext.WithIndent("  "))
	if err != nil {
		return nil, err
	}
	return append(b, '\n'), nil
}
