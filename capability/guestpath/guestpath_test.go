package guestpath_test

import (
	"testing"

	"github.com/kitbox-dev/kitbox/capability/guestpath"
)

func TestWhatIsAPath(t *testing.T) {
	for _, tt := range []struct {
		path                string
		absolute, canonical bool
	}{
		{"/d", true, true},
		{"/d/e.f", true, true},
		{"/...", true, true},
		{"/ ", true, true},
		{"/d/", true, false},
		{"/d//e", true, false},
		{"/d/./e", true, false},
		{"/d/../e", true, false},
		{"/../e", true, false},
		{"/", false, false},
		{"/d/..", false, false},
		{"//", false, false},
		{"", false, false},
		{"d", false, false},
		{"~/d", false, false},
		{"/d\x00", false, false},
	} {
		if got := guestpath.Absolute(tt.path); (got == "") != tt.absolute {
			t.Errorf("Absolute(%q): %q", tt.path, got)
		}
		if got := guestpath.Canonical(tt.path); (got == "") != tt.canonical {
			t.Errorf("Canonical(%q): %q", tt.path, got)
		}
	}
	if got := guestpath.Clean("/srv/../cache/."); got != "/cache" {
		t.Errorf("Clean: %q", got)
	}
}
