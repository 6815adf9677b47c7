package resolve

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/wellknown"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/constraint"
	"github.com/kitbox-dev/kitbox/spec/expand"
)

// The reasons for which a set's treatment of an argument is refused.
var (
	ErrPadded      = errors.New("a reference must be the whole value")
	ErrNotDeclared = errors.New("the set does not declare the argument it re-exports")
	ErrWiderEnum   = errors.New("the set's enum admits values that the Kit's does not")
	ErrPattern     = errors.New("the set's pattern differs from the Kit's")
	ErrOptional    = errors.New("the Kit requires a value and the set guarantees none")
	ErrDefault     = errors.New("the Kit has a default and the set has none")
	ErrExportsEnv  = errors.New("the Kit exports it to the container environment, which a re-export would lose")
	ErrBuildPhase  = errors.New("the set resolves it when building")
)

// A SetError says why a list of Kits does not become one descriptor. It matches
// [kiterr.ErrRefused].
type SetError struct {
	Kit  string // which one, if one is at fault
	Path string // dotted, in the set's or the Kit's descriptor
	Err  error
}

func (e *SetError) Error() string {
	var parts []string
	for _, p := range []string{e.Kit, e.Path} {
		if p != "" {
			parts = append(parts, p)
		}
	}
	return strings.Join(append(parts, e.Err.Error()), ": ")
}

// Unwrap returns the reason and the family.
func (e *SetError) Unwrap() []error { return []error{e.Err, kiterr.ErrRefused} }

// KitArgs returns the values that one element of a set's kits list binds for
// its Kit, given what that Kit declares (§9.5): a literal that the declaration
// admits, a default, or one whole reference to an argument of the set, which
// re-exports it. Build-phase arguments were resolved when the Kit was published
// and are not among them. All faults are reported, in the order of the keys.
func KitArgs(declared map[string]spec.Arg, supplied map[string]string) (map[string]string, error) {
	literals := make(map[string]string, len(supplied))
	references := make(map[string]string)
	open := maps.Clone(declared)
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(supplied)) {
		v := supplied[key]
		a, ok := declared[key]
		if !ok || a.BuildArg != "" || !spec.BeginsPlaceholder(v) {
			literals[key] = v
			continue
		}
		r, whole := spec.WholeReference(v)
		switch {
		case !whole || r.Scope != spec.ScopeArgs:
			errs = append(errs, &SetError{Path: "args." + key, Err: ErrPadded})
		case a.Env != "":
			errs = append(errs, &SetError{Path: "args." + key, Err: ErrExportsEnv})
		default:
			references[key] = v
		}
		delete(open, key)
	}
	values, err := expand.ResolveArgs(open, literals, expand.PhaseCreate)
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	maps.Copy(values, references)
	return values, nil
}

// ReExport judges whether set, the declaration of a set, says at least what kit,
// that of the Kit whose argument it re-exports, did (§9.5). A nil set is not
// declared.
func ReExport(kit spec.Arg, set *spec.Arg) error {
	switch {
	case set == nil:
		return ErrNotDeclared
	case set.BuildArg != "":
		return ErrBuildPhase
	case kit.Required && !set.Required && set.Default == nil:
		return ErrOptional
	case kit.Default != nil && !set.Required && set.Default == nil:
		return ErrDefault
	case kit.Pattern != "" && set.Pattern != kit.Pattern:
		return ErrPattern
	}
	if kit.Enum != nil {
		if set.Enum == nil {
			return ErrWiderEnum
		}
		for _, v := range set.Enum {
			if !slices.Contains(kit.Enum, v) {
				return ErrWiderEnum
			}
		}
	}
	return nil
}

// A Merged is a set that has become one Kit.
type Merged struct {
	// Descriptor is the published form. Its kits are pinned.
	Descriptor spec.Descriptor

	// Layers is the order in which the content of the listed Kits is
	// concatenated.
	Layers []Kit

	// Env holds the exports of arguments that the set has bound for its
	// Kits. They belong into the image config, because the merged descriptor
	// declares the set's own arguments only.
	Env map[string]string
}

