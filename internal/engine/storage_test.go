package engine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/plan"
)

// What a kill left of storage between its directory and its terms goes with the
// sandbox that was being made; storage of another sandbox of the name stays.
func TestSettleRemovesStorageWithoutTerms(t *testing.T) {
	s := storage{t.TempDir()}
	half := &plan.Plan{Name: "half", ID: "1", Volumes: []plan.Volume{{Path: "/data"}}}
	if err := os.MkdirAll(s.Dir("half", "/data"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.settle(half, false); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "half")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is left: %v", err)
	}

	whole := &plan.Plan{Name: "whole", ID: "2", Volumes: []plan.Volume{{Path: "/data"}}}
	if err := os.MkdirAll(s.Dir("whole", "/data"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := writeTerms(s.at("whole", "/data"), terms{Volume: whole.Volumes[0]}); err != nil {
		t.Fatal(err)
	}
	if err := s.settle(whole, false); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(s.Dir("whole", "/data")); err != nil {
		t.Errorf("storage of an earlier sandbox is gone: %v", err)
	}
}
