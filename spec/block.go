package spec

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/spec/source"
)

const groupStatement = "SPEC-v3 §7.1.1/group-grammar"

// capabilities judges the list: every entry, then per declaration block (the
// top level, and each group) how often a type stands and what entries claim.
func (v *validator) capabilities() {
	d := &v.d.Descriptor
	top := block{v: v, cross: cross{v: v}}
	for i := range d.Capabilities {
		it := &d.Capabilities[i]
		if it.Group == nil {
			top.entry(place{i, -1}, &it.Request)
			continue
		}
		v.group(i, it)
	}
	top.finish(v.crossReady())
}

// crossReady reports whether rules between entries that depend on values and
// on the selection can be judged: on authored text without groups and
// references, and always once expanded and selected.
func (v *validator) crossReady() bool {
	switch v.form {
	case capability.Authored:
		return !v.d.HasGroups() && !v.parameterized
	case capability.Effective:
		return !v.d.opts.Unselected
	}
	return false
}

func (v *validator) group(i int, it *Item) {
	p := index("capabilities", i)
	var item *source.Node // of the item; nil if there is none
	if i < len(v.d.items) {
		item = v.d.items[i]
	}
	if it.Type != "" || item.Child("type") != nil {
		v.fail(p, groupStatement, "is an entry and a group at once")
	} else {
		for _, key := range []string{"name", "optional", "description", "config", "source"} {
			if item.Child(key) != nil {
				v.fail(p+"."+key, groupStatement, "belongs inside the group")
			}
		}
	}
	p += ".group"
	if v.form == capability.Effective && !v.d.opts.Unselected {
		v.fail(p, groupStatement, "an effective descriptor has no groups: they have been selected and flattened")
	}
	v.display(p+".name", it.Group.Name)
	v.display(p+".description", it.Group.Description)
	if len(it.Group.Capabilities) == 0 {
		v.fail(p+".capabilities", groupStatement, "a group has at least one entry")
		return
	}
	member := item.Child("group").Child("capabilities").FirstChild()
	b := block{v: v, cross: cross{v: v}}
	for j := range it.Group.Capabilities {
		r := &it.Group.Capabilities[j]
		at := place{i, j}
		nested := member.Child("group") != nil
		if nested {
			v.fail(at.path()+".group", groupStatement, "groups do not nest")
		}
		if r.Optional || member.Child("optional") != nil {
			v.fail(at.path()+".optional", groupStatement, "a member is not optional by itself; state it on the group")
		}
		if !nested || r.Type != "" {
			b.entry(at, r)
		}
		if member != nil {
			member = member.Next
		}
	}
	b.finish(false)
}

// A place says where an entry stands.
type place struct{ item, member int } // member is -1 at the top level

func (p place) path() string {
	s := "capabilities[" + strconv.Itoa(p.item) + "]"
	if p.member >= 0 {
		s += ".group.capabilities[" + strconv.Itoa(p.member) + "]"
	}
	return s
}

// A block is one declaration block while its entries are judged.
type block struct {
	v      *validator
	cross  cross
	claims map[claimKey]place
	single []singleton
	alike  map[string]*alike // by type
}

type claimKey struct{ space, key string }

type singleton struct {
	def capability.Definition
	typ string
	at  place
}

func (b *block) entry(at place, r *capability.Request) {
	v := b.v
	def, known := v.d.find(r.Type)
	if !known && !capability.ValidType(r.Type) {
		if r.Type == "" {
			v.fail(at.path()+".type", "", "is required")
		} else {
			v.fail(at.path()+".type", "", "%q is not a type: write namespace/name@version, such as com.docker.sandbox/volume@1", r.Type)
		}
	}
	if strings.Contains(r.Name, opening) {
		v.display(at.path()+".name", r.Name)
	}
	if strings.Contains(r.Description, opening) {
		v.display(at.path()+".description", r.Description)
	}
	clean := v.configReferences(at, r)
	if r.Source != nil && r.Source.Path == "" {
		v.fail(at.path()+".source.path", "SPEC-v3 §7.1.1/provenance", "is required")
	}
	// One Inspection serves all entries, so that its slices grow once.
	problems, claims := len(v.in.Problems), len(v.in.Claims)
	InspectLines(*r, def, known, v.form, &v.in)
	if !known {
		if r.Config != nil && r.Config.Kind() != '{' && r.Config.Kind() != 'n' {
			v.fail(at.path()+".config", "", "must be a map of fields, whatever the type")
		}
		b.compare(at, r, claims)
		return
	}
	if clean {
		for _, p := range v.in.Problems[problems:] {
			b.problem(at, p)
		}
	}
	b.kindRules(at, r)
	if def.Arity == capability.Singleton {
		b.singleton(at, r, def)
		b.cross.note(at, r)
		return
	}
	b.cross.note(at, r)
	b.compare(at, r, claims)
}

