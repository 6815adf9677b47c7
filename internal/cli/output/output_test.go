package output

import (
	"testing"
)

func TestForeignTextCannotTurnAround(t *testing.T) {
	if got := Printable("a\x1b[2J\u202eb\u2066c\u2028d\u0085\x7f\te"); got != "a[2Jbcd e" {
		t.Errorf("%q", got)
	}
}
