package constraint_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/spec/constraint"
)

// limit is far above what any of this takes, so that a busy machine does not
// fail it, and far below the minutes that an unbounded search takes.
const limit = 5 * time.Second

// TestHostileRelationsAreJudgedQuickly gives the search for a version all it
// can be given.
func TestHostileRelationsAreJudgedQuickly(t *testing.T) {
	list := func(n int, one func(i int) string) string {
		parts := make([]string, n)
		for i := range parts {
			parts[i] = one(i)
		}
		return "x " + strings.Join(parts, ", ")
	}
	long := strings.Repeat("1", 38)
	for name, s := range map[string]string{
		"many":          list(30_000, func(i int) string { return fmt.Sprintf(">= %d", i) }),
		"many repeated": list(30_000, func(int) string { return ">= 1" }),
		"mixed": list(64, func(i int) string {
			if i%2 == 0 {
				return fmt.Sprintf("> 1.%s%02da", long[:36], i)
			}
			return fmt.Sprintf("< 1.%s%02d", long[:36], i)
		}),
		"mixed and deep": list(60, func(i int) string {
			return fmt.Sprintf("%s 1%s.%da", []string{">", "<"}[i%2], strings.Repeat(".1a", 100), i)
		}),
		"alike and deep": list(60, func(i int) string {
			return fmt.Sprintf("%s 1%s.%d", []string{">=", "<="}[i%2], strings.Repeat("."+long, 100), i)
		}),
	} {
		start := time.Now()
		_, err := constraint.ParseRelation(s)
		if d := time.Since(start); d > limit {
			t.Errorf("%s: %v (%v)", name, d, err)
		} else {
			t.Log(name, d, err != nil)
		}
	}
	start := time.Now()
	for range 500 { // a tenth of what there is room for in a descriptor
		_, _ = constraint.ParseRelation("x > 1.1111111111a, < 1.11111111111, > 1.111111111, < 1.111111111c, >= 1.1111111111-")
	}
	if d := time.Since(start); d > limit {
		t.Errorf("500 odd relations: %v", d)
	} else {
		t.Log(d)
	}
}
