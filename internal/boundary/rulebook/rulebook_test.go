package rulebook_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/boundary/rulebook"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

func add(t *testing.T, path string, rs ...plan.EgressRule) {
	t.Helper()
	err := rulebook.Change(t.Context(), path, func(have []plan.EgressRule) ([]plan.EgressRule, error) {
		for _, r := range rs {
			have = rulebook.Add(have, r)
		}
		return have, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestABookKeepsRulesInOrderAndEachOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.json")
	if rs, err := rulebook.Read(path, "x"); err != nil || rs != nil {
		t.Fatalf("a book that is not there: %v, %v", rs, err)
	}
	a := plan.EgressRule{Phase: plan.Runtime, Pattern: "a.example", Allow: true}
	b := plan.EgressRule{Phase: plan.Install, Pattern: "*.b.example"}
	add(t, path, a, b, a)
	add(t, path, b)
	rs, err := rulebook.Read(path, "operator (x)")
	if err != nil || len(rs) != 2 || !rulebook.Same(rs[0], a) || !rulebook.Same(rs[1], b) || rs[0].Source != "operator (x)" {
		t.Fatalf("%+v, %v", rs, err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode: %v, %v", st, err)
	}
}

func TestARuleThatCannotBeUnderstoodLeavesTheBookAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.json")
	add(t, path, plan.EgressRule{Phase: plan.Runtime, Pattern: "a.example", Allow: true})
	before, _ := os.ReadFile(path)
	for _, r := range []plan.EgressRule{{Phase: plan.Runtime, Pattern: "a..b"}, {Phase: "later", Pattern: "a.example"}, {Phase: plan.Runtime, Pattern: "a.*.example"}} {
		err := rulebook.Change(t.Context(), path, func(have []plan.EgressRule) ([]plan.EgressRule, error) { return append(have, r), nil })
		if !errors.Is(err, kiterr.ErrRefused) {
			t.Errorf("%+v: %v", r, err)
		}
	}
	if after, _ := os.ReadFile(path); string(after) != string(before) {
		t.Errorf("the book is now %s", after)
	}
}

func TestADamagedBookIsNotAnEmptyOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.json")
	for _, content := range []string{"", "{", `{"version":2,"rules":[]}`, `{"version":1,"rules":[{"phase":"runtime","pattern":""}]}`} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := rulebook.Read(path, "x"); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v", content, err)
		}
		if err := rulebook.Change(t.Context(), path, func(rs []plan.EgressRule) ([]plan.EgressRule, error) { return nil, nil }); err == nil {
			t.Errorf("%q was overwritten", content)
		}
	}
}

func TestWritersDoNotLoseEachOthersRules(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.json")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			add(t, path, plan.EgressRule{Phase: plan.Runtime, Pattern: fmt.Sprintf("h%d.example", i), Allow: true})
		})
	}
	wg.Wait()
	if rs, err := rulebook.Read(path, "x"); err != nil || len(rs) != 8 {
		t.Errorf("%d rules, %v", len(rs), err)
	}
}
