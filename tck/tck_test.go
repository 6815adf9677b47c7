package tck_test

import (
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/tck"
)

func TestRegistry(t *testing.T) {
	all := tck.Statements()
	if len(all) != 321 {
		t.Errorf("%d statements", len(all))
	}
	seen := map[string]bool{}
	for _, s := range all {
		if seen[s.ID] {
			t.Errorf("%s stands twice", s.ID)
		}
		seen[s.ID] = true
		if s.ID == "" || s.Text == "" || s.Page == "" || s.Level == "" || strings.ContainsAny(s.ID, "\t\n") {
			t.Errorf("incomplete: %+v", s)
		}
	}
	s, ok := tck.Lookup("SPEC-v3 §5.3/closed-set")
	if !ok || s.Level != tck.Must || !s.Level.Binding() {
		t.Errorf("Lookup = %+v, %v", s, ok)
	}
	if tck.Should.Binding() || tck.ShouldNot.Binding() || !tck.MustNot.Binding() {
		t.Error("levels bind wrongly")
	}
}
