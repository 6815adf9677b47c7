// Package resolve says how Kits meet: whether a set of them is closed and
// coherent (§5.3), in which orders they compose, which entries a host selects
// (§7.1.1), and how what they ask for becomes one ask, for a sandbox or for
// publishing a set (§9.5).
//
// It sees descriptors and nothing else: it fetches nothing, reads nothing and
// holds no state. What one descriptor may say is in package spec; what one
// capability type means when it meets itself is in the package of that type.
package resolve

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/constraint"
)

// A Kit is a descriptor and the reference by which it is consumed.
type Kit struct {
	Ref        string // how messages and records name it; its tag may carry a version
	Digest     string // sha256:… of the manifest, "" if unknown
	Descriptor spec.Descriptor
}

// Version returns what version k's unversioned provides have: that of a
// version-shaped tag, else the descriptor's fallback, else "" (§4 version).
func (k Kit) Version() string {
	if v := constraint.ReferenceVersion(k.Ref); v != "" {
		return v
	}
	return k.Descriptor.Version
}

// name is how messages name k.
func (k Kit) name() string {
	if k.Ref == "" {
		return "this Kit"
	}
	return k.Ref
}

// Options say what set is judged.
type Options struct {
	// Partial judges a set that is to be published (§9.5): it may lack a
	// workload, and what it requires from outside stays a requirement.
	Partial bool
}

// A Set is a coherent set of Kits in its two orders.
type Set struct {
	// Declarations is the dependency order: providers before requirers, ties
	// in the order of references. Hooks and declarations follow it.
	Declarations []Kit

	// Layers is the order of content: the workload first, then the
	// dependency order.
	Layers []Kit
}

// A Rule names one of the rules of §5.3.
type Rule string

// The rules. Each violation is of one.
const (
	RuleRequires          Rule = "requires-unsatisfied"
	RuleConflict          Rule = "conflict"
	RuleIntegrates        Rule = "integrates-violated"
	RuleCycle             Rule = "cycle"
	RuleNoWorkload        Rule = "no-workload"
	RuleManyWorkloads     Rule = "many-workloads"
	RuleDuplicateProvider Rule = "duplicate-provider"
	RuleDuplicateKit      Rule = "duplicate-kit"
	RuleUnmergedSet       Rule = "unmerged-set"
	RuleInvalid           Rule = "invalid-entry"
)

var statements = map[Rule]string{
	RuleRequires:          "SPEC-v3 §5.3/closed-set",
	RuleConflict:          "SPEC-v3 §5.3/conflicts-fail",
	RuleIntegrates:        "SPEC-v3 §5.3/integrates-violation-fails",
	RuleCycle:             "SPEC-v3 §5.3/dependency-order",
	RuleNoWorkload:        "SPEC-v3 §5.3/one-workload",
	RuleManyWorkloads:     "SPEC-v3 §5.3/one-workload",
	RuleDuplicateProvider: "SPEC-v3 §5.3/one-provider-per-name",
	RuleUnmergedSet:       "SPEC-v3 §3.4/set-kind-never-published",
}

// Statement returns the statement id of r, or "".
func (r Rule) Statement() string { return statements[r] }

// A Violation is one reason why Kits do not form a set.
type Violation struct {
	Rule    Rule
	Kits    []string // references of those involved, the one at fault first
	Message string   // one clause naming Kits and entries

	derived string // the name of a package that both of two Kits hold, e.g. deb/curl
}

// An Error holds every violation of a set, in the order of the Kits given. It
// matches [kiterr.ErrRefused].
type Error struct{ Violations []Violation }

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("the Kits do not form a set: ")
	for i, clause := range e.clauses() {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(clause)
	}
	return b.String()
}

// clauses is what a person needs of the violations. Kits that cannot be in one
// set at all collide in everything that they hold, which is no news; and two
// file systems with one package in common have hundreds.
func (e *Error) clauses() []string {
	for _, cause := range []Rule{RuleDuplicateKit, RuleManyWorkloads} {
		var cs []string
		for _, v := range e.Violations {
			if v.Rule == cause {
				cs = append(cs, v.Message)
			}
		}
		if len(cs) > 0 {
			return cs
		}
	}
	type pair [2]string
	more := make(map[pair]int) // packages beside the first
	for _, v := range e.Violations {
		if v.derived != "" {
			more[pair(v.Kits)]++
		}
	}
	var cs []string
	for _, v := range e.Violations {
		clause := v.Message
		if v.derived != "" {
			n := more[pair(v.Kits)]
			if n == 0 {
				continue // counted in the clause of the first
			}
			if n > 1 {
				clause += fmt.Sprintf(" and %d more packages", n-1)
			}
			more[pair(v.Kits)] = 0
		}
		cs = append(cs, clause)
	}
	return cs
}

