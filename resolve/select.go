package resolve

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec"
)

// An Operation is what a sandbox is being selected for. Starting a stopped one
// is not among them: it reuses what was selected (§7.1.1/lifetime).
type Operation string

// The operations.
const (
	OperationCreate   Operation = "create"
	OperationRecreate Operation = "recreate"
)

// A Selector decides which entries a host grants. It is asked about every entry
// of a valid descriptor, in order, members of groups one by one, and must not
// change anything. The message gives the reason of a refusal in one clause.
type Selector interface {
	Select(op Operation, kit spec.Descriptor, r capability.Request) (accept bool, message string)
}

// SelectorFunc makes a Selector of a function.
type SelectorFunc func(op Operation, kit spec.Descriptor, r capability.Request) (bool, string)

// Select calls f.
func (f SelectorFunc) Select(op Operation, kit spec.Descriptor, r capability.Request) (bool, string) {
	return f(op, kit, r)
}

// A Record says what became of one element of a capabilities list (§7.1.1). Its
// paths locate entries in the consumed descriptor; its sources say where they
// were first written. A name is never the only identification.
type Record struct {
	Kit           string              `json:"kit,omitzero"`           // reference of the consumed Kit
	Path          string              `json:"path"`                   // of the entry or group
	Source        capability.Source   `json:"source"`                 // of the entry; of a group, its place
	Type          string              `json:"type,omitzero"`          // of an entry
	Name          string              `json:"name,omitzero"`          // display label
	Optional      bool                `json:"optional,omitzero"`      //
	Members       []string            `json:"members,omitzero"`       // paths of a group's entries
	MemberSources []capability.Source `json:"memberSources,omitzero"` // aligned with Members
	Rejected      []string            `json:"rejected,omitzero"`      // paths of the entries the selector refused
	Messages      []string            `json:"messages,omitzero"`      // aligned with Rejected
}

// A Selection is what a host takes of a set. It lives as long as the sandbox.
type Selection struct {
	Items   []Record `json:"selected"` // taken
	Skipped []Record `json:"skipped"`  // not taken; refused ones included
	Refused []Record `json:"refused,omitzero"`

	// Effective holds the entries taken, flattened, in order, each with its
	// source. Nothing has been merged.
	Effective []capability.Contribution `json:"effective"`
}

// A SelectionError says which required elements a host refused. It matches
// [kiterr.ErrRefused].
type SelectionError struct{ Refused []Record }