// MergeSet publishes a set (§9.5): set is its descriptor, build arguments
// expanded, and kits the listed Kits, resolved, in the order of the list, each
// with its digest and published descriptor. The set's own declarations are one
// more contribution, which goes last among ties.
func MergeSet(set spec.Descriptor, kits []Kit) (*Merged, error) {
	if len(kits) != len(set.Kits) {
		return nil, &SetError{Path: "kits", Err: fmt.Errorf("%d Kits were resolved for %d listed", len(kits), len(set.Kits))}
	}
	m := &Merged{Env: map[string]string{}}
	all := make([]Kit, 0, len(kits)+1)
	var errs []error
	for i, k := range kits {
		bound, err := bindKit(set, fmt.Sprintf("kits[%d]", i), k, set.Kits[i].Args, m.Env)
		errs = append(errs, err)
		all = append(all, bound)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	own := set
	own.Kind, own.Kits = spec.KindMixin, nil
	all = append(all, Kit{Ref: "", Descriptor: own})
	order, err := resolve(all, Options{Partial: true}, len(all)-1)
	if err != nil {
		return nil, err
	}
	d, err := MergeDeclarations(order.Declarations)
	if err != nil {
		return nil, err
	}
	if set.Kind != spec.KindSet && set.Kind != d.Kind {
		return nil, &SetError{Path: "kind", Err: fmt.Errorf("is %s, but the listed Kits make a %s; write kind: set", set.Kind, d.Kind)}
	}
	merged := set
	merged.SchemaVersion, merged.Kind = spec.SchemaVersion, d.Kind
	merged.Provides, merged.Requires, merged.Integrates, merged.Conflicts = d.Provides, d.Requires, d.Integrates, d.Conflicts
	merged.Licenses, merged.Capabilities = d.Licenses, d.Capabilities
	merged.Kits = slices.Clone(set.Kits)
	for i := range merged.Kits {
		merged.Kits[i].Digest = kits[i].Digest
	}
	m.Descriptor = merged
	for _, k := range order.Layers {
		if k.Ref != "" {
			m.Layers = append(m.Layers, k)
		}
	}
	return m, nil
}

// bindKit expands what a set binds for one of its Kits and holds re-exported
// arguments against the set's declarations.
func bindKit(set spec.Descriptor, path string, k Kit, supplied, env map[string]string) (Kit, error) {
	fail := func(p string, err error) error { return &SetError{k.name(), p, err} }
	values, err := KitArgs(k.Descriptor.Args, supplied)
	if err != nil {
		return k, fail(path, err)
	}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(values)) {
		v := values[key]
		r, whole := spec.WholeReference(v)
		if !whole {
			if name := k.Descriptor.Args[key].Env; name != "" {
				if old, ok := env[name]; ok && old != v {
					errs = append(errs, fail(path+".args."+key, fmt.Errorf("exports %s, which another Kit exports with another value", name)))
				}
				env[name] = v
			}
			continue
		}
		var decl *spec.Arg
		if a, ok := set.Args[r.Name]; ok {
			decl = &a
		}
		if err := ReExport(k.Descriptor.Args[key], decl); err != nil {
			errs = append(errs, fail(path+".args."+key, fmt.Errorf("re-exports kit.args.%s: %w", r.Name, err)))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return k, err
	}
	if k.Descriptor, err = expand.ReExport(k.Descriptor, values); err != nil {
		return k, fail("", err)
	}
	k.Descriptor.Args = nil
	return k, nil
}

// MergeDeclarations merges the declarations of contributions, in composition
// order, by the table of §9.5. Arguments and display fields are none of a
// merger's: they are the set's own. The result has the derived kind.
func MergeDeclarations(kits []Kit) (spec.Descriptor, error) {
	d := spec.Descriptor{SchemaVersion: spec.SchemaVersion, Kind: spec.KindMixin}
	var errs []error
	workload := ""
	for _, k := range kits {
		switch k.Descriptor.Kind {
		case spec.KindSet:
			errs = append(errs, &SetError{k.name(), "kind", errors.New("an unpublished set cannot contribute; publish it first")})
		case spec.KindWorkload:
			if workload != "" {
				errs = append(errs, &SetError{k.name(), "kind", fmt.Errorf("a second workload beside %s", workload)})
			}
			workload, d.Kind = k.name(), spec.KindWorkload
		}
	}
	if err := mergeRelations(&d, kits); err != nil {
		errs = append(errs, err)
	}
	items, err := mergeItems(kits)
	d.Capabilities = items
	if err := errors.Join(append(errs, err)...); err != nil {
		return spec.Descriptor{}, err
	}
	return d, nil
}

func mergeRelations(d *spec.Descriptor, kits []Kit) error {
	var errs []error
	var offers []offer
	seen := map[string]bool{}
	for i, k := range kits {
		for j, entry := range k.Descriptor.Provides {
			p, err := constraint.ParseProvide(entry)
			if err != nil {
				errs = append(errs, &SetError{k.name(), fmt.Sprintf("provides[%d]", j), err})
				continue
			}
			if p.Version == "" {
				p.Version = k.Version()
			}
			entry = constraint.AppendVersion(entry, p.Version)
			offers = append(offers, offer{i, entry, p})
			if !seen[p.String()] {
				seen[p.String()] = true
				d.Provides = append(d.Provides, entry)
			}
		}
	}
	union := func(field string, list func(spec.Descriptor) []string) (out []string) {
		seen := map[string]bool{}
		for i, k := range kits {
			for j, entry := range list(k.Descriptor) {
				r, err := constraint.ParseRelation(entry)
				if err != nil {
					errs = append(errs, &SetError{k.name(), fmt.Sprintf("%s[%d]", field, j), err})
					continue
				}
				met := slices.ContainsFunc(offers, func(o offer) bool { return o.kit != i && r.SatisfiedBy(o.provide) })
				if c := r.Canonical(); !met && !seen[c] {
					seen[c] = true
					out = append(out, strings.TrimSpace(entry))
				}
			}
		}
		return out
	}
	d.Requires = union("requires", func(d spec.Descriptor) []string { return d.Requires })
	d.Integrates = union("integrates", func(d spec.Descriptor) []string { return d.Integrates })
	clear(seen)
	for _, k := range kits {
		for j, entry := range k.Descriptor.Conflicts {
			n, err := constraint.ParseName(strings.TrimSpace(entry))
			if err != nil {
				errs = append(errs, &SetError{k.name(), fmt.Sprintf("conflicts[%d]", j), err})
			} else if !seen[n.String()] {
				seen[n.String()] = true
				d.Conflicts = append(d.Conflicts, strings.TrimSpace(entry))
			}
		}
		d.Licenses = append(d.Licenses, k.Descriptor.Licenses...)
	}
	slices.Sort(d.Licenses)
	d.Licenses = slices.Compact(d.Licenses)
	return errors.Join(errs...)
}

// mergeItems merges the ungrouped entries and keeps groups whole, in their
// order behind the entries. Every entry says where it was first written.
func mergeItems(kits []Kit) ([]spec.Item, error) {
	var loose []capability.Contribution
	var groups []spec.Item
	var errs []error
	for _, k := range kits {
		for i, it := range k.Descriptor.Capabilities {
			path := fmt.Sprintf("capabilities[%d]", i)
			if it.Group != nil {
				g := *it.Group
				g.Capabilities = slices.Clone(g.Capabilities)
				for j := range g.Capabilities {
					p := fmt.Sprintf("%s.group.capabilities[%d]", path, j)
					errs = append(errs, textual(k, p, g.Capabilities[j]))
					g.Capabilities[j] = located(k, p, g.Capabilities[j])
				}
				groups = append(groups, spec.Item{Group: &g})
				continue
			}
			errs = append(errs, textual(k, path, it.Request))
			loose = append(loose, capability.Contribution{
				Kit: k.name(), Request: located(k, path, it.Request), Workload: k.Descriptor.Kind == spec.KindWorkload,
			})
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	merged, err := Merge(capability.MergePublish, loose)
	if err != nil {
		return nil, err
	}
	items := make([]spec.Item, 0, len(merged)+len(groups))
	for _, c := range merged {
		if !c.Apart {
			items = append(items, spec.Item{Request: c.Request})
			continue
		}
		r := c.Request
		optional := r.Optional
		r.Optional = false
		items = append(items, spec.Item{Group: &spec.Group{Optional: optional, Capabilities: []capability.Request{r}}})
	}
	return append(items, groups...), nil
}

// located returns r with its source filled in.
func located(k Kit, path string, r capability.Request) capability.Request {
	if r.Source == nil || r.Source.Path == "" {
		r.Source = &capability.Source{Kit: k.Ref, Path: path}
	}
	return r
}

// textual refuses a re-exported argument in a field that is not text: its value
// would have to adopt a type, and nobody could merge it before it does.
func textual(k Kit, path string, r capability.Request) error {
	if !capability.HasReference(string(r.Config)) {
		return nil
	}
	def, known := wellknown.Find(r.Type)
	if !known {
		return nil
	}
	for _, p := range def.Check(r, capability.Effective) {
		if p.Decode {
			return &SetError{k.name(), path + "." + p.Path, fmt.Errorf("a reference stands where %s takes no text: %s", r.Type, p.Message)}
		}
	}
	return nil
}
