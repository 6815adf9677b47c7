package rule

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/lifecycle"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/constraint"
	"github.com/kitbox-dev/kitbox/spec/surface"
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

// setCapabilities finds what the Kits ask for and the set does not: lines of the
// permission surface, types that are not on it, hooks and files, and entries
// that became optional.
func (j *judge) setCapabilities() {
	j.eachMerging(func(im *Image, m *merging) {
		for _, f := range m.faults {
			if f.id == idMerged {
				j.fail(im, "kits", "%s", f.message)
			}
		}
		have := j.doc.Requests()
		for _, c := range surface.Diff(surface.Project(have), surface.Project(m.want.Requests())).Widenings {
			if !strings.HasSuffix(c.Category, "-removed") { // a denial of the set's own
				j.fail(im, "capabilities", "%s %s, which a Kit it lists asks for, is missing", c.Category, c.Detail)
			}
		}
		for _, r := range m.want.Requests() {
			if !slices.ContainsFunc(have, func(h capability.Request) bool { return h.Type == r.Type }) {
				j.fail(im, "capabilities", "%s, which a Kit it lists asks for, is missing", r.Type)
			}
		}
		for i, it := range j.doc.Capabilities {
			if it.Group != nil || !it.Optional || it.Source == nil {
				continue
			}
			for _, w := range m.want.Capabilities {
				if w.Group == nil && !w.Optional && w.Type == it.Type && sameSource(w.Request, it.Request) {
					j.fail(im, index("capabilities", i), "is optional, and a Kit it lists requires %s", it.Type)
				}
			}
		}
		j.setHooks(im, m, have)
	})
}

func sameSource(a, b capability.Request) bool {
	return a.Source != nil && b.Source != nil && *a.Source == *b.Source
}

// setHooks finds hooks and files that are missing, or hooks in another order.
func (j *judge) setHooks(im *Image, m *merging, have []capability.Request) {
	want, got := hooksOf(m.want.Requests()), hooksOf(have)
	for _, list := range []string{"install", "startup", "files"} {
		rest := got[list]
		for _, h := range want[list] {
			i := slices.Index(rest, h)
			switch {
			case i >= 0 && list != "files": // files have no order
				rest = rest[i+1:]
			case slices.Contains(got[list], h) && list != "files":
				j.fail(im, "capabilities", "lifecycle: a hook of %s is not in composition order: %.80s", list, h)
			case i < 0:
				j.fail(im, "capabilities", "lifecycle: one of %s of a Kit it lists is missing: %.80s", list, h)
			}
		}
	}
}

// hooksOf returns hooks and files of all lifecycle entries as they are encoded.
func hooksOf(rs []capability.Request) map[string][]string {
	out := map[string][]string{}
	for _, r := range rs {
		if r.Type != lifecycle.Type {
			continue
		}
		var c map[string]json.RawMessage
		if json.Unmarshal(r.Config, &c) != nil {
			continue
		}
		for list, raw := range c {
			var hooks []json.RawMessage
			if json.Unmarshal(raw, &hooks) != nil {
				continue
			}
			for _, h := range hooks {
				// The order of keys is the publisher's own.
				out[list] = append(out[list], string(spec.CanonicalConfig(jsontext.Value(h))))
			}
		}
	}
	return out
}

// setLabels finds entries that have another label than the first that their
// contributors state.
func (j *judge) setLabels() {
	j.eachMerging(func(im *Image, m *merging) {
		for i, it := range j.doc.Capabilities {
			if it.Group != nil {
				continue
			}
			for _, w := range m.want.Capabilities {
				if w.Group == nil && w.Type == it.Type && sameSource(w.Request, it.Request) && w.Name != "" && w.Name != it.Name {
					j.fail(im, index("capabilities", i)+".name", "is %q; the first that is stated is %q", it.Name, w.Name)
				}
			}
		}
	})
}

// setGroups finds groups that were not kept whole, and in their order.
func (j *judge) setGroups() {
	groups := func(d spec.Descriptor) (out []string) {
		for _, it := range d.Capabilities {
			if it.Group == nil {
				continue
			}
			one := spec.Descriptor{Capabilities: []spec.Item{{Group: it.Group}}}
			if b, err := one.AppendJSON(nil); err == nil {
				out = append(out, string(b))
			}
		}
		return out
	}
	j.eachMerging(func(im *Image, m *merging) {
		rest := groups(j.doc.Descriptor)
		want := groups(m.want)
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

// setProvenance finds entries that name a Kit which does not have them.
func (j *judge) setProvenance() {
	j.eachMerging(func(im *Image, m *merging) {
		for _, r := range j.doc.Requests() {
			s := r.Source
			if s == nil || s.Kit == "" {
				continue // the set's own
			}
			doc, listed := m.kits[s.Kit]
			if !listed {
				if !slices.ContainsFunc(j.doc.Kits, func(k spec.KitRef) bool { return len(m.kits[k.Ref].Kits) > 0 }) {
					j.fail(im, "capabilities", "%s says that it comes from %s, which the set does not list", r.Type, s.Kit)
				}
				continue
			}
			if len(doc.Kits) > 0 {
				continue // what it got from its own Kits names those
			}
			if typ, ok := typeAt(doc.Descriptor, s.Path); !ok || typ != r.Type {
				j.fail(im, "capabilities", "%s says that it is %s of %s, which is not there", r.Type, s.Path, s.Kit)
			}
		}
	})
}
