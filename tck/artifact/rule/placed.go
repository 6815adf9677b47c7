package rule

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/constraint"
	"github.com/kitbox-dev/kitbox/spec/content"
)

// A placing says which staged sources are of which Kit. A set stages those of
// every Kit it lists, of the Kits of those that are sets themselves, and of
// whatever a workload among them was built from, which nobody lists.
type placing struct {
	own     string                    // the stem of the set itself, or ""
	docs    map[string]*spec.Document // of the others, by stem, as far as they can be read
	unread  []string                  // stems of those that cannot
	of      map[string]string         // stem by reference
	missing []string                  // references that the set lists and that have no sources
	unclear string                    // why nothing tells whose some are
	loose   bool                      // some could as well be each other's: nothing but their names tells
}

// maxPlaced bounds how many Kits, and how many staged descriptors, are held
// against each other.
const maxPlaced = 256

// A slot is a Kit whose sources are looked for.
type slot struct {
	kit spec.KitRef
	top bool // the set lists it itself
}

// place returns the placing for an image of a set.
func (j *judge) place(im *Image) *placing {
	if p, done := j.placed[im]; done {
		return p
	}
	p := &placing{own: j.own(im), docs: map[string]*spec.Document{}, of: map[string]string{}}
	if j.placed == nil {
		j.placed = map[*Image]*placing{}
	}
	j.placed[im] = p
	stems := im.stems()
	if len(stems) > maxPlaced {
		p.unclear = fmt.Sprintf("%d descriptors are staged, of which nobody tells whose they are", len(stems))
		return p
	}
	text := map[string]string{} // of a descriptor, as publishing encodes it
	for _, stem := range stems {
		if stem == p.own {
			continue
		}
		d := j.stagedAs(im, stem)
		if d.doc == nil {
			p.unread = append(p.unread, stem)
			continue
		}
		p.docs[stem], text[stem] = d.doc, string(d.text)
	}
	slots := slotsOf(j.doc, p.docs)
	if len(slots) > maxPlaced {
		p.unclear = fmt.Sprintf("%d Kits are listed, too many to tell whose sources are staged", len(slots))
		return p
	}
	j.fill(im, p, slots, text)
	for _, s := range slots {
		if s.top && p.of[s.kit.Ref] == "" && p.unclear == "" {
			p.missing = append(p.missing, s.kit.Ref)
		}
	}
	return p
}

// slotsOf returns the Kits of a set, and those of the sets among the staged.
func slotsOf(set *spec.Document, docs map[string]*spec.Document) []slot {
	var out []slot
	seen := map[string]bool{}
	add := func(kits []spec.KitRef, top bool) {
		for _, k := range kits {
			if !seen[k.Ref] && len(out) <= maxPlaced {
				seen[k.Ref] = true
				out = append(out, slot{k, top})
			}
		}
	}
	add(set.Kits, true)
	for _, stem := range slices.Sorted(maps.Keys(docs)) {
		add(docs[stem].Kits, false)
	}
	return out
}

// fill gives every slot the stem that fits it best, the best fit first, so that
// what is certain decides before what is not.
func (j *judge) fill(im *Image, p *placing, slots []slot, text map[string]string) {
	stems := slices.Sorted(maps.Keys(p.docs))
	fit := make([]map[string]int, len(slots))
	evidence, marks := j.evidence(), map[string]*traits{}
	for _, stem := range stems {
		marks[stem] = j.traits(im, p, stem)
	}
	for i, s := range slots {
		fit[i] = map[string]int{}
		known := j.Listed[s.kit.Digest].descriptor()
		for _, stem := range stems {
			switch known {
			case "":
				fit[i][stem] = fits(s.kit, stem, marks[stem], evidence)
			case text[stem]:
				fit[i][stem] = -otherKit
			default:
				fit[i][stem] = otherKit
			}
		}
	}
	// With a stem for every Kit and no other, even a bad fit is the one.
	spare := len(stems)+len(p.unread) > len(slots)
	open, left := make([]bool, len(slots)), slices.Clone(stems)
	for i := range open {
		open[i] = true
	}
	for range slots {
		kit, at := -1, -1
		for i := range slots {
			for n, stem := range left {
				if open[i] && (kit < 0 || fit[i][stem] > fit[kit][left[at]]) {
					kit, at = i, n
				}
			}
		}
		if kit < 0 || fit[kit][left[at]] <= otherKit || spare && fit[kit][left[at]] < 0 {
			return
		}
		stem := left[at]
		for _, other := range left {
			if other == stem || fit[kit][other] != fit[kit][stem] || text[other] == text[stem] {
				continue
			}
			if spare || len(slots[kit].kit.Args) > 0 {
				p.unclear = fmt.Sprintf("nothing tells which of the sources staged as %s and %s are those of %s", stem, other, slots[kit].kit.Ref)
				return
			}
			p.loose = true
		}
		p.of[slots[kit].kit.Ref], open[kit] = stem, false
		left = slices.Delete(left, at, at+1)
	}
}

// evidence returns the entries of the set by the Kit that they say they come
// from.
func (j *judge) evidence() map[string][]claim {
	out := map[string][]claim{}
	for _, r := range j.doc.Requests() {
		if r.Source != nil && r.Source.Kit != "" {
			out[r.Source.Kit] = append(out[r.Source.Kit], claim{r.Source.Path, r.Type, canonical(r)})
		}
	}
	return out
}

