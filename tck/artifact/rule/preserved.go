package rule

import (
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/content"
	"github.com/kitbox-dev/kitbox/tck/artifact/tree"
)

// A Listed is what one platform of a Kit that a set lists consists of.
type Listed struct {
	Platform string // empty for an image that has no index
	Layers   []digest.Digest
}

// A Lookup is what came of asking for a Kit by the digest that a set pins. The
// zero value means that nobody asked.
type Lookup struct {
	Images     []Listed
	Descriptor string // the annotation that a reader finds

	// Gone says that there is nothing by that digest where the set says it is.
	Gone bool

	// Unread is why the Kit could not be read, though it may be there.
	Unread string
}

// on returns what the Kit is on a platform.
func (l Lookup) on(platform string) (Listed, bool) {
	i := slices.IndexFunc(l.Images, func(l Listed) bool { return l.Platform == "" || SamePlatform(l.Platform, platform) })
	if i < 0 {
		return Listed{}, false
	}
	return l.Images[i], true
}

// descriptor returns the descriptor of the Kit as publishing encodes it, or "".
func (l Lookup) descriptor() string {
	if l.Descriptor == "" {
		return ""
	}
	doc, ds := spec.Decode([]byte(l.Descriptor), spec.Options{Form: capability.Published})
	if doc == nil || ds.HasErrors() {
		return ""
	}
	b, err := doc.Descriptor.AppendJSON(nil)
	if err != nil {
		return ""
	}
	return string(b)
}

// SamePlatform reports whether two names of platforms, os/arch or
// os/arch/variant, are of what programs cannot tell apart. The first 64-bit ARM
// is the variant that images of none are for.
func SamePlatform(a, b string) bool { return normalPlatform(a) == normalPlatform(b) }

func normalPlatform(p string) string {
	if base, ok := strings.CutSuffix(p, "/v8"); ok && strings.HasSuffix(base, "/arm64") {
		return base
	}
	return p
}

// preserved holds the layers of a set against those of its Kits, as far as those
// are known: each Kit's are there, unchanged and in a row.
func (j *judge) preserved() {
	if !j.set() {
		return
	}
	for _, im := range j.Images {
		have := digestsOf(im)
		for _, k := range j.doc.Kits {
			known := j.Listed[k.Digest]
			l, ok := known.on(im.Platform)
			switch {
			case known.Gone:
				j.fail(im, "kits", "there is no %s of %s", k.Digest, k.Ref)
			case known.Unread != "":
				j.waive("the manifest of " + k.Ref + " could not be read: " + known.Unread)
			case len(known.Images) == 0:
				j.waive("the manifest of " + k.Ref + " was not read; --kits reads it from its registry")
			case !ok:
				j.fail(im, "layers", "%s has no image for %s", k.Ref, im.Platform)
			case rowAt(have, l.Layers) < 0:
				j.fail(im, "layers", "those of %s are not there as they are, in a row", k.Ref)
			}
		}
		if im.Files != nil && len(j.findings) == 0 && j.waived == "" {
			j.ordered(im, have)
		}
	}
}

// ordered holds the rows of the Kits, which are all there, against the order of
// content, and what is in no row against what a set adds: its own sources.
func (j *judge) ordered(im *Image, have []digest.Digest) {
	m := j.merge(im)
	if m.waived != "" || len(m.order) == 0 {
		return
	}
	theirs := map[int]bool{}
	at := 0
	for _, pin := range m.order {
		l, _ := j.Listed[pin].on(im.Platform)
		n := rowAt(have[at:], l.Layers)
		if n < 0 {
			j.fail(im, "layers", "those of %s are not where its Kits' order has them", j.refOf(pin))
			return
		}
		for i := range l.Layers {
			theirs[at+n+i] = true
		}
		at += n + len(l.Layers)
	}
	if im.Layers == nil {
		return
	}
	own, n := path.Join(content.StageRoot, j.own(im)), 0
	tree.Walk(im.Layers, "/", func(name string, e tree.Entry) bool {
		if e.Kind != tree.Dir && !theirs[e.Layer] && !under(name, own) {
			if n++; n <= few {
				j.fail(im, name, "is in layer %d, which is of no Kit it lists; a set adds its own sources alone", e.Layer)
			}
		}
		return true
	})
	if n > few {
		j.fail(im, "", "%d more files are of no Kit it lists", n-few)
	}
}

func (j *judge) refOf(pin string) string {
	for _, k := range j.doc.Kits {
		if k.Digest == pin {
			return k.Ref
		}
	}
	return pin
}

func digestsOf(im *Image) []digest.Digest {
	var have []digest.Digest
	for _, l := range im.Manifest.Layers {
		have = append(have, l.Digest)
	}
	return have
}

// rowAt returns where all of part stands in whole without anything between, or
// -1.
func rowAt(whole, part []digest.Digest) int {
	for i := 0; i+len(part) <= len(whole); i++ {
		if slices.Equal(whole[i:i+len(part)], part) {
			return i
		}
	}
	return -1
}