// Is matches the family.
func (e *Error) Is(target error) bool { return target == kiterr.ErrRefused }

// Resolve judges kits as a closed set and orders it. The order given means
// nothing. On error it returns an [Error] with every violation.
func Resolve(kits []Kit, o Options) (*Set, error) { return resolve(kits, o, -1) }

// resolve is Resolve with the index of the Kit that goes last among ties, or
// -1.
func resolve(kits []Kit, o Options, last int) (*Set, error) {
	g := newGraph(kits, o, last)
	g.kinds()
	g.providers()
	for i := range kits {
		g.conflicts(i)
		g.requires(i)
		g.integrates(i)
	}
	order := g.order()
	if len(g.violations) > 0 {
		return nil, &Error{g.violations}
	}
	s := &Set{Declarations: make([]Kit, 0, len(kits)), Layers: make([]Kit, 0, len(kits))}
	for _, i := range order {
		s.Declarations = append(s.Declarations, kits[i])
		if kits[i].Descriptor.Kind == spec.KindWorkload {
			s.Layers = append(s.Layers, kits[i])
		}
	}
	for _, i := range order {
		if kits[i].Descriptor.Kind != spec.KindWorkload {
			s.Layers = append(s.Layers, kits[i])
		}
	}
	return s, nil
}

// An offer is one provide and its owner.
type offer struct {
	kit     int
	entry   string // as written
	provide constraint.Provide
}

type graph struct {
	kits       []Kit
	partial    bool
	last       int
	offers     map[constraint.Name][]offer
	after      [][]int // after[i] lists the Kits that compose after Kit i
	before     []int   // how many compose before it
	violations []Violation
}

func newGraph(kits []Kit, o Options, last int) *graph {
	return &graph{
		kits: kits, partial: o.Partial, last: last,
		offers: make(map[constraint.Name][]offer),
		after:  make([][]int, len(kits)), before: make([]int, len(kits)),
	}
}

func (g *graph) violate(rule Rule, kits []int, format string, args ...any) {
	v := Violation{Rule: rule, Message: fmt.Sprintf(format, args...)}
	for _, k := range kits {
		v.Kits = append(v.Kits, g.kits[k].name())
	}
	g.violations = append(g.violations, v)
}

func (g *graph) kinds() {
	var workloads []int
	seen := make(map[string]int, len(g.kits))
	for i, k := range g.kits {
		switch k.Descriptor.Kind {
		case spec.KindWorkload:
			workloads = append(workloads, i)
		case spec.KindSet:
			g.violate(RuleUnmergedSet, []int{i}, "%s is an unpublished set; publish it and use the result", k.name())
		}
		if first, ok := seen[k.Ref]; ok && k.Ref != "" {
			g.violate(RuleDuplicateKit, []int{i, first}, "%s is given twice; leave one out", k.name())
		}
		seen[k.Ref] = i
	}
	switch {
	case len(workloads) > 1:
		names := make([]string, len(workloads))
		for i, w := range workloads {
			names[i] = g.kits[w].name()
		}
		g.violate(RuleManyWorkloads, workloads, "only one workload can be the base, not %s", strings.Join(names, " and "))
	case len(workloads) == 0 && !g.partial:
		g.violate(RuleNoWorkload, nil, "no workload is among the Kits, and a mixin does not run by itself: name the workload first, and mixins by --kit")
	}
}

func (g *graph) providers() {
	for i, k := range g.kits {
		for _, entry := range k.Descriptor.Provides {
			p, err := constraint.ParseProvide(entry)
			if err != nil {
				g.violate(RuleInvalid, []int{i}, "%s provides %v", k.name(), err)
				continue
			}
			if p.Version == "" {
				p.Version = k.Version()
			}
			others := g.offers[p.Name]
			if j := slices.IndexFunc(others, func(o offer) bool { return o.kit != i }); j >= 0 && !owns(others, i) {
				g.violate(RuleDuplicateProvider, []int{i, others[j].kit}, "%s and %s both provide %s", g.kits[others[j].kit].name(), k.name(), p.Name.Short())
				if p.Name.Derived() {
					g.violations[len(g.violations)-1].derived = p.Name.Short()
				}
			}
			g.offers[p.Name] = append(others, offer{i, entry, p})
		}
	}
}

func owns(offers []offer, kit int) bool {
	return slices.ContainsFunc(offers, func(o offer) bool { return o.kit == kit })
}