// A claim is that an entry stands somewhere in the descriptor of a Kit.
type claim struct{ path, typ, canonical string }

// traits are what tells staged sources apart.
type traits struct {
	doc      *spec.Document
	entries  map[string]claim // by path
	versions map[string]bool  // of what it provides
	foreign  bool             // it provides what the set does not
	beside   bool             // it stands in the layer of the set's own sources
}

func (j *judge) traits(im *Image, p *placing, stem string) *traits {
	t := &traits{doc: p.docs[stem], entries: map[string]claim{}, versions: map[string]bool{}}
	if j.offers == nil {
		j.offers = names(j.doc.Provides)
	}
	for name, provide := range names(t.doc.Provides) {
		if _, ok := j.offers[name]; !ok {
			t.foreign = true
		}
		t.versions[provide.Version] = true
	}
	eachEntry(t.doc.Descriptor, func(at string, r capability.Request) {
		t.entries[at] = claim{at, r.Type, canonical(r)}
	})
	if im.Layers != nil && p.own != "" {
		at := func(s string) int {
			e, _ := im.Layers.At(path.Join(content.StageRoot, s, content.StagedDescriptor))
			return e.Layer
		}
		t.beside = at(stem) == at(p.own)
	}
	return t
}

// otherKit is the fit of sources that are known not to be those of a Kit, whose
// manifest says so.
const otherKit = -1000

// fits weighs what speaks for a stem being that of a listed Kit, and against
// it.
func fits(k spec.KitRef, stem string, t *traits, evidence map[string][]claim) int {
	n := 0
	for name := range k.Args {
		if a, ok := t.doc.Args[name]; !ok || a.BuildArg != "" {
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
	if v := constraint.ReferenceVersion(k.Ref); v != "" && t.versions[v] {
		n++
	}
	if t.foreign { // the set would provide it as well
		n -= 4
	}
	for _, c := range evidence[k.Ref] {
		switch entry, ok := t.entries[c.path]; {
		case !ok || entry.typ != c.typ:
			n -= 8
		case entry == c:
			n += 3
		default:
			n++
		}
	}
	if slices.ContainsFunc(t.doc.Kits, func(inner spec.KitRef) bool { return len(evidence[inner.Ref]) > 0 }) {
		n++
	}
	if t.beside { // a Kit's sources come with its layers
		n--
	}
	return n
}

// eachEntry calls f for every entry of d, with its path: capabilities[2] or
// capabilities[0].group.capabilities[1].
func eachEntry(d spec.Descriptor, f func(at string, r capability.Request)) {
	for i, it := range d.Capabilities {
		p := index("capabilities", i)
		if it.Group == nil {
			f(p, it.Request)
			continue
		}
		for n, r := range it.Group.Capabilities {
			f(index(p+".group.capabilities", n), r)
		}
	}
}

// toldApart finds sets whose staged sources do not say which Kit they are of, so
// that nobody can merge them anew.
func (j *judge) toldApart() {
	if !j.set() {
		return
	}
	for _, im := range j.Images {
		if p := j.place(im); p.unclear != "" {
			j.fail(im, content.StageRoot, "%s: what the set declares is not held against its Kits", p.unclear)
		}
	}
}

func (j *judge) setSources() {
	if !j.set() {
		return
	}
	for _, im := range j.Images {
		p := j.place(im)
		for _, ref := range p.missing {
			j.fail(im, content.StageRoot, "the sources of %s, which the set lists, are not there", ref)
		}
		if len(p.missing) == 0 {
			continue // others are what a Kit was built from
		}
		for _, stem := range p.unread {
			j.fail(im, path.Join(content.StageRoot, stem, content.StagedDescriptor), "is no published descriptor")
		}
	}
}

// owners returns a function that tells the layers of an image apart by the Kit
// that they come from: by the manifests of the Kits, where those are known, or by
// where the sources of each end. It is nil if nothing tells.
func (j *judge) owners(im *Image) func(layer int) int {
	if of := j.byManifests(im); of != nil {
		return of
	}
	p := j.place(im)
	var ends []int
	for _, stem := range append(slices.Sorted(maps.Values(p.of)), cmp.Or(p.own, "\x00")) {
		if e, ok := im.Layers.At(path.Join(content.StageRoot, stem, content.StagedDescriptor)); ok {
			ends = append(ends, e.Layer)
		}
	}
	slices.Sort(ends)
	if p.unclear != "" || len(slices.Compact(slices.Clone(ends))) != len(ends) {
		return nil
	}
	return func(layer int) int { n, _ := slices.BinarySearch(ends, layer); return n }
}

// byManifests is owners by the layers that the manifests of all Kits name.
func (j *judge) byManifests(im *Image) func(layer int) int {
	have := digestsOf(im)
	of := make([]int, len(have)) // 0: the set's own
	for n, k := range j.doc.Kits {
		l, ok := j.Listed[k.Digest].on(im.Platform)
		if !ok {
			return nil
		}
		at := rowAt(have, l.Layers)
		if at < 0 {
			return nil
		}
		for i := range l.Layers {
			of[at+i] = n + 1
		}
	}
	return func(layer int) int {
		if layer < len(of) {
			return of[layer]
		}
		return 0
	}
}
