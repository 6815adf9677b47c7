package storage

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/needs"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// What a kill left of storage between its directory and its terms goes with the
// sandbox that was being made; storage of another sandbox of the name stays.
func TestSettleRemovesStorageWithoutTerms(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	half := &plan.Plan{Name: "half", ID: "1", Volumes: []plan.Volume{{Path: "/data"}}}
	if err := os.MkdirAll(s.Place("half", "/data", false), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.Settle(t.Context(), half, false); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(s.Dir, "half")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is left: %v", err)
	}

	whole := &plan.Plan{Name: "whole", ID: "2", Volumes: []plan.Volume{{Path: "/data"}}}
	if err := os.MkdirAll(s.Place("whole", "/data", false), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := writeTerms(s.at("whole", "/data"), terms{Volume: whole.Volumes[0]}); err != nil {
		t.Fatal(err)
	}
	if err := s.Settle(t.Context(), whole, false); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(s.Place("whole", "/data", false)); err != nil {
		t.Errorf("storage of an earlier sandbox is gone: %v", err)
	}
}

func TestStorageStaysWithItsNameUnlessItsSandboxNeverWas(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	mine := func(id string, transient bool) *plan.Plan {
		p := &plan.Plan{Name: "n", ID: id, Volumes: []plan.Volume{{Path: "/a/b", Transient: transient}, {Path: "/t", Tmpfs: true}}}
		for _, v := range p.Volumes {
			p.Machine.Mounts = append(p.Machine.Mounts, plan.Mount{Path: v.Path, Source: s.Place("n", v.Path, false), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Mode: 0o1770})
		}
		return p
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	exists := func() bool { _, ok, err := s.Retained("n", "/a/b"); must(err); return ok }

	p := mine("one", false)
	must(s.Prepare(t.Context(), p))
	if st, err := os.Stat(s.Place("n", "/a/b", false)); err != nil || st.Mode() != fs.ModeDir|fs.ModeSticky|0o770 {
		t.Errorf("fresh storage: %v, %v", st.Mode(), err)
	}
	if _, ok, _ := s.Retained("n", "/t"); ok {
		t.Error("memory is retained")
	}
	must(s.Settle(t.Context(), p, false))
	if exists() {
		t.Error("the storage of a sandbox that never was is kept")
	}
	if left, err := s.List(""); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if left, err := filepath.Glob(s.Dir + "/[^.]*"); err != nil || len(left) > 0 { // but for the lock
		t.Errorf("left: %v, %v", left, err)
	}

	must(s.Prepare(t.Context(), p))
	must(os.WriteFile(filepath.Join(s.Place("n", "/a/b", false), "f"), []byte("data"), 0o600))
	must(s.Settle(t.Context(), p, true))
	must(s.Settle(t.Context(), p, true))
	if !exists() {
		t.Fatal("storage went with its sandbox")
	}
	// A second sandbox of the name uses it, fails, and takes nothing along.
	q := mine("two", false)
	must(os.Chmod(s.Place("n", "/a/b", false), 0o711))
	must(s.Prepare(t.Context(), q))
	if st, err := os.Stat(s.Place("n", "/a/b", false)); err != nil || st.Mode().Perm() != 0o711 {
		t.Errorf("reattaching changed the mode: %v, %v", st.Mode(), err)
	}
	must(s.Settle(t.Context(), q, false))
	if b, err := os.ReadFile(filepath.Join(s.Place("n", "/a/b", false), "f")); err != nil || string(b) != "data" {
		t.Errorf("after a failed second one: %q, %v", b, err)
	}

	// A name that was made up takes its storage along.
	must(os.RemoveAll(s.Dir))
	u := mine("three", true)
	must(s.Prepare(t.Context(), u))
	must(s.Settle(t.Context(), u, true))
	if exists() {
		t.Error("storage of a made-up name is kept")
	}
}

// Storage with a size that the host can bound is a file; it comes, stays and goes
// like a directory.
func TestBoundedStorageIsMadeAndRemoved(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	if err := s.Bound(); err != nil {
		needs.Lacks(t, "%v", err)
	}
	size := int64(2 << 20)
	p := &plan.Plan{Name: "n", ID: "1", Volumes: []plan.Volume{{Path: "/a", SizeBytes: &size, Bounded: true}}}
	p.Machine.Mounts = []plan.Mount{{Kind: plan.MountImage, Path: "/a", UID: 7, GID: 8, Mode: 0o750}}
	// What a kill in the middle left is no obstacle.
	if err := os.MkdirAll(filepath.Join(s.Dir, "n", "%2Fa"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.Place("n", "/a", true), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Prepare(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.List("")
	if err != nil || len(got) != 1 || got[0].Name != "n" || got[0].Terms.Path != "/a" || !got[0].Terms.Bounded || got[0].UsedBytes <= 0 || got[0].UsedBytes > size {
		t.Fatalf("%+v, %v", got, err)
	}
	if st, err := os.Stat(got[0].Place); err != nil || st.Size() != size {
		t.Errorf("%v, %v", st, err)
	}
	if err := s.Settle(t.Context(), p, true); err != nil {
		t.Fatal(err)
	}
	used := map[string][]string{got[0].Place: {"n"}}
	var busy *InUseError
	if err := s.Remove(t.Context(), "n", "/a", func() (map[string][]string, error) { return used, nil }); !errors.As(err, &busy) || busy.Path != "/a" {
		t.Errorf("removing what is used: %v", err)
	}
	used = nil
	for range 2 {
		if err := s.Remove(t.Context(), "n", "", func() (map[string][]string, error) { return used, nil }); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := filepath.Glob(s.Dir + "/[^.]*"); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// A removal and the making of a sandbox of the same name at the same moment: the
// sandbox either keeps the removal away or gets fresh storage, never a mount of
// something that is being deleted.
func TestRemovalAndPreparationExcludeEachOther(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	for i := range 50 {
		p := &plan.Plan{Name: "n", ID: "1", Volumes: []plan.Volume{{Path: "/a"}}}
		p.Machine.Mounts = []plan.Mount{{Kind: plan.MountBind, Path: "/a", UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Mode: 0o700}}
		if err := s.Prepare(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		var recorded sync.Mutex // as plan.json is: before Prepare
		users := map[string][]string{}
		removed := make(chan error, 1)
		go func() {
			removed <- s.Remove(t.Context(), "n", "", func() (map[string][]string, error) {
				recorded.Lock()
				defer recorded.Unlock()
				return maps.Clone(users), nil
			})
		}()
		if i%2 == 0 {
			runtime.Gosched()
		}
		recorded.Lock()
		users[s.Place("n", "/a", false)] = []string{"n"}
		recorded.Unlock()
		if err := s.Prepare(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if err := <-removed; err != nil && !errors.As(err, new(*InUseError)) {
			t.Fatal(err)
		}
		if _, err := os.Stat(s.Place("n", "/a", false)); err != nil {
			t.Fatalf("round %d: a sandbox's storage is gone: %v", i, err)
		}
	}
}
