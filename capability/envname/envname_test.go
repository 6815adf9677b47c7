package envname_test

import (
	"testing"

	"github.com/kitbox-dev/kitbox/capability/envname"
)

func TestValid(t *testing.T) {
	for s, want := range map[string]bool{"A": true, "_": true, "a1_B": true, "": false, "1A": false, "A-B": false, "A=": false, "A ": false, "Ä": false} {
		if got := envname.Valid(s); got != want {
			t.Errorf("Valid(%q) = %v", s, got)
		}
	}
}
