package constraint

import (
	"errors"
	"fmt"
	"strings"
)

// An Op is a comparison of a version with a bound.
type Op string

// The operators of §5.
const (
	AtLeast Op = ">="
	Above   Op = ">"
	AtMost  Op = "<="
	Below   Op = "<"
	Exactly Op = "="
)

// ErrUnsatisfiable means that no version meets all constraints of an entry.
var ErrUnsatisfiable = errors.New("no version can satisfy this")

// A Constraint is one comparison. Version is as written.
type Constraint struct {
	Op      Op
	Version string
}

// Allows reports whether version meets c. No version ("") meets none.
func (c Constraint) Allows(version string) bool {
	if version == "" {
		return false
	}
	d := Compare(version, c.Version)
	switch c.Op {
	case AtLeast:
		return d >= 0
	case Above:
		return d > 0
	case AtMost:
		return d <= 0
	case Below:
		return d < 0
	case Exactly:
		return d == 0
	}
	return false
}

// A Relation is one entry of `requires` or `integrates`: a name and
// constraints that must all hold. No constraints means any provider will do.
type Relation struct {
	Name        Name
	Constraints []Constraint
}

// ParseRelation parses `name` or `name <op> version, <op> version…`. An entry
// nothing can satisfy is an error matching [ErrUnsatisfiable].
func ParseRelation(s string) (Relation, error) {
	s = strings.TrimSpace(s)
	end := strings.IndexAny(s, " \t<>=")
	if end < 0 {
		end = len(s)
	}
	name, err := ParseName(s[:end])
	if err != nil {
		return Relation{}, err
	}
	r := Relation{Name: name}
	rest := strings.TrimSpace(s[end:])
	if rest == "" {
		return r, nil
	}
	for part := range strings.SplitSeq(rest, ",") {
		c, err := parseConstraint(strings.TrimSpace(part))
		if err != nil {
			return Relation{}, fmt.Errorf("%q: %w", s, err)
		}
		r.Constraints = append(r.Constraints, c)
	}
	distinct := distinct(r.Constraints)
	if len(distinct) > maxConstraints {
		return Relation{}, fmt.Errorf("%q and so on: more than %d different constraints", s[:end], maxConstraints)
	}
	ok, known := satisfiable(distinct)
	if !known {
		return Relation{}, fmt.Errorf("%q: too many constraints of too odd versions to tell whether any version meets them", s[:end])
	}
	if !ok {
		return Relation{}, fmt.Errorf("%q: %w", s, ErrUnsatisfiable)
	}
	return r, nil
}

// maxConstraints bounds the search for a version that meets them all. Two say
// what a range is.
const maxConstraints = 64

// distinct returns cs without repetitions if there are more than enough of them.
func distinct(cs []Constraint) []Constraint {
	if len(cs) <= maxConstraints {
		return cs
	}
	out := make([]Constraint, 0, maxConstraints+1)
	seen := make(map[Constraint]bool, maxConstraints+1)
	for _, c := range cs {
		if !seen[c] {
			seen[c] = true
			out = append(out, c)
		}
		if len(out) > maxConstraints {
			break
		}
	}
	return out
}

// slips are spellings of operators in other languages.
var slips = []struct {
	written string
	op      Op
}{{"=>", AtLeast}, {"=<", AtMost}, {"==", Exactly}}

func parseConstraint(s string) (Constraint, error) {
	for _, slip := range slips {
		if v, ok := strings.CutPrefix(s, slip.written); ok && ValidVersion(strings.TrimSpace(v)) {
			return Constraint{}, fmt.Errorf("%q is not a constraint: write %q", s, string(slip.op)+" "+strings.TrimSpace(v))
		}
	}
	for _, op := range []Op{AtLeast, AtMost, Above, Below, Exactly} {
		if v, ok := strings.CutPrefix(s, string(op)); ok {
			v = strings.TrimSpace(v)
			if !ValidVersion(v) {
				return Constraint{}, fmt.Errorf("%q is not a version", v)
			}
			return Constraint{op, v}, nil
		}
	}
	return Constraint{}, fmt.Errorf("%q is not a constraint: write one of >= > <= < = and a version", s)
}

// SatisfiedBy reports whether p answers r: the same name, and a version that
// every constraint allows. A provide without a version answers only a relation
// without constraints.
func (r Relation) SatisfiedBy(p Provide) bool {
	return r.Name == p.Name && r.AllowsVersion(p.Version)
}

// AllowsVersion reports whether version meets every constraint of r.
func (r Relation) AllowsVersion(version string) bool {
	for _, c := range r.Constraints {
		if !c.Allows(version) {
			return false
		}
	}
	return true
}

// Canonical returns a text that two relations share if they say the same:
// names are full, only the tightest bounds stay, bounds that meet are a pin and
// leading zeros are gone.
func (r Relation) Canonical() string {
	var lower, upper, pin *Constraint
	for i := range r.Constraints {
		c := &r.Constraints[i]
		switch c.Op {
		case Exactly:
			pin = c
		case AtLeast, Above:
			if lower == nil || tighter(c, lower, 1) {
				lower = c
			}
		case AtMost, Below:
			if upper == nil || tighter(c, upper, -1) {
				upper = c
			}
		}
	}
	if pin == nil && lower != nil && upper != nil && Compare(lower.Version, upper.Version) == 0 {
		pin = lower
	}
	out := r.Name.String()
	if pin != nil {
		return out + " = " + canonicalVersion(pin.Version)
	}
	if lower != nil {
		out += " " + string(lower.Op) + " " + canonicalVersion(lower.Version)
	}
	if upper != nil {
		out += " " + string(upper.Op) + " " + canonicalVersion(upper.Version)
	}
	return out
}

// tighter reports whether c bounds more than d, both on the side of sign.
func tighter(c, d *Constraint, sign int) bool {
	if k := Compare(c.Version, d.Version); k != 0 {
		return k == sign
	}
	return c.Op == Above || c.Op == Below
}
