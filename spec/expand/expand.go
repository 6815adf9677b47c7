// Package expand puts values in the place of references: arguments at build and
// at create (§6), environment names at create (§6.1).
//
// It works on decoded values, never on text, so that a value cannot change the
// shape of what it is put into. Whether the result is a valid descriptor is for
// package spec to say. Nothing here reads the host's environment.
package expand

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/wellknown"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec"
)

// A Phase is the moment at which arguments are resolved.
type Phase int

const (
	PhaseCreate Phase = iota // arguments without buildArg
	PhaseBuild               // arguments with buildArg
	PhaseAny                 // all of them: what a check without a phase wants
)

func (p Phase) holds(a spec.Arg) bool {
	return p == PhaseAny || (p == PhaseBuild) == (a.BuildArg != "")
}

// The reasons for which expansion is refused. The errors of this package also
// match [kiterr.ErrRefused]; none shows a value.
var (
	ErrUndeclared   = errors.New("is not a declared argument")
	ErrOtherPhase   = errors.New("is an argument of the other phase")
	ErrRequired     = errors.New("is required and has no value")
	ErrNoValue      = errors.New("has neither a value nor a default")
	ErrUnset        = errors.New("is not set in the container environment")
	ErrPlaceholder  = errors.New("its value holds a Kit placeholder; values are not templates")
	ErrNUL          = errors.New("its value holds a NUL byte")
	ErrJoined       = errors.New("the expanded text would form a new placeholder")
	ErrKeyCollision = errors.New("two keys are the same after expansion")
	ErrEnvInKey     = errors.New("an environment reference stands in a key")
)

// A FieldError says why a field or an argument was refused.
type FieldError struct {
	Path string // dotted path of the field, or args.<key>
	Name string // the argument or variable, if one is at fault
	Err  error
}

func (e *FieldError) Error() string {
	if e.Name != "" {
		return fmt.Sprintf("%s: %s %v", e.Path, e.Name, e.Err)
	}
	return fmt.Sprintf("%s: %v", e.Path, e.Err)
}

// Unwrap returns the reason and the family.
func (e *FieldError) Unwrap() []error { return []error{e.Err, kiterr.ErrRefused} }

