package constraint

import (
	"cmp"
	"strings"
)

// ValidVersion reports whether s is a version: `[0-9]+(\.[0-9A-Za-z-]+)*`,
// without a leading v (§5.2).
func ValidVersion(s string) bool {
	first := true
	for seg := range strings.SplitSeq(s, ".") {
		if seg == "" {
			return false
		}
		for i := range len(seg) {
			if first && !digit(seg[i]) || !segmentChar(seg[i]) {
				return false
			}
		}
		first = false
	}
	return true
}

func digit(c byte) bool { return c >= '0' && c <= '9' }

func segmentChar(c byte) bool {
	return digit(c) || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '-'
}

// Compare orders two versions segment by segment (§5.2): as numbers of any
// length if both are digits, else as text; a missing segment is smaller. It
// returns -1, 0 or 1. The order is not transitive across numbers and text
// (2 < 10 < 1a < 2), so never sort by it; test the pairs that matter.
func Compare(a, b string) int {
	for {
		sa, ra, moreA := strings.Cut(a, ".")
		sb, rb, moreB := strings.Cut(b, ".")
		if c := compareSegment(sa, sb); c != 0 {
			return c
		}
		switch {
		case !moreA && !moreB:
			return 0
		case !moreA:
			return -1
		case !moreB:
			return 1
		}
		a, b = ra, rb
	}
}

func compareSegment(a, b string) int {
	if allDigits(a) && allDigits(b) {
		a, b = trimZeros(a), trimZeros(b)
		return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
	}
	return strings.Compare(a, b)
}

func allDigits(s string) bool {
	for i := range len(s) {
		if !digit(s[i]) {
			return false
		}
	}
	return s != ""
}

func trimZeros(s string) string {
	for len(s) > 1 && s[0] == '0' {
		s = s[1:]
	}
	return s
}

// canonicalVersion strips leading zeros of numeric segments, so that equal
// versions are equal text.
func canonicalVersion(s string) string {
	segs := strings.Split(s, ".")
	for i, seg := range segs {
		if allDigits(seg) {
			segs[i] = trimZeros(seg)
		}
	}
	return strings.Join(segs, ".")
}

// TagVersion returns the version a tag spells, with one conventional leading v
// removed, or "" if the tag is not version-shaped (§4 version).
func TagVersion(tag string) string {
	tag = strings.TrimPrefix(tag, "v")
	if !ValidVersion(tag) {
		return ""
	}
	return tag
}

// ReferenceVersion returns what the reference a Kit is consumed by says about
// its version, or "". A digest says nothing, a registry port is not a tag, a
// git source says its ref, and a local path says nothing.
func ReferenceVersion(ref string) string {
	if source, fragment, ok := strings.Cut(ref, "#"); ok || strings.HasPrefix(source, "git+") || strings.Contains(source, "://") {
		return TagVersion(strings.TrimPrefix(gitRef(source, fragment), "refs/tags/"))
	}
	if strings.HasPrefix(ref, ".") || strings.HasPrefix(ref, "/") {
		return ""
	}
	ref, _, _ = strings.Cut(ref, "@")
	i := strings.LastIndexByte(ref, ':')
	if i < 0 || strings.IndexByte(ref[i:], '/') >= 0 {
		return ""
	}
	return TagVersion(ref[i+1:])
}

// gitRef returns the ref of a git source: `ref=` in the fragment or the query,
// or a bare fragment, which may name a directory behind a colon.
func gitRef(source, fragment string) string {
	_, query, _ := strings.Cut(source, "?")
	for field := range strings.SplitSeq(fragment+"&"+query, "&") {
		if v, ok := strings.CutPrefix(field, "ref="); ok {
			return v
		}
	}
	if strings.Contains(fragment, "=") {
		return ""
	}
	ref, _, _ := strings.Cut(fragment, ":")
	return ref
}
