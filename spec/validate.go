package spec

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/spec/constraint"
	"github.com/kitbox-dev/kitbox/spec/source"
)

// Validate judges d by the rules of its form and returns every failure, in the
// order of the fields in §4 with map keys sorted. What [Decode] reported is not
// repeated.
func (d *Document) Validate() Diagnostics {
	diags, _ := d.Judge()
	return diags
}

// Judge is [Document.Validate] that also returns what every entry adds to the
// permission surface, for package surface: both need the configs decoded, which
// is most of the work.
func (d *Document) Judge() (Diagnostics, []capability.Line) {
	v := validator{d: d, form: d.opts.Form}
	if !v.size() {
		return v.diags, nil
	}
	v.header()
	v.relations()
	v.capabilities()
	v.args()
	v.content()
	return v.diags, v.in.Lines
}

// A validator collects findings. Paths are built only when there is something
// to say, because nearly all documents are fine.
type validator struct {
	d     *Document
	form  capability.Form
	diags Diagnostics
	over  bool
	in    capability.Inspection

	parameterized bool // a capability config holds a reference
}

func (v *validator) add(dg Diagnostic) {
	for _, bad := range v.d.bad {
		if rest, ok := strings.CutPrefix(dg.Path, bad); ok && bad != "" && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return
		}
	}
	if len(v.diags) >= maxFindings {
		if !v.over {
			v.over = true
			v.diags = append(v.diags, Diagnostic{Severity: Error, Stage: StageValidate, Message: fmt.Sprintf("more than %d findings; the rest is left out", maxFindings)})
		}
		return
	}
	dg.Stage = StageValidate
	if v.d.root != nil {
		n, exact := source.Locate(v.d.root, dg.Path)
		pos := n.Pos
		if n.KeyPos != (source.Position{}) && (!exact || n.Kind == source.Object || n.Kind == source.Array) {
			pos = n.KeyPos
		}
		v.d.place(&dg, pos)
	} else {
		dg.File = v.d.opts.File
	}
	v.diags = append(v.diags, dg)
}

func (v *validator) fail(path, statement, format string, args ...any) {
	v.add(Diagnostic{Severity: Error, Path: path, Statement: statement, Message: fmt.Sprintf(format, args...)})
}

func (v *validator) warn(path, statement, format string, args ...any) {
	v.add(Diagnostic{Severity: Warning, Path: path, Statement: statement, Message: fmt.Sprintf(format, args...)})
}

// stated reports whether the source has a key at path, even with an empty
// value.
func (v *validator) stated(path string) bool {
	if v.d.root == nil {
		return false
	}
	_, exact := source.Locate(v.d.root, path)
	return exact
}

func (v *validator) size() bool {
	switch {
	case v.d.size > MaxBytes:
		v.fail("", "", "the descriptor has %d bytes; more than %d are refused: move large texts into the content", v.d.size, MaxBytes)
		return false
	case v.d.size > WarnBytes:
		v.warn("", "", "the descriptor has %d bytes; registries and hosts read it often, keep it below %d", v.d.size, WarnBytes)
	}
	return true
}

func (v *validator) header() {
	d := &v.d.Descriptor
	switch d.SchemaVersion {
	case SchemaVersion:
	case "":
		v.fail("schemaVersion", "SPEC-v3 §4/schema-version-3", `is required: write schemaVersion: "3"`)
	default:
		v.fail("schemaVersion", "SPEC-v3 §4/schema-version-3", `must be "3", not %q`, d.SchemaVersion)
	}
	v.kind()
	v.display("displayName", d.DisplayName)
	v.display("author", d.Author)
	v.display("description", d.Description)
	v.display("sourceUrl", d.SourceURL)
	if v.display("iconUrl", d.IconURL) && d.IconURL != "" {
		if u, err := url.Parse(d.IconURL); err != nil || u.Scheme != "https" || u.Host == "" {
			v.fail("iconUrl", "", "must be an absolute https URL")
		}
	}
	v.version()
	for i, l := range d.Licenses {
		if v.display2("licenses", i, l) && !spdxShaped(l) {
			v.warn(index("licenses", i), "SPEC-v3 §4/licenses-spdx", "%q does not look like an SPDX id such as MIT or Apache-2.0", l)
		}
	}
}

