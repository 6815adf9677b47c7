package filemode_test

import (
	"testing"

	"github.com/kitbox-dev/kitbox/capability/filemode"
)

func TestParse(t *testing.T) {
	for s, want := range map[string]uint32{"755": 0o755, "0755": 0o755, "1777": 0o1777, "000": 0, "0000": 0, "7777": 0o7777} {
		if got, ok := filemode.Parse(s); !ok || got != want {
			t.Errorf("Parse(%q) = %o, %v", s, got, ok)
		}
	}
	for _, s := range []string{"", "7", "75", "999", "00755", "0o755", "-755", "+755", "75 ", "rwx", "\u0667\u0665\u0665"} {
		if got, ok := filemode.Parse(s); ok {
			t.Errorf("Parse(%q) = %o", s, got)
		}
	}
}
