package capability

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// An Inspection gathers what grammars say about entries. Inspecting appends and
// never reads, so one value can serve all entries of a descriptor: note the
// lengths before each. The zero value is ready. It is not safe for concurrent
// use.
type Inspection struct {
	Problems []Problem
	Claims   []Claim
	Lines    []Line
}

// Open holds the fields whose value is a reference where a number or a boolean
// belongs. They were decoded as zero. Nil means there are none.
type Open []OpenField

// An OpenField is a field and the text with the reference that stands there.
type OpenField struct{ Path, Text string }

// Has reports whether the field at path, e.g. "config.container", is open.
func (o Open) Has(path string) bool { return o.Text(path) != "" }

// Text returns what stands in the field at path, or "" if it is not open.
func (o Open) Text(path string) string {
	for _, f := range o {
		if f.Path == path {
			return f.Text
		}
	}
	return ""
}

// Read decodes r's config into dst for judging it in form f, as strictly as
// [Decode], except that before the effective form a number or a boolean may be
// a reference. It reports whether dst may be judged; if not, the problem has
// been added, or there is none to add because even the field names are open.
// Nullable names the fields ("a.b", no indices) below which null is a value.
func (in *Inspection) Read(r Request, f Form, dst any, nullable ...string) (Open, bool) {
	config := bytes.TrimSpace(r.Config)
	if len(config) == 0 || string(config) == "null" {
		in.Problems = append(in.Problems, Problem{Path: "config", Message: "a config is required", Decode: true})
		return nil, false
	}
	if nulls := Nulls(config, nullable...); len(nulls) > 0 {
		for _, p := range nulls {
			in.Problems = append(in.Problems, Problem{Path: p, Message: "null is not a value here; leave the field out or state one", Decode: true})
		}
		return nil, false
	}
	if f == Effective || !bytes.Contains(config, []byte(opening)) {
		if err := json.Unmarshal(config, dst, strict); err != nil {
			in.Problems = append(in.Problems, Problem{Path: "config", Message: explain(err), Decode: true})
			return nil, false
		}
		return nil, true
	}
	var open Open
	err := json.Unmarshal(config, dst, strict, json.WithUnmarshalers(json.JoinUnmarshalers(
		json.UnmarshalFromFunc(func(dec *jsontext.Decoder, _ *bool) error { return skipReference(dec, &open) }),
		json.UnmarshalFromFunc(func(dec *jsontext.Decoder, _ *int) error { return skipReference(dec, &open) }),
		json.UnmarshalFromFunc(func(dec *jsontext.Decoder, _ *float64) error { return skipReference(dec, &open) }),
	)))
	if err != nil {
		if !hasOpenKey(config) {
			in.Problems = append(in.Problems, Problem{Path: "config", Message: explain(err), Decode: true})
		}
		return nil, false
	}
	return open, true
}

// Problem adds a finding about a value.
func (in *Inspection) Problem(path, message string) {
	in.Problems = append(in.Problems, Problem{Path: path, Message: message})
}

// Breach adds a finding that breaks the rule with the id statement.
func (in *Inspection) Breach(path, statement, message string) {
	in.Problems = append(in.Problems, Problem{Path: path, Message: message, Statement: statement})
}

// Warn adds a finding about a value that is valid but will not do what its
// author thinks.
func (in *Inspection) Warn(path, message string) {
	in.Problems = append(in.Problems, Problem{Path: path, Message: message, Warning: true})
}

// Claim adds a claim, unless its key still waits for an argument.
func (in *Inspection) Claim(c Claim) {
	if !HasReference(c.Key) {
		in.Claims = append(in.Claims, c)
	}
}

// Line adds a surface line.
func (in *Inspection) Line(list, value string) {
	in.Lines = append(in.Lines, Line{List: list, Value: value})
}

// Err returns nil if nothing is wrong, or an [InvalidError] about an entry of
// type typ. Warnings do not count.
func (in *Inspection) Err(typ string) error {
	var bad []Problem
	for _, p := range in.Problems {
		if !p.Warning {
			bad = append(bad, p)
		}
	}
	if len(bad) == 0 {
		return nil
	}
	return &InvalidError{Type: typ, Problems: bad}
}

// An InvalidError says that an entry breaks the rules of its type. It matches
// [kiterr.ErrRefused].
type InvalidError struct {
	Type     string
	Problems []Problem // at least one, in field order
}

func (e *InvalidError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "capability %s: ", e.Type)
	for i, p := range e.Problems {
		if i > 0 {
			b.WriteString("; ")
		}
		if p.Path != "" {
			b.WriteString(p.Path + ": ")
		}
		b.WriteString(p.Message)
	}
	return b.String()
}