func (e *SelectionError) Error() string {
	var parts []string
	for _, r := range e.Refused {
		what := r.Type
		if what == "" {
			what = "group"
			if r.Name != "" {
				what += " " + strconv.Quote(r.Name)
			}
		}
		s := fmt.Sprintf("required %s (%s) is refused", what, r.Path)
		if r.Kit != "" {
			s = r.Kit + ": " + s
		}
		for i, p := range r.Rejected {
			m := r.Messages[i]
			if m == "" {
				m = "this host does not grant it"
			}
			if p == r.Path {
				s += ": " + m
			} else {
				s += fmt.Sprintf("; %s: %s", p, m)
			}
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, "; ")
}

// Is matches the family.
func (e *SelectionError) Is(target error) bool { return target == kiterr.ErrRefused }

// Select asks sel about every entry of kits, which are expanded and in
// composition order, for creating a sandbox; see [SelectFor].
func Select(kits []Kit, sel Selector) (*Selection, error) {
	return SelectFor(OperationCreate, kits, sel)
}

// SelectFor asks sel about every entry of kits. Each descriptor is validated
// first; if any is invalid or still holds references nobody is asked. A nil
// Selector refuses everything.
//
// A group is taken if all of its members are accepted. If a required element is
// not taken the error is a [SelectionError], and the Selection still holds all
// records. If what was taken of one Kit breaks the rules of a descriptor, such
// as two singletons out of two groups, or injects a credential at a host that no
// policy among what was taken allows, that is an error too; nothing optional is
// dropped to repair it.
func SelectFor(op Operation, kits []Kit, sel Selector) (*Selection, error) {
	var errs []error
	for _, k := range kits {
		diags := spec.New(k.Descriptor, spec.Options{File: k.Ref, Form: capability.Effective, Unselected: true}).Validate()
		errs = append(errs, diags.Err())
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	s := &Selection{Items: []Record{}, Skipped: []Record{}, Effective: []capability.Contribution{}}
	for _, k := range kits {
		q := question{op: op, kit: k, sel: sel, out: s}
		for i := range k.Descriptor.Capabilities {
			q.item(i)
		}
	}
	if len(s.Refused) > 0 {
		return s, &SelectionError{s.Refused}
	}
	return s, s.judge(kits)
}

type question struct {
	op  Operation
	kit Kit
	sel Selector
	out *Selection
}

func (q *question) ask(r capability.Request) (bool, string) {
	if q.sel == nil {
		return false, "nothing answers for this host"
	}
	return q.sel.Select(q.op, q.kit.Descriptor, r)
}

func (q *question) item(i int) {
	it := q.kit.Descriptor.Capabilities[i]
	path := "capabilities[" + strconv.Itoa(i) + "]"
	rec := Record{Kit: q.kit.Ref, Path: path, Source: capability.Source{Kit: q.kit.Ref, Path: path}}
	members := []capability.Request{it.Request}
	paths := []string{path}
	if g := it.Group; g != nil {
		rec.Name, rec.Optional = g.Name, g.Optional
		members, paths = g.Capabilities, nil
		for j, m := range members {
			p := path + ".group.capabilities[" + strconv.Itoa(j) + "]"
			paths = append(paths, p)
			rec.MemberSources = append(rec.MemberSources, q.source(m, p))
		}
		rec.Members = paths
	} else {
		rec.Type, rec.Name, rec.Optional = it.Type, it.Name, it.Optional
		rec.Source = q.source(it.Request, path)
	}
	for j, m := range members {
		// All are asked, so that one answer shows all that is missing.
		if ok, message := q.ask(m); !ok {
			rec.Rejected = append(rec.Rejected, paths[j])
			rec.Messages = append(rec.Messages, message)
		}
	}
	if len(rec.Rejected) > 0 {
		q.out.Skipped = append(q.out.Skipped, rec)
		if !rec.Optional {
			q.out.Refused = append(q.out.Refused, rec)
		}
		return
	}
	q.out.Items = append(q.out.Items, rec)
	for j, m := range members {
		src := q.source(m, paths[j])
		m.Source = &src
		q.out.Effective = append(q.out.Effective, capability.Contribution{
			Kit: q.kit.Ref, Request: m, Workload: q.kit.Descriptor.Kind == spec.KindWorkload,
		})
	}
}

// source returns where r was first written; its own place if nothing is
// recorded.
func (q *question) source(r capability.Request, path string) capability.Source {
	if r.Source != nil && r.Source.Path != "" {
		return *r.Source
	}
	return capability.Source{Kit: q.kit.Ref, Path: path}
}

// judge holds what was taken of each Kit against the rules of one declaration
// block. Entries that a published set took from different Kits are judged with
// their own kind, as those Kits' contributions.
func (s *Selection) judge(kits []Kit) error {
	var errs []error
	for _, k := range kits {
		if !k.Descriptor.HasGroups() {
			continue // judged already
		}
		var owners []string
		parts := map[string][]spec.Item{}
		for _, c := range s.Effective {
			if c.Kit != k.Ref {
				continue
			}
			owner := c.Request.Source.Kit
			if _, ok := parts[owner]; !ok {
				owners = append(owners, owner)
			}
			parts[owner] = append(parts[owner], spec.Item{Request: c.Request})
		}
		for _, owner := range owners {
			d := k.Descriptor
			d.Capabilities = parts[owner]
			diags := spec.New(d, spec.Options{File: k.Ref, Form: capability.Effective, Unselected: true}).Validate()
			errs = append(errs, diags.Err())
		}
	}
	// A credential may rely on the policy of another Kit, but not on one that
	// was not taken.
	if bad := conflictsOf(s.Effective, spec.Injections(requestsOf(s.Effective))); len(bad) > 0 {
		errs = append(errs, &MergeError{bad})
	}
	return errors.Join(errs...)
}
