package spelling_test

import (
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/spec/spelling"
)

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"a", "", 1}, {"", "ab", 2}, {"kitten", "sitting", 3}, {"volume", "volume", 0}, {"volme", "volume", 1},
		{"port", "prot", 2}, {"abc", "abd", 1}, {"abc", "xabc", 1}, {"flaw", "lawn", 2},
	} {
		if got := spelling.Distance(c.a, c.b, 10); got != c.want {
			t.Errorf("%q to %q is %d, want %d", c.a, c.b, got, c.want)
		}
		if got := spelling.Distance(c.b, c.a, 10); got != c.want {
			t.Errorf("%q to %q is %d, want %d", c.b, c.a, got, c.want)
		}
	}
}

// A word that a Kit wrote can be of any length.
func TestWordsTooFarApartAreNotCompared(t *testing.T) {
	long := strings.Repeat("a", 1<<24)
	for _, pair := range [][2]string{{long, "volume"}, {"volume", long}} {
		if got := spelling.Distance(pair[0], pair[1], 3); got <= 3 {
			t.Errorf("%d", got)
		}
	}
	if allocs := testing.AllocsPerRun(1, func() { spelling.Distance(long, "volume", 3) }); allocs > 0 {
		t.Errorf("%v allocations", allocs)
	}
}
