package bytesize_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/capability/bytesize"
)

func ExampleEqual() {
	fmt.Println(bytesize.Equal("1.5g", "1536MiB"), bytesize.Equal("1g", "1000m"))
	// Output: true false
}

func TestEverySuffixCountsIn1024s(t *testing.T) {
	for s, want := range map[string]int64{
		"0": 0, "10240": 10240, "010k": 10240, "1b": 1, "512m": 512 << 20, "2g": 2 << 30, "2G": 2 << 30, "2gb": 2 << 30, "2GB": 2 << 30,
		"2gi": 2 << 30, "1gib": 1 << 30, "1GiB": 1 << 30, "2TB": 2 << 40, "1p": 1 << 50, "1.5g": 3 << 29, "0.5k": 512, "0.1k": 102, "1.0m": 1 << 20,
		"9000000p": math.MaxInt64,
	} {
		if got, ok := bytesize.Bytes(s); !ok || got != want || !bytesize.Valid(s) {
			t.Errorf("Bytes(%q) = %d, %v; want %d", s, got, ok, want)
		}
	}
	for _, s := range []string{
		"", "g", "2x", "1,5g", "-1g", "+1g", " 1g", "1 g", "1g ", "1.g", ".5g", "1.5.2g", "1ib", "1bb", "1kbb", "1gibb", "1e5", "0x10", "lots",
		"1/2", "١g", strings.Repeat("9", 41),
	} {
		if _, ok := bytesize.Bytes(s); ok || bytesize.Valid(s) {
			t.Errorf("Bytes(%q) is accepted", s)
		}
	}
}

func TestComparisonIsExact(t *testing.T) {
	const big = "9007199254740993" // not a float64
	for _, tt := range []struct {
		a, b string
		want int
	}{
		{"1g", "1024m", 0}, {"0.1k", "102.4", 0}, {"0.1k", "102", 1}, {big, "9007199254740992", 1},
		{"9000000p", "9000001p", -1}, {"", "0", -1}, {"0", "x", 1}, {"", "x", 0},
	} {
		if got := bytesize.Compare(tt.a, tt.b); got != tt.want {
			t.Errorf("Compare(%q, %q) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
	if bytesize.Equal("x", "x") || bytesize.Equal("1", "x") || !bytesize.Equal("0.50k", "512") {
		t.Error("Equal is not about sizes")
	}
}

func FuzzSize(f *testing.F) {
	for _, s := range []string{"1.5g", "2TB", "1gib", "x", "010k", "0.1k"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, ok := bytesize.Bytes(s)
		if ok != bytesize.Valid(s) || ok && (n < 0 || !bytesize.Equal(s, s) || bytesize.Compare(s, s) != 0) {
			t.Errorf("%q: Bytes %d, %v; Valid %v", s, n, ok, bytesize.Valid(s))
		}
	})
}
