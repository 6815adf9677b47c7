package rule

import (
	"slices"

	"github.com/kitbox-dev/kitbox/spec/constraint"
)

// set reports whether the Kit is a published set.
func (j *judge) set() bool {
	if len(j.doc.Kits) == 0 {
		j.skip("not a set")
		return false
	}
	return true
}

// setFiles finds files that the layers of one Kit replace in those of another,
// or take away from it, as a machine that composed the Kits would refuse.
func (j *judge) setFiles() {
	if !j.set() {
		return
	}
	for _, im := range j.Images {
		kit := j.owners(im)
		if kit == nil {
			j.waive("nothing tells which layers are of which Kit")
			continue
		}
		n := 0
		for _, o := range im.Layers.Overwrites {
			if kit(o.Below) == kit(o.Above) {
				continue
			}
			if n++; n > many {
				continue
			}
			what := "replaces"
			if o.Removed {
				what = "removes"
			}
			j.fail(im, o.Path, "layer %d %s what layer %d, of another Kit, has there", o.Above, what, o.Below)
		}
		if n > many {
			j.fail(im, "", "at least %d more files of another Kit are replaced or removed", n-many)
		}
	}
}

// many is how many files that Kits do not agree on are listed.
const many = 20

func (j *judge) setLicenses() {
	j.eachMerging(func(im *Image, m *merging) {
		for _, l := range m.want.Licenses {
			if !slices.Contains(j.doc.Licenses, l) {
				j.fail(im, "licenses", "%s of a Kit it lists is missing", l)
			}
		}
	})
}

// setKind finds sets of another kind than their Kits make.
func (j *judge) setKind() {
	j.eachMerging(func(im *Image, m *merging) {
		if m.want.Kind != "" && m.want.Kind != j.doc.Kind {
			j.fail(im, "kind", "is %s; the Kits it lists make a %s", j.doc.Kind, m.want.Kind)
		}
	})
}

// names returns the full names that entries provide.
func names(entries []string) map[string]constraint.Provide {
	out := map[string]constraint.Provide{}
	for _, e := range entries {
		if p, err := constraint.ParseProvide(e); err == nil {
			out[p.Name.String()] = p
		}
	}
	return out
}

// setProvides finds names that are missing, or that have another version than
// the Kit gives them.
func (j *judge) setProvides() {
	j.eachMerging(func(im *Image, m *merging) {
		have := names(j.doc.Provides)
		for _, e := range m.want.Provides {
			p, err := constraint.ParseProvide(e)
			if err != nil {
				continue
			}
			switch got, ok := have[p.Name.String()]; {
			case !ok:
				j.fail(im, "provides", "%s of a Kit it lists is missing", e)
			case got.Version != p.Version:
				j.fail(im, "provides", "%s is %s@%s; the Kit it lists provides %s", p.Name, p.Name, got.Version, e)
			}
		}
	})
}

func (j *judge) setRequires() {
	if !j.set() {
		return
	}
	have := names(j.doc.Provides)
	for _, l := range []struct {
		field   string
		entries []string
	}{{"requires", j.doc.Requires}, {"integrates", j.doc.Integrates}} {
		for _, e := range l.entries {
			r, err := constraint.ParseRelation(e)
			if err != nil {
				continue
			}
			if p, ok := have[r.Name.String()]; ok && r.SatisfiedBy(p) {
				j.fail(nil, l.field, "%s is what the set provides itself, as %s", e, p.Name)
			}
		}
	}
}