func (b *block) problem(at place, p capability.Problem) {
	path := at.path()
	if p.Path != "" {
		path += "." + p.Path
	}
	if p.Decode {
		for _, bad := range b.v.d.bad { // the document's decoding has spoken about it
			if strings.HasPrefix(bad, path) {
				return
			}
		}
	}
	sev := Error
	if p.Warning {
		sev = Warning
	}
	b.v.add(Diagnostic{Severity: sev, Path: path, Message: p.Message, Statement: p.Statement})
}

// singleton reports a second entry of a type that may stand once. Of two
// versions of one type the newer is at fault.
func (b *block) singleton(at place, r *capability.Request, def capability.Definition) {
	for _, s := range b.single {
		if s.def.Types[0] != def.Types[0] {
			continue
		}
		bad, other := at, s.typ
		if rank(def, s.typ) > rank(def, r.Type) {
			bad, other = s.at, r.Type
		}
		b.v.fail(bad.path()+".type", "", "at most one entry of this type may stand here, and there is already %s", other)
		return
	}
	b.single = append(b.single, singleton{def, r.Type, at})
}

func rank(def capability.Definition, typ string) int {
	for i, t := range def.Types {
		if t == typ {
			return i
		}
	}
	return -1
}

// compare reports an entry that claims what an earlier one has, or repeats it.
func (b *block) compare(at place, r *capability.Request, from int) {
	claims := b.v.in.Claims[from:]
	for _, c := range claims {
		if b.claims == nil {
			b.claims = make(map[claimKey]place)
		}
		k := claimKey{c.Space, c.Key}
		first, taken := b.claims[k]
		if !taken {
			b.claims[k] = at
			continue
		}
		if first == at {
			continue
		}
		path := at.path()
		if c.At != "" {
			path += "." + c.At
		}
		what := strings.TrimSpace(c.What + " " + c.Key)
		b.v.fail(path, c.Statement, "%s is already stated in %s", what, first.path())
		return
	}
	if len(claims) > 0 || r.Type == "" {
		return
	}
	if b.alike == nil {
		b.alike = make(map[string]*alike)
	}
	a := b.alike[r.Type]
	if a == nil {
		b.alike[r.Type] = &alike{at: at, config: r.Config}
		return
	}
	if first, repeated := a.add(at, r.Config); repeated {
		b.v.fail(at.path(), "", "repeats %s", first.path())
	}
}

// alike holds the entries of one type that claim nothing. Most types have one,
// so configs are brought into canonical form only when a second comes.
type alike struct {
	at     place
	config jsontext.Value
	seen   map[string]place
}

func (a *alike) add(at place, config jsontext.Value) (first place, repeated bool) {
	if a.seen == nil {
		a.seen = map[string]place{configKey(a.config): a.at}
	}
	k := configKey(config)
	if first, repeated = a.seen[k]; !repeated {
		a.seen[k] = at
	}
	return first, repeated
}

// configKey is equal for configs that mean the same; absent differs from null.
func configKey(config jsontext.Value) string {
	if config == nil {
		return ""
	}
	return string(CanonicalConfig(config))
}

