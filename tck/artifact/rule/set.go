package rule

import (
	"path"
	"slices"

	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/constraint"
	"github.com/kitbox-dev/kitbox/spec/content"
)

// set reports whether the Kit is a published set.
func (j *judge) set() bool {
	if len(j.doc.Kits) == 0 {
		j.skip("not a set")
		return false
	}
	return true
}

// members returns the staged descriptors other than the Kit's own.
func (j *judge) members(im *Image) map[string]*spec.Document {
	own := j.own(im)
	out := map[string]*spec.Document{}
	for _, stem := range im.stems() {
		if stem != own {
			_, out[stem] = im.descriptor(stem)
		}
	}
	return out
}

func (j *judge) setSources() {
	if !j.set() {
		return
	}
	for _, im := range j.Images {
		members := j.members(im)
		if len(members) < len(j.doc.Kits) {
			j.fail(im, content.StageRoot, "the set lists %d Kits, and the sources of %d are staged beside its own", len(j.doc.Kits), len(members))
		}
		for stem, doc := range members {
			if doc == nil {
				j.fail(im, path.Join(content.StageRoot, stem, content.StagedDescriptor), "is no published descriptor")
			}
		}
	}
}

// setFiles finds files that the layers of one Kit replace in those of another.
// Where one Kit's layers end is where its sources are staged.
func (j *judge) setFiles() {
	if !j.set() {
		return
	}
	for _, im := range j.Images {
		var ends []int
		for _, stem := range im.stems() {
			e, _ := im.Layers.At(path.Join(content.StageRoot, stem, content.StagedDescriptor))
			ends = append(ends, e.Layer)
		}
		slices.Sort(ends)
		kit := func(layer int) int { n, _ := slices.BinarySearch(ends, layer); return n }
		for _, o := range im.Layers.Overwrites {
			if kit(o.Below) != kit(o.Above) {
				j.fail(im, o.Path, "layer %d replaces what layer %d, of another Kit, has there", o.Above, o.Below)
			}
		}
	}
}

func (j *judge) setLicenses() {
	if !j.set() {
		return
	}
	for _, im := range j.Images {
		for stem, doc := range j.members(im) {
			if doc == nil {
				continue
			}
			for _, l := range doc.Licenses {
				if !slices.Contains(j.doc.Licenses, l) {
					j.fail(im, "licenses", "%s of the Kit staged as %s is missing", l, stem)
				}
			}
		}
	}
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

func (j *judge) setProvides() {
	if !j.set() {
		return
	}
	have := names(j.doc.Provides)
	for _, im := range j.Images {
		for stem, doc := range j.members(im) {
			if doc == nil {
				continue
			}
			for _, e := range doc.Provides {
				if p, err := constraint.ParseProvide(e); err == nil {
					if _, ok := have[p.Name.String()]; !ok {
						j.fail(im, "provides", "%s of the Kit staged as %s is missing", e, stem)
					}
				}
			}
		}
	}
}

func (j *judge) setRequires() {
	if !j.set() {
		return
	}
	have := names(j.doc.Provides)
	for _, e := range j.doc.Requires {
		r, err := constraint.ParseRelation(e)
		if err != nil {
			continue
		}
		if p, ok := have[r.Name.String()]; ok && r.SatisfiedBy(p) {
			j.fail(nil, "requires", "%s is what the set provides itself, as %s", e, p.Name)
		}
	}
}
