package textlist_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/kitbox-dev/kitbox/capability/textlist"
)

var errShape = errors.New("no text")

func same(s string) string { return s }

func TestTextAndListsAreTold(t *testing.T) {
	for text, want := range map[string]struct {
		values []string
		list   bool
	}{
		`"a"`: {[]string{"a"}, false}, `""`: {[]string{""}, false}, `[]`: {[]string{}, true}, `["a"]`: {[]string{"a"}, true}, `["a","\u00e4\n"]`: {[]string{"a", "ä\n"}, true},
	} {
		values, list, err := textlist.Decode(jsontext.NewDecoder(strings.NewReader(text)), same, errShape)
		if err != nil || list != want.list || values == nil || !slices.Equal(values, want.values) {
			t.Errorf("%s: %q, %v, %v", text, values, list, err)
		}
		if !list {
			continue
		}
		var b bytes.Buffer
		if err := textlist.Encode(jsontext.NewEncoder(&b), values); err != nil {
			t.Fatal(err)
		}
		again, list, err := textlist.Decode(jsontext.NewDecoder(&b), same, errShape)
		if err != nil || !list || !slices.Equal(again, values) {
			t.Errorf("%s: became %q, %v, %v", text, again, list, err)
		}
	}
}

func TestAnythingElseHasAnotherShape(t *testing.T) {
	for _, text := range []string{`1`, `null`, `true`, `{}`, `[1]`, `[null]`, `["a",["b"]]`, `["a",{}]`} {
		if values, _, err := textlist.Decode(jsontext.NewDecoder(strings.NewReader(text)), same, errShape); !errors.Is(err, errShape) || values != nil {
			t.Errorf("%s: %q, %v", text, values, err)
		}
	}
	for _, text := range []string{``, `[`, `["a"`, `"a`, `["a" "b"]`} {
		if values, _, err := textlist.Decode(jsontext.NewDecoder(strings.NewReader(text)), same, errShape); err == nil || errors.Is(err, errShape) || values != nil {
			t.Errorf("%s: %q, %v", text, values, err)
		}
	}
}