func (v *validator) kind() {
	switch k := v.d.Kind; k {
	case KindWorkload, KindMixin:
	case KindSet:
		if v.form != capability.Authored {
			v.fail("kind", "SPEC-v3 §3.4/set-kind-never-published", "a set is published as the workload or mixin that it amounts to")
		}
	case "":
		v.fail("kind", "", "is required: workload, mixin or set")
	case "sandbox":
		v.fail("kind", "SPEC-v3 §4/sandbox-spelling-not-written", "sandbox is the old spelling of workload: write kind: workload")
	default:
		v.fail("kind", "", "must be workload, mixin or set, not %q", k)
	}
}

// display judges the references in a text that only people read, and reports
// whether it is literal.
func (v *validator) display(path, s string) bool {
	if !strings.Contains(s, opening) {
		return true
	}
	refs, err := References(s)
	if err != nil {
		v.fail(path, "", "%v", err)
		return false
	}
	for _, r := range refs {
		if r.Scope == ScopeArgs && v.form != capability.Effective {
			v.argReference(path, r)
		}
	}
	return len(refs) == 0
}

func (v *validator) display2(list string, i int, s string) bool {
	if !strings.Contains(s, opening) {
		return true
	}
	return v.display(index(list, i), s)
}

// argReference judges one reference to an argument, at path.
func (v *validator) argReference(path string, r Reference) bool {
	a, ok := v.d.Args[r.Name]
	if !ok {
		v.fail(path, "SPEC-v3 §6/references-declared", "kit.args.%s is not declared in args", r.Name)
		return false
	}
	if a.BuildArg != "" && v.form == capability.Published {
		v.fail(path, "", "kit.args.%s is resolved when building and must be gone from a published descriptor", r.Name)
		return false
	}
	return true
}

func (v *validator) version() {
	s := v.d.Version
	if s == "" {
		return
	}
	if strings.Contains(s, opening) && v.form == capability.Authored {
		r, whole := WholeReference(s)
		switch {
		case !whole || r.Scope != ScopeArgs:
			v.fail("version", "", "must be a version or one reference to a build-phase argument")
		case v.argReference("version", r) && v.d.Args[r.Name].BuildArg == "":
			v.fail("version", "", "kit.args.%s is not resolved when building: give it a buildArg", r.Name)
		}
		return
	}
	if !constraint.ValidVersion(s) {
		v.fail("version", "", "%q is not a version: digits first, then '.'-separated parts of letters, digits and '-', without a leading v", s)
	}
}

// spdxShaped reports whether s could be an SPDX expression. The list of ids
// grows with every release of theirs, so only the shape is judged.
func spdxShaped(s string) bool {
	words := strings.FieldsFunc(s, func(r rune) bool { return r == ' ' || r == '(' || r == ')' })
	for i, w := range words {
		operator := w == "AND" || w == "OR" || w == "WITH"
		if operator != (i%2 == 1) {
			return false
		}
		for j := range len(w) {
			c := w[j]
			alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
			if !alnum && c != '-' && c != '.' && c != '+' && c != ':' {
				return false
			}
		}
	}
	return len(words)%2 == 1
}