// Is makes every InvalidError match [kiterr.ErrRefused].
func (e *InvalidError) Is(target error) bool { return target == kiterr.ErrRefused }

// Nulls returns the places below config at which null stands, as paths
// ("config.a.b"); a null among the elements of a list is reported at the list.
// Nullable names the fields below which null is a value. Text that is not JSON
// has none. At most a hundred are returned: more help nobody, and the paths of
// a hostile config could take more room than there is.
func Nulls(config jsontext.Value, nullable ...string) []string {
	if !bytes.Contains(config, []byte("null")) {
		return nil // nearly always; the scan below costs as much as decoding
	}
	var places []string
	Scalars(config, func(t jsontext.Token, p *Place) bool {
		if t.Kind() != 'n' || len(p.steps) == 0 {
			return true
		}
		for _, n := range nullable {
			if p.below(n) {
				return true
			}
		}
		if place := "config" + p.String(); len(places) == 0 || places[len(places)-1] != place {
			places = append(places, place)
		}
		return len(places) < 100
	})
	return places
}

// A Place is where a value stands in a document. It is valid only during the
// call that it is given to.
type Place struct{ steps []step }

// A step leads from a map to a field or from a list to an element.
type step struct {
	list bool
	name string // of the field
	n    int    // fields or elements seen so far, this one included
}

// String returns the path below the root, such as ".a.b[0].c". For an element of
// a list it is the path of the list.
func (p *Place) String() string {
	var b strings.Builder
	for i, s := range p.steps {
		switch {
		case !s.list:
			b.WriteByte('.')
			b.WriteString(s.name)
		case i < len(p.steps)-1:
			b.WriteByte('[')
			b.WriteString(strconv.Itoa(s.n - 1))
			b.WriteByte(']')
		}
	}
	return b.String()
}

// below reports whether p is deeper than the field at path, e.g. "a.b".
func (p *Place) below(path string) bool {
	i := 0
	for name := range strings.SplitSeq(path, ".") {
		if i >= len(p.steps) || p.steps[i].list || p.steps[i].name != name {
			return false
		}
		i++
	}
	return i < len(p.steps)
}

// Scalars calls visit for every text, number, boolean and null in v, in order.
// The walk ends where visit returns false or v is not well formed.
func Scalars(v jsontext.Value, visit func(t jsontext.Token, p *Place) bool) {
	dec := jsontext.NewDecoder(bytes.NewReader(v), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	var p Place
	name := false // the next token in a map is a field name
	for {
		t, err := dec.ReadToken()
		if err != nil {
			return
		}
		top := len(p.steps) - 1
		switch kind := t.Kind(); {
		case kind == '}' || kind == ']':
			p.steps = p.steps[:top]
			name = top > 0 && !p.steps[top-1].list
			continue
		case top >= 0 && p.steps[top].list:
			p.steps[top].n++
		case name:
			p.steps[top].name, name = t.String(), false
			continue
		}
		switch t.Kind() {
		case '{':
			p.steps, name = append(p.steps, step{}), true
		case '[':
			p.steps, name = append(p.steps, step{list: true}), false
		default:
			name = top >= 0 && !p.steps[top].list
			if !visit(t, &p) {
				return
			}
		}
	}
}

// skipReference consumes a string that holds a reference and notes its place;
// anything else it leaves to the ordinary decoding.
func skipReference(dec *jsontext.Decoder, open *Open) error {
	if dec.PeekKind() != '"' {
		return errors.ErrUnsupported
	}
	t, err := dec.ReadToken()
	if err != nil {
		return err
	}
	text := t.String()
	if !HasReference(text) {
		return errors.New("is text where a number or a boolean belongs")
	}
	*open = append(*open, OpenField{"config" + dotted(dec.StackPointer()), text})
	return nil
}

// dotted spells p as a path. Lists are told from maps by their numbers, because
// no type that is decoded with places has a field whose name is one.
func dotted(p jsontext.Pointer) string {
	var b strings.Builder
	for token := range p.Tokens() {
		if token != "" && strings.Trim(token, "0123456789") == "" {
			b.WriteString("[" + token + "]")
			continue
		}
		b.WriteString("." + token)
	}
	return b.String()
}

// hasOpenKey reports whether any field name of config holds a reference: then
// nothing is known about its shape before expansion.
func hasOpenKey(config jsontext.Value) bool {
	dec := jsontext.NewDecoder(bytes.NewReader(config))
	for {
		t, err := dec.ReadToken()
		if err != nil {
			return false
		}
		if t.Kind() != '"' || !HasReference(t.String()) {
			continue
		}
		if kind, n := dec.StackIndex(dec.StackDepth()); kind == '{' && n%2 == 1 {
			return true
		}
	}
}
