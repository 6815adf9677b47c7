package rule

import (
	"slices"
	"strconv"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/wellknown"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/constraint"
)

func index(list string, n int) string { return list + "[" + strconv.Itoa(n) + "]" }

// setRelations holds requires, integrates and conflicts against those of the
// Kits. What the set adds is its own affair.
func (j *judge) setRelations() {
	j.eachMerging(func(im *Image, m *merging) {
		offers := names(j.doc.Provides)
		for _, l := range []struct {
			field      string
			want, have []string
		}{{"requires", m.want.Requires, j.doc.Requires}, {"integrates", m.want.Integrates, j.doc.Integrates}, {"conflicts", m.want.Conflicts, j.doc.Conflicts}} {
			for _, entry := range l.want {
				r, err := constraint.ParseRelation(entry)
				if err != nil {
					continue
				}
				stated := slices.ContainsFunc(l.have, func(h string) bool {
					s, err := constraint.ParseRelation(h)
					return err == nil && s.Canonical() == r.Canonical()
				})
				p, offered := offers[r.Name.String()]
				if !stated && (l.field == "conflicts" || !offered || !r.SatisfiedBy(p)) {
					j.fail(im, l.field, "%s of a Kit it lists is missing", entry)
				}
			}
		}
	})
}

func sameSource(a, b capability.Request) bool {
	return a.Source != nil && b.Source != nil && *a.Source == *b.Source
}

// setLabels finds entries that have another label than the first that their
// contributors state.
func (j *judge) setLabels() {
	j.eachMerging(func(im *Image, m *merging) {
		if m.loose {
			j.waive(noTelling)
			return
		}
		want := ungrouped(m.want)
		for _, h := range ungrouped(j.doc.Descriptor) {
			for _, w := range want {
				if sameSource(w, h) && className(w.Type) == className(h.Type) && w.Name != "" && w.Name != h.Name {
					j.fail(im, "capabilities", "the name of %s is %q; the first that is stated is %q", h.Type, h.Name, w.Name)
				}
			}
		}
	})
}

const noTelling = "some of its Kits could as well be each other, by what is staged of them"

// setGroups finds groups that were not kept whole, and in their order.
func (j *judge) setGroups() {
	groups := func(d spec.Descriptor, skip bool) (out []string) {
		for _, it := range d.Capabilities {
			if it.Group == nil {
				continue
			}
			if skip && apart(it.Group) {
				continue // judged as the entry that it is
			}
			one := spec.Descriptor{Capabilities: []spec.Item{{Group: it.Group}}}
			if b, err := one.AppendJSON(nil); err == nil {
				out = append(out, string(b))
			}
		}
		return out
	}
	j.eachMerging(func(im *Image, m *merging) {
		rest := groups(j.doc.Descriptor, false)
		want := groups(m.want, true)
		for n, g := range want {
			i := slices.Index(rest, g)
			if i < 0 {
				j.fail(im, "capabilities", "group %d of %d that its Kits declare is missing, changed, or in another place", n+1, len(want))
				continue
			}
			rest = rest[i+1:]
		}
	})
}

// setProvenance finds entries that name a Kit which does not have them, and
// entries that no longer name the one they come from.
func (j *judge) setProvenance() {
	j.eachMerging(func(im *Image, m *merging) {
		if m.loose {
			j.waive(noTelling)
			return
		}
		types := map[string]map[string]string{} // by reference and path
		for ref, doc := range m.kits {
			types[ref] = map[string]string{}
			eachEntry(doc.Descriptor, func(at string, r capability.Request) { types[ref][at] = r.Type })
		}
		for _, r := range j.doc.Requests() {
			s := r.Source
			if s == nil || s.Kit == "" {
				continue // the set's own
			}
			doc, listed := m.kits[s.Kit]
			if !listed {
				j.fail(im, "capabilities", "%s says that it comes from %s, which the set does not list", r.Type, s.Kit)
				continue
			}
			if len(doc.Kits) > 0 {
				continue // what it got from its own Kits names those
			}
			if typ, ok := types[s.Kit][s.Path]; !ok || className(typ) != className(r.Type) {
				j.fail(im, "capabilities", "%s says that it is %s of %s, which is not there", r.Type, s.Path, s.Kit)
			}
		}
		// An entry of the set's own goes first only where Kits build on what the
		// set provides.
		ours := len(m.own) > 0
		type place struct {
			class  string
			source capability.Source
		}
		named, mayBe, alike := map[place]bool{}, map[string]bool{}, map[string]bool{}
		for _, h := range ungrouped(j.doc.Descriptor) {
			class := className(h.Type)
			alike[canonical(h)], alike[class] = true, alike[class] || single(h.Type)
			if h.Source != nil {
				named[place{class, *h.Source}] = true
				mayBe[class] = mayBe[class] || ours && h.Source.Kit == "" && h.Source.Path != ""
			}
		}
		for _, w := range ungrouped(m.want) {
			class := className(w.Type)
			if w.Source == nil || w.Source.Kit == "" || mayBe[class] || named[place{class, *w.Source}] {
				continue
			}
			if alike[canonical(w)] || alike[class] { // else it is not there at all, which another rule says
				j.fail(im, "capabilities", "%s does not say that it is %s of %s", w.Type, w.Source.Path, w.Source.Kit)
			}
		}
	})
}

// single reports whether a declaration has one entry of a type.
func single(typ string) bool {
	def, known := wellknown.Find(typ)
	return known && def.Arity == capability.Singleton
}