func (v *validator) relations() {
	d := &v.d.Descriptor
	for i, s := range d.Provides {
		v.provide(i, s)
	}
	for _, list := range []struct {
		name    string
		entries []string
		bare    bool
	}{{"requires", d.Requires, false}, {"integrates", d.Integrates, false}, {"conflicts", d.Conflicts, true}} {
		for i, s := range list.entries {
			if strings.Contains(s, opening) {
				v.fail(index(list.name, i), "SPEC-v3 §5/requires-literal", "must be literal: arguments may stand in provides and version only")
				continue
			}
			var err error
			if list.bare {
				_, err = constraint.ParseName(strings.TrimSpace(s))
			} else {
				_, err = constraint.ParseRelation(s)
			}
			if err != nil {
				v.fail(index(list.name, i), namespaceStatement(err), "%v", err)
			}
		}
	}
}

func namespaceStatement(err error) string {
	if errors.Is(err, constraint.ErrNamespace) {
		return "SPEC-v3 §5.1/namespace-reverse-dns"
	}
	return ""
}

func (v *validator) provide(i int, s string) {
	if strings.Contains(s, opening) {
		path := index("provides", i)
		refs, err := References(s)
		switch {
		case err != nil:
			v.fail(path, "", "%v", err)
		case v.form != capability.Authored:
			v.fail(path, "", "must be literal once published")
		case len(refs) == 0:
			v.fail(path, "", "%q is not a name", s)
		default:
			for _, r := range refs {
				if r.Scope == ScopeEnv {
					v.fail(path, "SPEC-v3 §6/env-expanded", "environment references stand in capability configs only")
				} else {
					v.argReference(path, r)
				}
			}
		}
		return
	}
	p, err := constraint.ParseProvide(s)
	switch {
	case err != nil:
		v.fail(index("provides", i), namespaceStatement(err), "%v", err)
	case v.form == capability.Authored && p.Name.Derived():
		v.fail(index("provides", i), "SPEC-v3 §5.1/derived-namespaces-reserved", "%s/ names are derived from the package database when publishing, never written", p.Name.Namespace)
	case v.form == capability.Published && p.Version == "" && v.d.Version == "":
		v.fail(index("provides", i), "SPEC-v3 §9.2/versioned-provides", "a published provide has a version: write %s@VERSION or set version", p.Name.Short())
	}
}

const (
	argStmt    = "SPEC-v3 §6/arg-key-grammar"
	reqArgStmt = "SPEC-v3 §6/required-arg-supplied"
)

func (v *validator) args() {
	room := maxPatterns
	for _, key := range slices.Sorted(maps.Keys(v.d.Args)) {
		a := v.d.Args[key]
		p := join("args", key)
		fits := true
		if tree, err := syntax.Parse(a.Pattern, syntax.Perl); err == nil && a.Pattern != "" {
			room -= patternSize(tree)
			fits = room >= 0
		}
		if !ValidArgKey(key) {
			v.fail(p, argStmt, "an argument key is letters, digits and '_', not beginning with a digit")
		}
		if a.Required && a.Default != nil {
			v.fail(p, reqArgStmt, "required and default exclude each other")
		}
		if a.Enum != nil && a.Pattern != "" {
			v.fail(p, "", "enum and pattern exclude each other")
		}
		if a.Env != "" && a.BuildArg != "" {
			v.fail(p, "", "env and buildArg exclude each other: an argument reaches the container or the build")
		}
		if a.Enum != nil && len(a.Enum) == 0 {
			v.fail(p+".enum", "", "lists no value: leave it out to admit any")
		}
		if a.Default != nil && fits {
			v.argDefault(p+".default", a)
		}
		if !fits {
			v.fail(p+".pattern", "", "the patterns of this descriptor %v together", errPatternSize)
		} else if a.Pattern != "" {
			if _, err := a.compile(); err != nil {
				v.fail(p+".pattern", "", "is not an RE2 expression: %v", err)
			}
		}
		if a.Env != "" && !ValidArgKey(a.Env) {
			v.fail(p+".env", "", "%q is not the name of an environment variable", a.Env)
		}
		if a.BuildArg != "" && !ValidArgKey(a.BuildArg) {
			v.fail(p+".buildArg", "", "%q is not the name of a build argument", a.BuildArg)
		}
	}
}

