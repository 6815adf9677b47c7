package archtest

import (
	"os"
	"path/filepath"
	"testing"
)

// TestEveryHandlerHasItsRooms keeps a capability's name the same in all the
// places that speak of it.
func TestEveryHandlerHasItsRooms(t *testing.T) {
	root := filepath.Join("..", "..")
	handlers, err := os.ReadDir(filepath.Join(root, "internal", "handler"))
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, h := range handlers {
		name := h.Name()
		if !h.IsDir() || name == "builtin" {
			continue
		}
		seen++
		for _, room := range []string{
			filepath.Join("capability", name, "schema.json"),
			filepath.Join("docs", "capabilities", name+".md"),
		} {
			if _, err := os.Stat(filepath.Join(root, room)); err != nil {
				t.Errorf("internal/handler/%s answers a capability without %s", name, room)
			}
		}
	}
	if seen == 0 {
		t.Error("no handler was found; the test looks at the wrong place")
	}
	pages, err := filepath.Glob(filepath.Join(root, "docs", "capabilities", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pages {
		name := filepath.Base(p[:len(p)-len(".md")])
		if _, err := os.Stat(filepath.Join(root, "internal", "handler", name)); err != nil {
			t.Errorf("docs/capabilities/%s.md describes a capability that no handler answers", name)
		}
	}
}
