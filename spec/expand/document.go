package expand

import (
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/kitbox-dev/kitbox/capability/wellknown"
)

// keepTextOf returns the rule for the text fields of the entries of a document
// in the shape of a descriptor. Fields of different entries share a generic
// path, so the rule goes by the real one.
func keepTextOf(doc jsontext.Value) func(at, generic string) bool {
	type entry struct {
		Type  string `json:"type"`
		Group *struct {
			Capabilities []entryType `json:"capabilities"`
		} `json:"group"`
	}
	var d struct {
		Capabilities []entry `json:"capabilities"`
	}
	if json.Unmarshal(doc, &d) != nil {
		return func(string, string) bool { return false }
	}
	keep := map[string]bool{}
	note := func(prefix, typ string) {
		if def, ok := wellknown.Find(typ); ok {
			for _, f := range def.KeepText {
				keep[prefix+".config."+f] = true
			}
		}
	}
	for i, c := range d.Capabilities {
		p := "capabilities[" + strconv.Itoa(i) + "]"
		note(p, c.Type)
		if c.Group != nil {
			for j, m := range c.Group.Capabilities {
				note(p+".group.capabilities["+strconv.Itoa(j)+"]", m.Type)
			}
		}
	}
	return func(at, _ string) bool { return keep[at] }
}

type entryType struct {
	Type string `json:"type"`
}
