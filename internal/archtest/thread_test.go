package archtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A goroutine that is locked to the main thread cannot end that thread, so that the
// whole process is left in whatever namespace it entered. Package ownthread knows
// that; whoever locks a thread by hand has to say why here.
var lockers = map[string]string{
	"internal/ownthread":    "it is what others use",
	"internal/guest/agent":  "it gives its thread back as it was",
	"internal/guest/inside": "its thread is given back once all are where it is",
}

func TestThreadsAreLockedInOnePlace(t *testing.T) {
	root := filepath.Join("..", "..")
	seen := map[string]bool{}
	for _, p := range load(t) {
		dir := strings.TrimPrefix(p.ImportPath, module+"/")
		if dir == "bench" {
			continue // its threads stay for as long as it runs
		}
		for _, f := range p.GoFiles {
			b, err := os.ReadFile(filepath.Join(root, dir, f))
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(b), "runtime.LockOSThread()") {
				continue
			}
			if seen[dir] = true; lockers[dir] == "" {
				t.Errorf("%s/%s locks a thread by hand: use internal/ownthread, whose threads end", dir, f)
			}
		}
	}
	for dir := range lockers {
		if !seen[dir] {
			t.Errorf("%s locks no thread any more; delete it here", dir)
		}
	}
}