func (g *graph) conflicts(i int) {
	for _, entry := range g.kits[i].Descriptor.Conflicts {
		name, err := constraint.ParseName(strings.TrimSpace(entry))
		if err != nil {
			g.violate(RuleInvalid, []int{i}, "%s conflicts with %v", g.kits[i].name(), err)
			continue
		}
		told := -1
		for _, o := range g.offers[name] {
			if o.kit != i && o.kit != told {
				told = o.kit
				g.violate(RuleConflict, []int{i, o.kit}, "%s conflicts with %s, which %s provides", g.kits[i].name(), name.Short(), g.kits[o.kit].name())
			}
		}
	}
}

func (g *graph) requires(i int) {
	for _, entry := range g.kits[i].Descriptor.Requires {
		r, err := constraint.ParseRelation(entry)
		if err != nil {
			g.violate(RuleInvalid, []int{i}, "%s requires %v", g.kits[i].name(), err)
			continue
		}
		met, present := g.answer(i, r)
		switch {
		case met:
		case present != "":
			g.violate(RuleRequires, []int{i}, "%s requires %s, but %s", g.kits[i].name(), strings.TrimSpace(entry), present)
		case !g.partial:
			g.violate(RuleRequires, []int{i}, "%s requires %s, which no other Kit of the set provides", g.kits[i].name(), strings.TrimSpace(entry))
		}
	}
}

func (g *graph) integrates(i int) {
	for _, entry := range g.kits[i].Descriptor.Integrates {
		r, err := constraint.ParseRelation(entry)
		if err != nil {
			g.violate(RuleInvalid, []int{i}, "%s integrates %v", g.kits[i].name(), err)
			continue
		}
		if met, present := g.answer(i, r); !met && present != "" {
			g.violate(RuleIntegrates, []int{i}, "%s integrates with %s, but %s", g.kits[i].name(), strings.TrimSpace(entry), present)
		}
	}
}

// answer looks for a Kit other than i that answers r, and orders i after it. If
// there are only unsuitable ones, present says what they provide.
func (g *graph) answer(i int, r constraint.Relation) (met bool, present string) {
	for _, o := range g.offers[r.Name] {
		if o.kit == i {
			continue
		}
		if r.SatisfiedBy(o.provide) {
			met = true
			if !slices.Contains(g.after[o.kit], i) {
				g.after[o.kit] = append(g.after[o.kit], i)
				g.before[i]++
			}
			continue
		}
		version := "without a version"
		if o.provide.Version != "" {
			version = "at " + o.provide.Version
		}
		present = fmt.Sprintf("%s provides it %s", g.kits[o.kit].name(), version)
	}
	return met, present
}

// order sorts the Kits by dependency. Among those that are ready the one with
// the smallest reference comes first, so that the result is a function of the
// set alone.
func (g *graph) order() []int {
	before := slices.Clone(g.before)
	var ready []int
	for i := range g.kits {
		if before[i] == 0 {
			ready = append(ready, i)
		}
	}
	order := make([]int, 0, len(g.kits))
	for len(ready) > 0 {
		next := 0
		for j := range ready {
			if g.less(ready[j], ready[next]) {
				next = j
			}
		}
		i := ready[next]
		ready = slices.Delete(ready, next, next+1)
		order = append(order, i)
		for _, j := range g.after[i] {
			if before[j]--; before[j] == 0 {
				ready = append(ready, j)
			}
		}
	}
	if len(order) < len(g.kits) {
		g.cycle(before)
	}
	return order
}

func (g *graph) less(i, j int) bool {
	if (i == g.last) != (j == g.last) {
		return j == g.last
	}
	a, b := g.kits[i], g.kits[j]
	if a.Ref != b.Ref {
		return a.Ref < b.Ref
	}
	return a.Digest < b.Digest
}

// cycle reports one cycle among the Kits that could not be ordered.
func (g *graph) cycle(before []int) {
	stuck := func(i int) bool { return before[i] > 0 }
	start := slices.IndexFunc(before, func(n int) bool { return n > 0 })
	// Every stuck Kit has a stuck one before it: walk backwards until one
	// comes again.
	previous := make([]int, len(g.kits))
	for i := range previous {
		previous[i] = -1
	}
	for i := range g.kits {
		if stuck(i) {
			for _, j := range g.after[i] {
				if stuck(j) && previous[j] < 0 {
					previous[j] = i
				}
			}
		}
	}
	seen := make(map[int]bool)
	for !seen[start] {
		seen[start] = true
		start = previous[start]
	}
	ring := []int{start}
	for i := previous[start]; i != start; i = previous[i] {
		ring = append(ring, i)
	}
	slices.Reverse(ring)
	names := make([]string, 0, len(ring)+1)
	for _, i := range ring {
		names = append(names, g.kits[i].name())
	}
	names = append(names, names[0])
	g.violate(RuleCycle, ring, "the Kits need each other in a circle: %s", strings.Join(names, " before "))
}
