// Package capabilitytest judges the grammars of capability types: what every
// [capability.Definition] promises, and the tables and fuzz properties that
// their own tests are written with. It is for tests only.
package capabilitytest

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/kitbox-dev/kitbox/capability"
)

// T is the part of [testing.T] that the checks need. It is an interface so that
// their own test can hand them something that records failures.
type T interface {
	Helper()
	Errorf(format string, args ...any)
}

// A Case is one config and what is found in it.
type Case struct {
	Config string          // JSON; empty: no config
	Form   capability.Form // zero: authored
	Want   []string        // the paths of the problems, in order; nil: valid
	Type   string          // empty: the type Check was given
}

// Check runs cases against d as entries of type typ. A config that is valid in
// the effective form must also be valid in the others, except where a case of
// its own says otherwise.
func Check(t T, d capability.Definition, typ string, cases []Case) {
	t.Helper()
	for _, c := range cases {
		r := Request(typ, c.Config)
		if c.Type != "" {
			r.Type = c.Type
		}
		problems := d.Check(r, c.Form)
		var got []string
		for _, p := range problems {
			got = append(got, p.Path)
			if p.Message == "" || strings.HasSuffix(p.Message, ".") {
				t.Errorf("%s %s: message %q", c.Form, c.Config, p.Message)
			}
		}
		if !slices.Equal(got, c.Want) {
			t.Errorf("%s %s: problems at %q, want %q: %+v", c.Form, c.Config, got, c.Want, problems)
		}
	}
}

// Request returns an entry with config, JSON, or none if it is empty.
func Request(typ, config string) capability.Request {
	r := capability.Request{Type: typ}
	if config != "" {
		r.Config = jsontext.Value(config)
	}
	return r
}

// From returns what kit contributes.
func From(kit, typ, config string) capability.Contribution {
	return capability.Contribution{Kit: kit, Request: Request(typ, config)}
}

// Optional returns c as an optional ask.
func Optional(c capability.Contribution) capability.Contribution {
	c.Request.Optional = true
	return c
}

// Configs returns the type, without namespace, and the config of each of cs.
func Configs(cs []capability.Contribution) []string {
	var out []string
	for _, c := range cs {
		s := strings.TrimPrefix(c.Request.Type, capability.Namespace+"/")
		if c.Request.Config != nil {
			s += " " + string(c.Request.Config)
		}
		if c.Request.Optional {
			s = "optional " + s
		}
		if c.Apart {
			s = "apart " + s
		}
		out = append(out, s)
	}
	return out
}

// Merged fails unless d merges cs into want, in the spelling of [Configs],
// with a conflict for each of keys.
func Merged(t T, d capability.Definition, mode capability.MergeMode, cs []capability.Contribution, want []string, keys ...string) {
	t.Helper()
	before := Configs(cs)
	out, conflicts := d.Merge(mode, cs)
	var got []string
	for _, c := range conflicts {
		got = append(got, c.Key)
		if len(c.Kits) == 0 || !strings.Contains(c.Message, c.Kits[0]) {
			t.Errorf("conflict names no Kit: %+v", c)
		}
	}
	if !slices.Equal(got, keys) {
		t.Errorf("conflicts on %q, want %q: %+v", got, keys, conflicts)
	}
	if len(keys) == 0 && !slices.Equal(Configs(out), want) {
		t.Errorf("merged %q\n into %q\n want %q", Configs(cs), Configs(out), want)
	}
	if !slices.Equal(before, Configs(cs)) {
		t.Errorf("merging changed its arguments: %q became %q", before, Configs(cs))
	}
}

// Lines fails unless r adds the lines want, each "list value", to the surface.
func Lines(t T, d capability.Definition, r capability.Request, want ...string) {
	t.Helper()
	var got []string
	for _, l := range d.Surface(r) {
		got = append(got, l.List+" "+l.Value)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s %s: lines %q, want %q", r.Type, r.Config, got, want)
	}
}

// Claims fails unless r claims want, each "space|key|at".
func Claims(t T, d capability.Definition, r capability.Request, want ...string) {
	t.Helper()
	var got []string
	for _, c := range d.Claims(r) {
		got = append(got, c.Space+"|"+c.Key+"|"+c.At)
		if c.What == "" {
			t.Errorf("claim on %s has no noun", c.Key)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s %s: claims %q, want %q", r.Type, r.Config, got, want)
	}
}

// RoundTrip is the fuzz property of a decoder: it may refuse anything, but what
// it accepts can be written back and read again as the same value, and nothing
// that reads configs panics. Seeds are tried as a config of each type.
func RoundTrip[C interface {
	Encode() (capability.Request, error)
}](f *testing.F, d capability.Definition, decode func(capability.Request) (C, error), seeds ...string) {
	accepted := 0
	for _, s := range seeds {
		f.Add(s)
		for _, typ := range d.Types {
			if _, err := decode(Request(typ, s)); err == nil {
				accepted++
			}
			if _, err := decode(Request("com.example/other@1", s)); err == nil {
				f.Errorf("%q is accepted as the config of another type", s)
			}
		}
	}
	if accepted == 0 {
		f.Fatal("no seed is accepted, so the property is vacuous")
	}
	f.Fuzz(func(t *testing.T, config string) {
		for _, typ := range d.Types {
			r := Request(typ, config)
			for _, form := range []capability.Form{capability.Authored, capability.Published, capability.Effective} {
				d.Check(r, form)
			}
			for _, mode := range []capability.MergeMode{capability.MergeRuntime, capability.MergePublish} {
				d.Merge(mode, []capability.Contribution{{Kit: "a", Request: r}, {Kit: "b", Request: r}})
			}
			c, err := decode(r)
			in := capability.Inspection{Problems: d.Check(r, capability.Effective)}
			if wrong := in.Err(typ) != nil; wrong != (err != nil) {
				t.Fatalf("%s %s: Decode says %v, Check says otherwise", typ, config, err)
			}
			if err != nil {
				continue // refusing is always allowed
			}
			again, err := c.Encode()
			if err != nil {
				t.Fatalf("accepted %s %q but cannot encode it: %v", typ, config, err)
			}
			c2, err := decode(again)
			if err != nil || !reflect.DeepEqual(c, c2) {
				t.Fatalf("%q changed on the way around through %s: %+v then %+v, %v", config, again.Config, c, c2, err)
			}
		}
	})
}

// Hostile are configs that no decoder may choke on. They are short, so that they
// can be seeds; see Deep.
var Hostile = []string{
	``, `null`, `{}`, `[]`, `""`, `{"path":null}`, `{"path":1}`, `{`, "\xff", `{"a":1,"a":2}`, `{"a":{"b":[null,{"c":null}]}}`,
	`{"path":"${{ kit.args.x }}"}`, `{"${{ kit.args.k }}":1}`,
}

// Deep are configs nested too deep to be decoded.
var Deep = []string{strings.Repeat(`{"config":`, 9000), strings.Repeat(`[`, 20000), `{"path":` + strings.Repeat(`[`, 9000) + strings.Repeat(`]`, 9000) + `}`}