// ResolveArgs returns the values of the arguments of one phase: what was
// supplied, else the default. An optional argument with neither is absent. A
// name that is not declared, a required argument without value, and a value,
// supplied or default, that enum or pattern do not admit are errors; all are
// reported, in the order of the keys.
func ResolveArgs(args map[string]spec.Arg, supplied map[string]string, phase Phase) (map[string]string, error) {
	values := make(map[string]string, len(args))
	var errs []error
	fail := func(key string, err error) { errs = append(errs, &FieldError{Path: "args." + key, Err: err}) }
	for _, key := range slices.Sorted(maps.Keys(supplied)) {
		if a, ok := args[key]; !ok {
			fail(key, ErrUndeclared)
		} else if !phase.holds(a) {
			fail(key, ErrOtherPhase)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(args)) {
		a := args[key]
		if !phase.holds(a) {
			continue
		}
		v, ok := supplied[key]
		switch {
		case ok:
		case a.Default != nil:
			v = *a.Default
		case a.Required:
			fail(key, ErrRequired)
			continue
		default:
			continue
		}
		if err := inserted(v); err != nil {
			fail(key, err)
		} else if err := a.Admits(v); err != nil {
			fail(key, err)
		} else {
			values[key] = v
		}
	}
	return values, errors.Join(errs...)
}

// inserted judges a value that is to stand in the place of a reference.
func inserted(v string) error {
	switch {
	case spec.BeginsPlaceholder(v):
		return ErrPlaceholder
	case strings.IndexByte(v, 0) >= 0:
		return ErrNUL
	}
	return nil
}

// Build returns d with the references to build-phase arguments expanded, which
// is what gets published (§9.1). Create-phase references stay.
func Build(d spec.Descriptor, values map[string]string) (spec.Descriptor, error) {
	return expandArgs(d, values, PhaseBuild)
}

// Create returns d with the references to create-phase arguments expanded.
// Environment references stay; see [Env].
func Create(d spec.Descriptor, values map[string]string) (spec.Descriptor, error) {
	return expandArgs(d, values, PhaseCreate)
}

// ReExport is [Create] for a Kit that a set lists (§9.5): a value may be one
// whole reference to an argument of the set, which then stands in the place of
// the Kit's own and stays text.
func ReExport(d spec.Descriptor, values map[string]string) (spec.Descriptor, error) {
	return expandWith(d, expander{phase: PhaseCreate, args: d.Args, values: values, scope: spec.ScopeArgs, typed: true, reexport: true})
}

// Env returns d with the environment references in the string values of its
// capability configs expanded from env, the final container environment
// (§6.1). Values stay strings. Display fields are left alone.
func Env(d spec.Descriptor, env map[string]string) (spec.Descriptor, error) {
	e := expander{env: env, scope: spec.ScopeEnv}
	d.Capabilities = e.items(d.Capabilities)
	return d, errors.Join(e.errs...)
}

// Document expands one whole decoded document, given as JSON, in the way of
// [Build] and [Create]: every string value and every map key. It is for tools
// that hold something other than a [spec.Descriptor].
func Document(doc jsontext.Value, phase Phase, args map[string]spec.Arg, values map[string]string) (jsontext.Value, error) {
	e := expander{phase: phase, args: args, values: values, scope: spec.ScopeArgs, typed: true}
	out := e.json("", doc, keepTextOf(doc))
	return out, errors.Join(e.errs...)
}

func expandArgs(d spec.Descriptor, values map[string]string, phase Phase) (spec.Descriptor, error) {
	return expandWith(d, expander{phase: phase, args: d.Args, values: values, scope: spec.ScopeArgs, typed: true})
}

func expandWith(d spec.Descriptor, e expander) (spec.Descriptor, error) {
	d.DisplayName = e.text("displayName", d.DisplayName)
	d.Author = e.text("author", d.Author)
	d.Description = e.text("description", d.Description)
	d.SourceURL = e.text("sourceUrl", d.SourceURL)
	d.IconURL = e.text("iconUrl", d.IconURL)
	d.Version = e.text("version", d.Version)
	d.Licenses = e.texts("licenses", d.Licenses)
	d.Provides = e.texts("provides", d.Provides)
	d.Capabilities = e.items(d.Capabilities)
	if e.phase == PhaseBuild {
		d.Kits = e.kits(d.Kits)
	}
	return d, errors.Join(e.errs...)
}

// An expander collects what goes wrong on the way.
type expander struct {
	scope    spec.Scope
	phase    Phase
	args     map[string]spec.Arg
	values   map[string]string
	env      map[string]string
	typed    bool // a whole reference adopts the type its value spells
	reexport bool // a value may itself be one whole reference
	errs     []error
}

func (e *expander) fail(path, name string, err error) {
	e.errs = append(e.errs, &FieldError{Path: path, Name: name, Err: err})
}

// lookup returns the value of a reference, or false if it stays as it is.
func (e *expander) lookup(path string, r spec.Reference) (v string, expand bool) {
	if r.Scope != e.scope {
		return "", false
	}
	name := "kit." + string(r.Scope) + "." + r.Name
	var ok bool
	missing := ErrUnset
	if e.scope == spec.ScopeArgs {
		a, declared := e.args[r.Name]
		if !declared {
			e.fail(path, name, ErrUndeclared)
			return "", false
		}
		if !e.phase.holds(a) {
			return "", false
		}
		if v, ok = e.values[r.Name]; !ok && a.Default != nil {
			v, ok = *a.Default, true
		}
		missing = ErrNoValue
	} else {
		v, ok = e.env[r.Name]
	}
	if !ok {
		e.fail(path, name, missing)
		return "", false
	}
	if e.reexport {
		if _, whole := spec.WholeReference(v); whole {
			return v, true
		}
	}
	if err := inserted(v); err != nil {
		e.fail(path, name, err)
		return "", false
	}
	return v, true
}

// text expands the references of s. On error it returns s.
func (e *expander) text(path, s string) string {
	out, _ := e.value(path, s)
	return out
}

// value expands s and reports whether s was exactly one reference, now
// replaced.
func (e *expander) value(path, s string) (out string, whole bool) {
	if !strings.Contains(s, "${{") {
		return s, false
	}
	refs, err := spec.References(s)
	if err != nil {
		e.fail(path, "", err)
		return s, false
	}
	before := len(e.errs)
	var b strings.Builder
	kept := make([]int, 0, 4) // offsets in the result at which references stay
	at, replaced := 0, 0
	for _, r := range refs {
		b.WriteString(s[at:r.Start])
		at = r.End
		v, ok := e.lookup(path, r)
		if !ok {
			kept = append(kept, b.Len())
			b.WriteString(s[r.Start:r.End])
			continue
		}
		if e.reexport {
			kept = append(kept, b.Len()) // the value may be a reference
		}
		b.WriteString(v)
		replaced++
	}
	b.WriteString(s[at:])
	if len(e.errs) > before || replaced == 0 {
		return s, false
	}
	out = b.String()
	if formsPlaceholder(out, kept) {
		e.fail(path, "", ErrJoined)
		return s, false
	}
	return out, len(refs) == 1 && refs[0].Start == 0 && refs[0].End == len(s)
}

// formsPlaceholder reports whether a Kit placeholder begins anywhere but at the
// offsets of those that were there before.
func formsPlaceholder(s string, kept []int) bool {
	for at := 0; ; {
		i := strings.Index(s[at:], "${{")
		if i < 0 {
			return false
		}
		i += at
		at = i + len("${{")
		if strings.HasPrefix(strings.TrimLeft(s[at:], " \t"), "kit.") && !slices.Contains(kept, i) {
			return true
		}
	}
}

func (e *expander) texts(path string, list []string) []string {
	var out []string
	for i, s := range list {
		if t := e.text(path+"["+strconv.Itoa(i)+"]", s); t != s {
			if out == nil {
				out = slices.Clone(list)
			}
			out[i] = t
		}
	}
	if out == nil {
		return list
	}
	return out
}

func (e *expander) kits(list []spec.KitRef) []spec.KitRef {
	out := slices.Clone(list)
	for i := range out {
		p := "kits[" + strconv.Itoa(i) + "]"
		out[i].Ref = e.text(p+".ref", out[i].Ref)
		if out[i].Args != nil {
			m := make(map[string]string, len(out[i].Args))
			for _, k := range slices.Sorted(maps.Keys(out[i].Args)) {
				m[k] = e.text(p+".args."+k, out[i].Args[k])
			}
			out[i].Args = m
		}
	}
	return out
}

func (e *expander) items(list []spec.Item) []spec.Item {
	out := slices.Clone(list)
	for i := range out {
		p := "capabilities[" + strconv.Itoa(i) + "]"
		g := out[i].Group
		if g == nil {
			e.request(p, &out[i].Request)
			continue
		}
		p += ".group"
		copied := *g
		copied.Capabilities = slices.Clone(g.Capabilities)
		if e.scope == spec.ScopeArgs {
			copied.Name = e.text(p+".name", g.Name)
			copied.Description = e.text(p+".description", g.Description)
		}
		for j := range copied.Capabilities {
			e.request(p+".capabilities["+strconv.Itoa(j)+"]", &copied.Capabilities[j])
		}
		out[i].Group = &copied
	}
	return out
}

func (e *expander) request(path string, r *capability.Request) {
	if e.scope == spec.ScopeArgs {
		r.Name = e.text(path+".name", r.Name)
		r.Description = e.text(path+".description", r.Description)
	}
	if !bytes.Contains(r.Config, []byte("${{")) {
		return
	}
	var keep []string
	if def, ok := wellknown.Find(r.Type); ok {
		keep = def.KeepText
	}
	r.Config = e.json(path+".config", r.Config, func(_, generic string) bool { return slices.Contains(keep, generic) })
}

// json expands the strings and keys of a JSON value. keepText says which whole
// references stay text, given the path and its generic form below v ("a[].c").
// On error it returns v.
func (e *expander) json(path string, v jsontext.Value, keepText func(at, generic string) bool) jsontext.Value {
	before := len(e.errs)
	dec := jsontext.NewDecoder(bytes.NewReader(v))
	var buf bytes.Buffer
	enc := jsontext.NewEncoder(&buf)
	for {
		if dec.PeekKind() == '0' { // keep the spelling of numbers
			n, err := dec.ReadValue()
			if err == nil {
				err = enc.WriteValue(n)
			}
			if err != nil {
				e.fail(path, "", err)
				return v
			}
			continue
		}
		t, err := dec.ReadToken()
		if err != nil {
			break // the end; the value was decoded strictly before
		}
		if t.Kind() == '"' && strings.Contains(t.String(), "${{") {
			at, generic := position(dec, path)
			err = e.writeString(enc, dec, at, generic, t.String(), keepText)
		} else {
			err = enc.WriteToken(t)
		}
		if errors.Is(err, jsontext.ErrDuplicateName) {
			at, _ := position(dec, path)
			e.fail(at, "", ErrKeyCollision)
			return v
		}
		if err != nil {
			e.fail(path, "", err)
			return v
		}
	}
	if len(e.errs) > before {
		return v
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n"))
}

func (e *expander) writeString(enc *jsontext.Encoder, dec *jsontext.Decoder, at, generic, s string, keepText func(at, generic string) bool) error {
	kind, n := dec.StackIndex(dec.StackDepth())
	if kind == '{' && n%2 == 1 { // a key
		if refs, err := spec.References(s); err == nil && e.scope == spec.ScopeEnv {
			for _, r := range refs {
				if r.Scope == spec.ScopeEnv {
					e.fail(at, "kit.env."+r.Name, ErrEnvInKey)
				}
			}
			return enc.WriteToken(jsontext.String(s))
		}
		return enc.WriteToken(jsontext.String(e.text(at, s)))
	}
	out, whole := e.value(at, s)
	if whole && e.typed && !keepText(at, generic) {
		if v, ok := adopt(out); ok {
			return enc.WriteValue(v)
		}
	}
	return enc.WriteToken(jsontext.String(out))
}

// adopt returns the value that s spells if that is a boolean, an integer or a
// decimal fraction, and printing it gives back s.
func adopt(s string) (jsontext.Value, bool) {
	if s == "true" || s == "false" {
		return jsontext.Value(s), true
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil && strconv.FormatInt(n, 10) == s {
		return jsontext.Value(s), true
	}
	if !strings.Contains(s, ".") {
		return nil, false
	}
	if f, err := strconv.ParseFloat(s, 64); err == nil && strconv.FormatFloat(f, 'f', -1, 64) == s {
		return jsontext.Value(s), true
	}
	return nil, false
}

// position returns the path of what dec has just read, below base, and the same
// with "[]" for every index and without base.
func position(dec *jsontext.Decoder, base string) (at, generic string) {
	names := strings.Split(string(dec.StackPointer()), "/")
	at = base
	for i := 1; i < len(names) && i <= dec.StackDepth(); i++ {
		if k, n := dec.StackIndex(i); k == '[' {
			at += "[" + strconv.FormatInt(n-1, 10) + "]"
			generic += "[]"
			continue
		}
		name := strings.NewReplacer("~1", "/", "~0", "~").Replace(names[i])
		if at != "" {
			at += "."
		}
		if generic != "" {
			generic += "."
		}
		at += name
		generic += name
	}
	return at, generic
}
