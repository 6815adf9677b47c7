package rule

import (
	"slices"

	"github.com/opencontainers/go-digest"
)

// A Listed is what one platform of a Kit that a set lists consists of.
type Listed struct {
	Platform string // empty for an image that has no index
	Layers   []digest.Digest
}

// preserved holds the layers of a set against those of its Kits, as far as those
// are known: each Kit's are there, unchanged and in a row.
func (j *judge) preserved() {
	if !j.set() {
		return
	}
	for _, im := range j.Images {
		var have []digest.Digest
		for _, l := range im.Manifest.Layers {
			have = append(have, l.Digest)
		}
		for _, k := range j.doc.Kits {
			ls := j.Listed[k.Digest]
			i := slices.IndexFunc(ls, func(l Listed) bool { return l.Platform == "" || variantless(l.Platform) == variantless(im.Platform) })
			switch {
			case len(ls) == 0:
				j.waive("the manifest of " + k.Ref + " was not read; --kits reads it from its registry")
			case i < 0:
				j.fail(im, "layers", "%s has no image for %s", k.Ref, im.Platform)
			case !inARow(have, ls[i].Layers):
				j.fail(im, "layers", "those of %s are not there as they are, in a row", k.Ref)
			}
		}
	}
}

// variantless is a platform as images of the first 64-bit ARM state it that state no
// variant, which say the same.
func variantless(platform string) string {
	if platform == "linux/arm64/v8" {
		return "linux/arm64"
	}
	return platform
}

// inARow reports whether all of part stands in whole, without anything between.
func inARow(whole, part []digest.Digest) bool {
	for i := 0; i+len(part) <= len(whole); i++ {
		if slices.Equal(whole[i:i+len(part)], part) {
			return true
		}
	}
	return false
}
