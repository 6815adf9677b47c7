package dotenv_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/secret/dotenv"
)

func TestParse(t *testing.T) {
	got, err := dotenv.Parse([]byte("\xef\xbb\xbf# keys\nA=plain\n\nexport B = 'x $y # z' # why\nC=\"a\\\"b\\$c\\\\\"\r\nD=a#b # c\nE=\nF==x=\nA=last\n_g9=\"\""))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"A": "last", "B": "x $y # z", "C": `a"b$c\`, "D": "a#b", "E": "", "F": "=x=", "_g9": ""}
	if len(got) != len(want) {
		t.Errorf("names %v", slices.Sorted(maps.Keys(got)))
	}
	for name, v := range want {
		if string(got[name]) != v {
			t.Errorf("%s = %q, want %q", name, got[name], v)
		}
	}
	for text, want := range map[string]string{"A=1\nhush": "line 2", "1A=hush": "line 1", "=hush": "line 1", "A='hush": "quote", `A="hush\"`: "quote", "A='x' hush": "behind"} {
		if _, err := dotenv.Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("A=1\nexport B='x'\nC=\"\\n\"")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := dotenv.Parse([]byte(text))
		if err != nil {
			return
		}
		for name, v := range got {
			if name == "" || len(v) > len(text) {
				t.Errorf("%q of %q", v, name)
			}
		}
	})
}