func (v *validator) argDefault(path string, a Arg) {
	if BeginsPlaceholder(*a.Default) {
		v.fail(path, "", "a value is not a template: it must not hold a Kit placeholder")
		return
	}
	if a.Pattern != "" {
		if _, err := a.compile(); err != nil {
			return // reported for the pattern
		}
	}
	if err := a.Admits(*a.Default); err != nil {
		v.fail(path, "", "%v", err)
	}
}

// compile returns the pattern, anchored. It is parsed bare first: `a)|(b` is
// not an expression, though it would be one inside the parentheses.
func (a Arg) compile() (*regexp.Regexp, error) {
	tree, err := syntax.Parse(a.Pattern, syntax.Perl)
	if err != nil {
		return nil, err
	}
	if patternSize(tree) > maxPattern {
		return nil, errPatternSize
	}
	return regexp.Compile(`\A(?:` + a.Pattern + `)\z`)
}

// maxPatterns bounds the instructions of all patterns of a descriptor.
const maxPatterns = 100_000

// maxPattern bounds the instructions of a compiled pattern, repetitions written
// out: forty bytes can ask for gigabytes.
const maxPattern = 10_000

var errPatternSize = errors.New("repeat too much")

// patternSize estimates the instructions that re becomes; any large number if
// it is above the bound.
func patternSize(re *syntax.Regexp) int {
	size := 1
	switch re.Op {
	case syntax.OpLiteral:
		size = len(re.Rune)
	case syntax.OpCharClass:
		size = 1 + len(re.Rune)/16
	}
	for _, sub := range re.Sub {
		if size += patternSize(sub); size > maxPattern {
			return size
		}
	}
	if re.Op == syntax.OpRepeat {
		size *= max(re.Min+1, re.Max)
	}
	return size
}

// The reasons why an argument does not admit a value.
var (
	ErrNotInEnum       = errors.New("is not one of the values in enum")
	ErrPatternMismatch = errors.New("does not match pattern as a whole")
)

// Admits returns nil if value is one a may take: a member of Enum, or matched
// by Pattern from end to end. The error does not show the value, which may be
// a secret.
func (a Arg) Admits(value string) error {
	if a.Enum != nil && !slices.Contains(a.Enum, value) {
		return ErrNotInEnum
	}
	if a.Pattern != "" {
		re, err := a.compile()
		if err != nil {
			return fmt.Errorf("the pattern is not an RE2 expression: %w", err)
		}
		if !re.MatchString(value) {
			return ErrPatternMismatch
		}
	}
	return nil
}

// content judges build, dockerfile and kits.
func (v *validator) content() {
	d := &v.d.Descriptor
	hasKits := d.Kits != nil || v.stated("kits")
	hasDockerfile := d.Dockerfile != "" || v.stated("dockerfile")
	hasBuild := d.Build != "" || v.stated("build")
	if v.d.comment != nil {
		for _, f := range []struct {
			key string
			has bool
		}{{"build", hasBuild}, {"dockerfile", hasDockerfile}, {"kits", hasKits}} {
			if f.has {
				v.fail(f.key, "SPEC-v3 §3.3/comment-descriptor-no-content", "this file is its own recipe; it cannot name another")
			}
		}
	}
	if hasBuild {
		switch {
		case hasKits:
			v.fail("build", "SPEC-v3 §3.4/set-declares-no-recipe", "a Kit with kits declares no recipe")
		case hasDockerfile:
			v.fail("build", "", "build and dockerfile exclude each other")
		case strings.TrimSpace(d.Build) == "":
			v.fail("build", "", "is empty: leave it out or write Dockerfile text")
		}
	}
	if hasDockerfile {
		if hasKits {
			v.fail("dockerfile", "SPEC-v3 §3.4/set-declares-no-recipe", "a Kit with kits declares no recipe")
		}
		v.dockerfile(d.Dockerfile)
	}
	switch {
	case hasKits && len(d.Kits) == 0:
		v.fail("kits", "SPEC-v3 §3.4/set-has-kits", "lists no Kit: name one or leave it out")
	case !hasKits && d.Kind == KindSet:
		v.fail("kits", "SPEC-v3 §3.4/set-has-kits", "a set names at least one Kit")
	}
	v.kits()
}