// InspectLines adds to in what def says about r, with surface lines that leave
// nothing out: an entry of a type that nobody knows, or whose config cannot be
// read, is a service of its type and a digest of its config, so that any change
// of it shows (§7.4).
func InspectLines(r capability.Request, def capability.Definition, known bool, f capability.Form, in *capability.Inspection) {
	lines, problems := len(in.Lines), len(in.Problems)
	if known {
		def.Inspect(r, f, in)
		readable := true
		for _, p := range in.Problems[problems:] {
			readable = readable && !p.Decode
		}
		if readable {
			return
		}
		in.Lines = in.Lines[:lines]
	}
	value := r.Type
	if r.Config != nil {
		sum := sha256.Sum256(CanonicalConfig(r.Config))
		value += " sha256:" + hex.EncodeToString(sum[:digestBytes])
	}
	in.Line(capability.ListServices, value)
}

// digestBytes is enough of a digest to tell apart configs that a person is
// asked about.
const digestBytes = 8

// kindRules judges what only some kinds of Kit may ask.
func (b *block) kindRules(at place, r *capability.Request) {
	if b.v.d.Kind != KindMixin {
		return
	}
	switch r.Type {
	case typeSbx:
		b.v.fail(at.path()+".type", "", "only a workload has the image config that sbx@1 speaks of")
	case typeAgentContext:
		var c struct {
			Filename  string `json:"filename"`
			Directory string `json:"directory"`
		}
		if loose(r, &c) && c.Filename != "" && c.Directory == "" {
			b.v.fail(at.path()+".config.filename", "", "a mixin states directory with filename; only a workload owns the profile beside the workspace")
		}
	}
}

// configReferences judges the placeholders in r's config. It reports whether
// the typed checks may follow; they would only repeat what it found.
func (v *validator) configReferences(at place, r *capability.Request) bool {
	if !bytes.Contains(r.Config, []byte(opening)) {
		return true
	}
	clean := true
	v.parameterized = true
	walkStrings(r.Config, func(path string, key bool, s string) {
		refs, err := References(s)
		if err != nil {
			v.fail(at.path()+"."+path, "", "%v", err)
			clean = false
			return
		}
		for _, ref := range refs {
			switch {
			case key && ref.Scope == ScopeEnv:
				v.fail(at.path()+"."+path, "SPEC-v3 §6/env-expanded", "an environment reference stands in a value, never in a key")
				clean = false
			case v.form == capability.Effective:
				v.fail(at.path()+"."+path, "SPEC-v3 §7.1.1/validate-expanded-declarations", "kit.%s.%s is left over after expansion", ref.Scope, ref.Name)
				clean = false
			case ref.Scope == ScopeArgs:
				if !v.argReference(at.path()+"."+path, ref) {
					clean = false
				} else if v.form == capability.Authored && r.Type == typeAgentSkill && path == "config.path" && v.d.Args[ref.Name].BuildArg == "" {
					v.fail(at.path()+"."+path, "agent-skill@1/source-literal", "kit.args.%s is not resolved when building, and the image is checked before any sandbox exists: give it a buildArg", ref.Name)
					clean = false
				}
			}
		}
	})
	return clean
}

// walkStrings calls visit for every string of a config that could hold a
// placeholder. The path of a value is its own, that of a key the object's.
func walkStrings(config jsontext.Value, visit func(path string, key bool, s string)) {
	dec := jsontext.NewDecoder(bytes.NewReader(config), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	for {
		t, err := dec.ReadToken()
		if err != nil {
			return
		}
		if t.Kind() != '"' {
			continue
		}
		s := t.String()
		if !strings.Contains(s, opening) {
			continue
		}
		depth := dec.StackDepth()
		kind, n := dec.StackIndex(depth)
		key := kind == '{' && n%2 == 1
		names := strings.Split(string(dec.StackPointer()), "/")
		path := "config"
		for i := 1; i < len(names) && i <= depth; i++ {
			if key && i == depth {
				break
			}
			if k, n := dec.StackIndex(i); k == '[' {
				path = index(path, int(n-1))
			} else {
				path = join(path, strings.NewReplacer("~1", "/", "~0", "~").Replace(names[i]))
			}
		}
		visit(path, key, s)
	}
}
