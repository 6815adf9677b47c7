// Package presence is the grammar of types that take no config: the entry is
// the whole request. It says nothing about what is requested; each such type
// has a package of its own.
package presence

import (
	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/merge"
)

const fault = "this type takes no config, not even an empty one: remove the field"

// Decode returns an error if r carries a config of any kind or is not of type
// typ.
func Decode(typ string, r capability.Request) error {
	var in capability.Inspection
	if r.Type != typ {
		in.Problem("type", "is not "+typ)
	}
	inspect(r, "", &in)
	return in.Err(r.Type)
}

func inspect(r capability.Request, statement string, in *capability.Inspection) bool {
	if r.Config != nil {
		in.Problems = append(in.Problems, capability.Problem{Path: "config", Message: fault, Statement: statement, Decode: true})
		return false
	}
	return true
}

// Definition returns the grammar of the config-less singleton typ. A request
// adds one line to list, or none if list is empty; any number of requests
// merge into one. Statement is the id of the rule that forbids a config, if it
// has one; schema accepts nothing.
func Definition(typ, list, statement string, schema []byte) capability.Definition {
	return capability.Definition{
		Types:   []string{typ},
		Arity:   capability.Singleton,
		Service: list == capability.ListServices,
		Inspect: func(r capability.Request, _ capability.Form, in *capability.Inspection) {
			if inspect(r, statement, in) && list != "" {
				in.Line(list, typ)
			}
		},
		Merge: func(_ capability.MergeMode, cs []capability.Contribution) ([]capability.Contribution, []capability.Conflict) {
			return merge.Keyed(cs, func(capability.Contribution) (string, bool) { return typ, true },
				func(a, b capability.Contribution, _ string) (capability.Contribution, *capability.Conflict) {
					return merge.Join(a, b), nil
				})
		},
		Schema: func(string) []byte { return schema },
	}
}