func (v *validator) dockerfile(p string) {
	clean := path.Clean(p)
	switch {
	case p == "":
		v.fail("dockerfile", "", "is empty: leave it out or name a file")
	case path.IsAbs(p), clean == "..", strings.HasPrefix(clean, "../"), clean == ".", strings.ContainsAny(p, "\\\x00"), strings.HasSuffix(p, "/"):
		v.fail("dockerfile", "SPEC-v3 §4/dockerfile-inside-context", "must be a relative path that stays inside the descriptor's directory")
	}
}

const refStatement = "SPEC-v3 §3.4/kit-published-reference"

func (v *validator) kits() {
	seen := make(map[string]int, len(v.d.Kits))
	for i, k := range v.d.Kits {
		p := index("kits", i)
		v.kitRef(p, k, i, seen)
		for _, name := range slices.Sorted(maps.Keys(k.Args)) {
			v.kitArg(p+".args."+name, name, k.Args[name])
		}
	}
}

func (v *validator) kitRef(p string, k KitRef, i int, seen map[string]int) {
	if k.Ref == "" {
		v.fail(p+".ref", refStatement, "is required")
	}
	literal := k.Ref
	if strings.Contains(k.Ref, opening) && v.form == capability.Authored {
		// The registry of a set is commonly a build argument.
		if refs, err := References(k.Ref); err != nil {
			v.fail(p+".ref", "", "%v", err)
		} else {
			for _, r := range refs {
				if r.Scope != ScopeArgs {
					v.fail(p+".ref", "SPEC-v3 §6/env-expanded", "environment references stand in capability configs only")
				} else {
					v.argReference(p+".ref", r)
				}
			}
			literal = ""
		}
	}
	var img constraint.Image
	if literal != "" {
		var err error
		if img, err = constraint.ParseImage(literal); err != nil {
			v.fail(p+".ref", refStatement, "%v", err)
		} else if first, ok := seen[img.Key()]; ok {
			v.fail(p+".ref", "", "names the same Kit as kits[%d]", first)
		} else {
			seen[img.Key()] = i
		}
	}
	switch {
	case k.Digest == "" && v.stated(p+".digest"):
		v.fail(p+".digest", "", "is empty: leave it out or pin sha256:…")
	case k.Digest == "":
		if v.form != capability.Authored {
			v.fail(p+".digest", "", "a published set pins every Kit by digest")
		}
	case !constraint.ValidDigest(k.Digest):
		v.fail(p+".digest", "", "must be sha256: and 64 hexadecimal digits")
	case img.Digest != "" && img.Digest != k.Digest:
		v.fail(p+".digest", "", "differs from the digest in ref")
	}
}

// kitArg judges one value handed to a listed Kit: a literal, or one reference
// that re-exports the argument (§9.5).
func (v *validator) kitArg(p, name, value string) {
	if !ValidArgKey(name) {
		v.fail(p, argStmt, "an argument key is letters, digits and '_', not beginning with a digit")
	}
	if !strings.Contains(value, opening) {
		return
	}
	refs, err := References(value)
	if err != nil {
		v.fail(p, "", "%v", err)
		return
	}
	if len(refs) == 0 {
		return
	}
	r, whole := WholeReference(value)
	switch {
	case !whole:
		v.fail(p, "", "a reference must be the whole value: it re-exports the argument, it does not build one")
	case r.Scope != ScopeArgs:
		v.fail(p, "SPEC-v3 §6/env-expanded", "environment references stand in capability configs only")
	default:
		v.argReference(p, r)
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }
