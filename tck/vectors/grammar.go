package vectors

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/resolve"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/constraint"
	"github.com/kitbox-dev/kitbox/spec/expand"
)

func runDescriptor(input jsontext.Value) (result, error) {
	in, err := read[struct {
		Form   string  `json:"form"`
		YAML   *string `json:"yaml"`
		Prefix string  `json:"yaml_prefix"`
		Pad    struct {
			Char  string `json:"char"`
			Count int    `json:"count"`
		} `json:"pad"`
	}](input)
	if err != nil {
		return nil, err
	}
	src := in.Prefix + strings.Repeat(in.Pad.Char, in.Pad.Count) + "\n"
	if in.YAML != nil {
		src = *in.YAML
	}
	var o spec.Options
	switch in.Form {
	case "authored", "authored-expanded", "":
	case "published":
		o.Form = capability.Published
	case "effective":
		o.Form = capability.Effective
	default:
		return nil, fmt.Errorf("form %q", in.Form)
	}
	doc, diags := spec.Decode([]byte(src), o)
	if !diags.HasErrors() {
		diags = append(diags, doc.Validate()...)
	}
	return findings(diags), nil
}

func findings(diags spec.Diagnostics) result {
	r := result{"ok": !diags.HasErrors()}
	paths := []string{}
	var messages []string
	warnings := 0
	for _, d := range diags {
		if d.Severity == spec.Warning {
			warnings++
			continue
		}
		if len(paths) == 0 {
			r["stage"], r["path"] = d.Stage, d.Path
		}
		paths = append(paths, d.Path)
		messages = append(messages, d.Message)
	}
	r["paths"], r["warnings"] = paths, warnings
	if messages != nil {
		r["messages"] = messages
	}
	return r
}

func runVersion(input jsontext.Value) (result, error) {
	in, err := read[struct{ Op, Provide, Require, A, B, Tag, Reference string }](lowered(input))
	if err != nil {
		return nil, err
	}
	switch in.Op {
	case "satisfies":
		p, err := constraint.ParseProvide(in.Provide)
		if err != nil {
			return result{"error": err.Error()}, nil
		}
		r, err := constraint.ParseRelation(in.Require)
		if err != nil {
			return result{"error": err.Error()}, nil
		}
		return result{"satisfies": r.SatisfiedBy(p)}, nil
	case "compare":
		return result{"cmp": constraint.Compare(in.A, in.B)}, nil
	case "parse-require":
		r, err := constraint.ParseRelation(in.Require)
		if err != nil {
			return result{"error": true, "message": err.Error()}, nil
		}
		cs := [][2]string{}
		for _, c := range r.Constraints {
			cs = append(cs, [2]string{string(c.Op), c.Version})
		}
		return result{"name": r.Name.String(), "constraints": cs}, nil
	case "same-relation":
		a, err := constraint.ParseRelation(in.A)
		b, err2 := constraint.ParseRelation(in.B)
		if err := errors.Join(err, err2); err != nil {
			return result{"error": err.Error()}, nil
		}
		return result{"same": a.Canonical() == b.Canonical()}, nil
	case "tag-version":
		return result{"version": constraint.TagVersion(in.Tag)}, nil
	case "reference-version":
		return result{"version": constraint.ReferenceVersion(in.Reference)}, nil
	}
	return nil, fmt.Errorf("op %q", in.Op)
}

// lowered returns an object with its first level of keys capitalized, so that
// short structs without tags can read it.
func lowered(v jsontext.Value) jsontext.Value {
	var m map[string]jsontext.Value
	if json.Unmarshal(v, &m) != nil {
		return v
	}
	out := make(map[string]jsontext.Value, len(m))
	for k, e := range m {
		if k != "" {
			k = strings.ToUpper(k[:1]) + k[1:]
		}
		out[k] = e
	}
	b, err := json.Marshal(out)
	if err != nil {
		return v
	}
	return b
}

// kits reads a list of descriptors with references.
func kits(list []jsontext.Value) ([]resolve.Kit, error) {
	out := make([]resolve.Kit, len(list))
	for i, raw := range list {
		k, err := kit(raw)
		if err != nil {
			return nil, err
		}
		out[i] = k
	}
	return out, nil
}

// kit reads one descriptor whose object also holds its reference. Only its
// shape is judged: vectors give fragments.
func kit(raw jsontext.Value) (resolve.Kit, error) {
	var m map[string]jsontext.Value
	if err := json.Unmarshal(raw, &m); err != nil {
		return resolve.Kit{}, err
	}
	var ref string
	if r, ok := m["ref"]; ok {
		if err := json.Unmarshal(r, &ref); err != nil {
			return resolve.Kit{}, err
		}
		delete(m, "ref")
	}
	if _, ok := m["schemaVersion"]; !ok {
		m["schemaVersion"] = jsontext.Value(`"3"`)
	}
	b, err := json.Marshal(m, json.Deterministic(true))
	if err != nil {
		return resolve.Kit{}, err
	}
	doc, diags := spec.Decode(b, spec.Options{Form: capability.Published})
	if err := diags.Err(); err != nil {
		return resolve.Kit{}, err
	}
	return resolve.Kit{Ref: ref, Descriptor: doc.Descriptor}, nil
}

func runResolve(input jsontext.Value) (result, error) {
	in, err := read[struct {
		Kits    []jsontext.Value `json:"kits"`
		Partial bool             `json:"partial"`
	}](input)
	if err != nil {
		return nil, err
	}
	ks, err := kits(in.Kits)
	if err != nil {
		return nil, err
	}
	set, err := resolve.Resolve(ks, resolve.Options{Partial: in.Partial})
	if err != nil {
		r := result{"ok": false, "message": err.Error()}
		var re *resolve.Error
		if errors.As(err, &re) {
			var names []string
			for _, v := range re.Violations {
				if !slices.Contains(names, string(v.Rule)) {
					names = append(names, string(v.Rule))
				}
			}
			r["errors"] = names
		}
		return r, nil
	}
	// Kits whose asks cannot stand together form no set either.
	if _, err := resolve.Merge(capability.MergeRuntime, contributions(set.Declarations)); err != nil {
		return result{"ok": false, "message": err.Error(), "errors": []string{"capability-conflict"}}, nil
	}
	return result{"ok": true, "topological": refs(set.Declarations), "layers": refs(set.Layers)}, nil
}

func refs(ks []resolve.Kit) []string {
	out := make([]string, len(ks))
	for i, k := range ks {
		out[i] = k.Ref
	}
	return out
}

// args reads declarations of arguments by way of a descriptor.
func args(raw jsontext.Value) (map[string]spec.Arg, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	doc := append([]byte(`{"schemaVersion":"3","kind":"mixin","args":`), raw...)
	d, diags := spec.Decode(append(doc, '}'), spec.Options{Form: capability.Published})
	if err := diags.Err(); err != nil {
		return nil, err
	}
	return d.Args, nil
}

func runArgs(input jsontext.Value) (result, error) {
	in, err := read[struct {
		Op       string            `json:"op"`
		Phase    string            `json:"phase"`
		Document jsontext.Value    `json:"document"`
		Args     jsontext.Value    `json:"args"`
		Values   map[string]string `json:"values"`
		Supplied map[string]string `json:"supplied"`
		Where    string            `json:"where"`
		Value    string            `json:"value"`
		Env      map[string]string `json:"env"`
	}](input)
	if err != nil {
		return nil, err
	}
	declared, err := args(in.Args)
	if err != nil {
		return nil, err
	}
	phase := map[string]expand.Phase{"build": expand.PhaseBuild, "create": expand.PhaseCreate, "": expand.PhaseAny}
	p, ok := phase[in.Phase]
	if !ok {
		return nil, fmt.Errorf("phase %q", in.Phase)
	}
	switch in.Op {
	case "expand":
		out, err := expand.Document(in.Document, p, declared, in.Values)
		if err != nil {
			return result{"error": err.Error()}, nil
		}
		return result{"document": out}, nil
	case "resolve":
		values, err := expand.ResolveArgs(declared, in.Supplied, p)
		if err != nil {
			return result{"error": err.Error()}, nil
		}
		return result{"values": values}, nil
	case "expand-env":
		return expandEnv(in.Where, in.Value, in.Env)
	}
	return nil, fmt.Errorf("op %q", in.Op)
}

// expandEnv puts a string where the vector says in a descriptor and expands
// that.
func expandEnv(where, value string, env map[string]string) (result, error) {
	const opaque = "com.example/x@1"
	encoded, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	d := spec.Descriptor{SchemaVersion: "3", Kind: spec.KindMixin}
	r := capability.Request{Type: opaque}
	switch where {
	case "config":
		r.Config = jsontext.Value(`{"v":` + string(encoded) + `}`)
	case "key":
		r.Config = jsontext.Value(`{` + string(encoded) + `:1}`)
	default:
		d.Description = value
		r.Description = value
	}
	d.Capabilities = []spec.Item{{Request: r}}
	out, err := expand.Env(d, env)
	if err != nil {
		return result{"error": err.Error()}, nil
	}
	if where != "config" {
		return result{"value": out.Description}, nil
	}
	var cfg struct {
		V any `json:"v"`
	}
	if err := json.Unmarshal(out.Capabilities[0].Config, &cfg); err != nil {
		return nil, err
	}
	return result{"value": cfg.V}, nil
}

func runKitArgs(input jsontext.Value) (result, error) {
	in, err := read[struct {
		Op       string            `json:"op"`
		Declared jsontext.Value    `json:"declared"`
		Supplied map[string]string `json:"supplied"`
		Kit      jsontext.Value    `json:"kit"`
		Set      jsontext.Value    `json:"set"`
	}](input)
	if err != nil {
		return nil, err
	}
	switch in.Op {
	case "kit-args":
		declared, err := args(in.Declared)
		if err != nil {
			return nil, err
		}
		values, err := resolve.KitArgs(declared, in.Supplied)
		if err != nil {
			return result{"error": err.Error()}, nil
		}
		return result{"values": values}, nil
	case "re-export":
		one := func(v jsontext.Value) (*spec.Arg, error) {
			if len(v) == 0 || string(v) == "null" {
				return nil, nil
			}
			m, err := args(jsontext.Value(`{"x":` + string(v) + `}`))
			a := m["x"]
			return &a, err
		}
		k, err := one(in.Kit)
		if err != nil {
			return nil, err
		}
		s, err := one(in.Set)
		if err != nil {
			return nil, err
		}
		if k == nil {
			return nil, errors.New("no kit")
		}
		if err := resolve.ReExport(*k, s); err != nil {
			return result{"error": err.Error()}, nil
		}
		return result{"ok": true}, nil
	}
	return nil, fmt.Errorf("op %q", in.Op)
}
