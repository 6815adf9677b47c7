package rule

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/resolve"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/constraint"
)

// The statements that merging the Kits of a set anew can find broken.
const (
	idMerged      = "SPEC-v3 §9.5/capabilities-merged"
	idReExport    = "SPEC-v3 §9.5/re-export-restates-contract"
	idArgSupplied = "SPEC-v3 §6/required-arg-supplied"
)

// A merging is what the Kits of a set come to, worked out anew from their staged
// sources. Of what the set itself declares, which is published nowhere but in the
// result, it has the names that no Kit provides: other Kits may build on those.
type merging struct {
	waived string          // why it could not be
	want   spec.Descriptor // nothing if faults are not empty
	faults []fault
	kits   map[string]*spec.Document // by reference, the Kits of listed sets included
	own    []string                  // what the set provides by itself
	order  []string                  // the digests that it pins, in the order of content
	loose  bool                      // see placing
}

// A fault is why the Kits do not become one.
type fault struct{ id, message string }

// merge returns the merging for an image.
func (j *judge) merge(im *Image) *merging {
	if m, done := j.sets[im]; done {
		return m
	}
	m := &merging{}
	if j.sets == nil {
		j.sets = map[*Image]*merging{}
	}
	j.sets[im] = m
	p := j.place(im)
	switch {
	case p.own == "":
		m.waived = "the set's own descriptor is not staged"
		return m
	case p.unclear != "":
		m.waived = p.unclear
		return m
	case len(p.missing) > 0:
		m.waived = "the sources of " + p.missing[0] + " are not staged"
		return m
	}
	m.kits, m.loose = map[string]*spec.Document{}, p.loose
	for ref, stem := range p.of {
		m.kits[ref] = p.docs[stem]
	}
	theirs := map[string]bool{}
	var kits []resolve.Kit
	for _, k := range j.doc.Kits {
		d := m.kits[k.Ref].Descriptor
		kits = append(kits, resolve.Kit{Ref: k.Ref, Digest: k.Digest, Descriptor: d})
		for name := range names(d.Provides) {
			theirs[name] = true
		}
	}
	for _, entry := range j.doc.Provides {
		if p, err := constraint.ParseProvide(entry); err == nil && !theirs[p.Name.String()] {
			m.own = append(m.own, entry)
		}
	}
	set := spec.Descriptor{SchemaVersion: spec.SchemaVersion, Kind: spec.KindSet, Provides: m.own, Args: j.doc.Args, Kits: slices.Clone(j.doc.Kits)}
	merged, err := resolve.MergeSet(set, kits)
	if err != nil {
		m.faults = explain(err)
		return m
	}
	m.want = merged.Descriptor
	for _, k := range merged.Layers {
		m.order = append(m.order, k.Digest)
	}
	return m
}

// explain sorts what is wrong with a set by statement.
func explain(err error) []fault {
	var out []fault
	//nolint:errorlint // each branch of a joined error is looked at by itself
	switch e := err.(type) {
	case *resolve.Error:
		for _, v := range e.Violations {
			out = append(out, fault{cmp.Or(v.Rule.Statement(), idMerged), v.Message})
		}
		return out
	case *resolve.SetError:
		id := idMerged
		for _, reason := range []error{resolve.ErrPadded, resolve.ErrNotDeclared, resolve.ErrWiderEnum, resolve.ErrPattern,
			resolve.ErrOptional, resolve.ErrDefault, resolve.ErrExportsEnv, resolve.ErrBuildPhase} {
			if errors.Is(e.Err, reason) {
				id = idReExport
			}
		}
		var inner *resolve.SetError
		if id == idMerged && !errors.As(e.Err, &inner) && strings.HasPrefix(e.Path, "kits[") && !strings.Contains(e.Path, ".args.") {
			id = idArgSupplied // the values did not go with what the Kit declares
		}
		return []fault{{id, strings.ReplaceAll(e.Error(), "\n", "; ")}}
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			out = append(out, explain(inner)...)
		}
		return out
	}
	return []fault{{idMerged, strings.ReplaceAll(err.Error(), "\n", "; ")}}
}

// eachMerging calls f for every image of a set that could be merged anew.
func (j *judge) eachMerging(f func(im *Image, m *merging)) {
	if !j.set() {
		return
	}
	for _, im := range j.Images {
		if m := j.merge(im); m.waived != "" {
			j.waive(m.waived)
		} else {
			f(im, m)
		}
	}
}

// coherent reports why the Kits do not become one, as far as it is the current
// rule's.
func (j *judge) coherent() {
	j.eachMerging(func(im *Image, m *merging) {
		for _, f := range m.faults {
			if f.id == j.rule.id {
				j.fail(im, "kits", "%s", f.message)
			}
		}
	})
}
