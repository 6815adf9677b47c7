package rule

import (
	"cmp"
	"errors"
	"maps"
	"path"
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
// sources, without what the set itself declares: that is published nowhere but
// in the result.
type merging struct {
	skip   string          // why it could not be
	want   spec.Descriptor // nothing if faults are not empty
	faults []fault
	kits   map[string]*spec.Document // by the reference that the set lists
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
	docs := j.members(im)
	switch {
	case j.own(im) == "":
		m.skip = "the set's own descriptor is not staged"
		return m
	case slices.Contains(slices.Collect(maps.Values(docs)), nil):
		m.skip = "the sources of a Kit cannot be read"
		return m
	case len(docs) > len(j.doc.Kits) && slices.ContainsFunc(slices.Collect(maps.Values(docs)), func(d *spec.Document) bool { return len(d.Kits) > 0 }):
		m.skip = "a Kit it lists is a set itself, whose Kits are staged beside it"
		return m
	case len(docs) != len(j.doc.Kits):
		m.skip = "not as many sources are staged as Kits are listed"
		return m
	}
	stems := j.assign(docs)
	if stems == nil {
		m.skip = "nothing tells which staged Kit is given which arguments"
		return m
	}
	m.kits = map[string]*spec.Document{}
	set := spec.Descriptor{SchemaVersion: spec.SchemaVersion, Kind: spec.KindSet, Args: j.doc.Args, Kits: slices.Clone(j.doc.Kits)}
	var kits []resolve.Kit
	for i, k := range j.doc.Kits {
		m.kits[k.Ref] = docs[stems[i]]
		kits = append(kits, resolve.Kit{Ref: k.Ref, Digest: k.Digest, Descriptor: docs[stems[i]].Descriptor})
	}
	merged, err := resolve.MergeSet(set, kits)
	if err != nil {
		m.faults = explain(err)
		return m
	}
	m.want = merged.Descriptor
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

// assign says which stem belongs to each listed Kit: by its arguments, by where
// the entries of the set say they come from, and by name. It is nil if Kits are
// given arguments and nothing tells them apart.
func (j *judge) assign(docs map[string]*spec.Document) []string {
	stems := slices.Sorted(maps.Keys(docs))
	score := func(k spec.KitRef, stem string) int {
		doc, n := docs[stem], 0
		for name := range k.Args {
			if a, ok := doc.Args[name]; !ok || a.BuildArg != "" {
				n -= 2
			}
		}
		if image, err := constraint.ParseImage(k.Ref); err == nil {
			switch base := path.Base(image.Repository); {
			case base == stem:
				n += 4
			case strings.Contains(base, stem), strings.Contains(stem, base):
				n += 2
			}
		}
		if v := constraint.ReferenceVersion(k.Ref); v != "" {
			for _, entry := range doc.Provides {
				if p, err := constraint.ParseProvide(entry); err == nil && p.Version == v {
					n++
					break
				}
			}
		}
		for _, r := range j.doc.Requests() {
			if s := r.Source; s != nil && s.Kit == k.Ref {
				if typ, ok := typeAt(doc.Descriptor, s.Path); !ok || typ != r.Type {
					n -= 8
				} else {
					n++
				}
			}
		}
		return n
	}
	out := make([]string, len(j.doc.Kits))
	left := slices.Clone(stems)
	// Best first, so that what is certain decides before what is not.
	for range j.doc.Kits {
		best, kit, at, tie := 0, -1, -1, false
		for i, k := range j.doc.Kits {
			if out[i] != "" {
				continue
			}
			for n, stem := range left {
				switch s := score(k, stem); {
				case kit < 0 || s > best:
					best, kit, at, tie = s, i, n, false
				case s == best && i == kit:
					tie = true
				}
			}
		}
		if tie && len(j.doc.Kits[kit].Args) > 0 {
			return nil
		}
		out[kit] = left[at]
		left = slices.Delete(left, at, at+1)
	}
	return out
}

// typeAt returns the type of the entry at a path such as capabilities[2] or
// capabilities[0].group.capabilities[1].
func typeAt(d spec.Descriptor, at string) (string, bool) {
	for i, it := range d.Capabilities {
		p := index("capabilities", i)
		if it.Group == nil {
			if p == at {
				return it.Type, true
			}
			continue
		}
		for n, r := range it.Group.Capabilities {
			if index(p+".group.capabilities", n) == at {
				return r.Type, true
			}
		}
	}
	return "", false
}

// eachMerging calls f for every image of a set that could be merged anew.
func (j *judge) eachMerging(f func(im *Image, m *merging)) {
	if !j.set() {
		return
	}
	for _, im := range j.Images {
		if m := j.merge(im); m.skip != "" {
			j.skip(m.skip)
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
