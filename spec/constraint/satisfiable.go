package constraint

import (
	"math/big"
	"strings"
)

// A bound is a lower or upper bound that the version under construction equals
// in all segments chosen so far.
type bound struct {
	segs      []string
	inclusive bool
}

// satisfiable reports whether some version meets all of cs. Pins decide at
// once. Otherwise it builds a version segment by segment and tries, at each
// place, every value that could matter: those of the bounds still tied, and one
// strictly between them. Values tie with disjoint sets of bounds, so the search
// is linear in the text. It cannot compare end points only: the order of
// versions has gaps (nothing is between 0 and 0.-) and is not transitive.
//
// It is false for known if the constraints are so many and so odd that the
// search was given up.
func satisfiable(cs []Constraint) (ok, known bool) {
	var lower, upper []bound
	for _, c := range cs {
		b := bound{segs: strings.Split(c.Version, ".")}
		switch c.Op {
		case Exactly:
			for _, other := range cs {
				if !other.Allows(c.Version) {
					return false, true
				}
			}
			return true, true
		case AtLeast, Above:
			b.inclusive = c.Op == AtLeast
			lower = append(lower, b)
		case AtMost, Below:
			b.inclusive = c.Op == AtMost
			upper = append(upper, b)
		}
	}
	if len(lower) == 1 && len(upper) == 1 && compareSegment(lower[0].segs[0], upper[0].segs[0]) < 0 {
		return true, true // the usual case: whatever extends the lower bound
	}
	s := search{steps: maxSteps}
	ok = s.reachable(lower, upper, 0)
	return ok, ok || s.steps > 0
}

// maxSteps bounds the segments that a search compares. Constraints that people
// write take a few dozen.
const maxSteps = 1 << 16

// A search counts down the steps it may still take.
type search struct{ steps int }

// reachable reports whether a version that ties with lower and upper in its
// first depth segments can be completed.
func (s *search) reachable(lower, upper []bound, depth int) bool {
	if depth > 0 && endable(lower, upper, depth) {
		return true
	}
	for _, seg := range s.candidates(lower, upper, depth) {
		if s.steps -= len(lower) + len(upper); s.steps <= 0 {
			return false
		}
		nextLower, ok := choose(lower, seg, depth, 1)
		if !ok {
			continue
		}
		nextUpper, ok := choose(upper, seg, depth, -1)
		if !ok {
			continue
		}
		if len(nextLower) == 0 && len(nextUpper) == 0 || s.reachable(nextLower, nextUpper, depth+1) {
			return true
		}
	}
	return false
}

// endable reports whether the version may end here.
func endable(lower, upper []bound, depth int) bool {
	for _, l := range lower {
		if len(l.segs) > depth || !l.inclusive {
			return false
		}
	}
	for _, u := range upper {
		if len(u.segs) == depth && !u.inclusive {
			return false
		}
	}
	return true
}

// choose returns the bounds that still tie when the segment at depth is s, and
// whether s violates none. side is 1 for lower bounds and -1 for upper ones.
func choose(bounds []bound, s string, depth, side int) (tied []bound, ok bool) {
	for _, b := range bounds {
		c := 1 // a version longer than the bound is above it
		if len(b.segs) > depth {
			c = compareSegment(s, b.segs[depth])
		}
		switch c * side {
		case 0:
			tied = append(tied, b)
		case -1:
			return nil, false
		}
	}
	return tied, true
}

// maxExotic bounds the segments for which mixed numeric and textual bounds are
// searched in full. Nobody writes longer ones.
const maxExotic = 10

// maxShift bounds the digits of a number whose neighbours are tried.
const maxShift = 160

func (s *search) candidates(lower, upper []bound, depth int) []string {
	var out, digits, texts []string
	low := ""
	note := func(seg string) {
		out = append(out, seg)
		if allDigits(seg) {
			digits = append(digits, seg)
		} else {
			texts = append(texts, seg)
		}
	}
	for _, b := range lower {
		if len(b.segs) > depth {
			note(b.segs[depth])
			low = max(low, b.segs[depth])
		}
	}
	for _, b := range upper {
		if len(b.segs) > depth {
			note(b.segs[depth])
		}
	}
	for _, d := range digits {
		if len(d) <= maxShift {
			out = append(out, shift(d, 1), shift(d, -1))
		}
	}
	if depth == 0 {
		out = append(out, "0")
		if len(digits) > 0 {
			longest := ""
			for _, d := range digits {
				if len(d) > len(longest) {
					longest = d
				}
			}
			out = append(out, "1"+longest) // above every one of them
		}
		return out // the first segment is digits only
	}
	// '-' is the smallest character of a segment, so this is the immediate
	// successor of the greatest lower text.
	out = append(out, low+"-", "-")
	if len(digits) > 0 && len(texts) > 0 {
		out = append(out, s.mixed(digits, texts)...)
	}
	return out
}

func shift(d string, by int64) string {
	n, _ := new(big.Int).SetString(d, 10)
	n.Add(n, big.NewInt(by))
	if n.Sign() < 0 {
		return "0"
	}
	return n.String()
}

// mixed proposes numbers that lie between texts in the order of text and
// between numbers in the order of numbers.
func (s *search) mixed(digits, texts []string) []string {
	width := 1
	for _, d := range digits {
		width = max(width, len(d)+1)
	}
	if width > maxExotic {
		return nil
	}
	var out, near []string
	for _, d := range digits {
		near = append(near, shift(d, 1), shift(d, -1))
	}
	for _, t := range texts {
		p := 0
		for p < len(t) && digit(t[p]) {
			p++
		}
		if p > maxExotic {
			continue
		}
		for i := 0; i <= p; i++ {
			if s.steps -= 20 * (width + p + len(near)); s.steps <= 0 {
				return out
			}
			for d := byte('0'); d <= '9'; d++ {
				q := t[:i] + string(d)
				for k := 0; len(q)+k <= width+p; k++ {
					out = append(out, q+strings.Repeat("0", k), q+strings.Repeat("9", k))
				}
			}
			for _, n := range near {
				out = append(out, strings.Repeat("0", i)+n)
			}
		}
	}
	return out
}
