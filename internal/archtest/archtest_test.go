package archtest

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/kitbox-dev/kitbox"

type pkg struct {
	ImportPath string
	Doc        string
	Name       string
	Imports    []string
	GoFiles    []string
}

func load(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Doc,Name,Imports,GoFiles", module+"/...")
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatalf("go list: %v", err)
	}
	var pkgs []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if len(p.GoFiles) == 0 {
			continue // tests only
		}
		pkgs = append(pkgs, p)
	}
	if len(pkgs) < 5 {
		t.Fatalf("go list found %d packages; the test is looking at the wrong place", len(pkgs))
	}
	return pkgs
}

// find returns the index of the row for pkg, exact rows before patterns and
// longer patterns before shorter ones, or -1.
func find(rows []Row, pkg string) int {
	best := -1
	for i, r := range rows {
		if r.Pkg == pkg {
			return i
		}
		if r.Matches(pkg) && (best < 0 || len(r.Pkg) > len(rows[best].Pkg)) {
			best = i
		}
	}
	return best
}

// violations judges pkgs by rows and heavy; it is separate from the test so
// that the law itself can be seen to fail.
func violations(rows []Row, heavy []Heavy, pkgs []pkg) []string {
	var out []string
	used := make([]bool, len(rows))
	for _, p := range pkgs {
		rel := strings.TrimPrefix(p.ImportPath, module+"/")
		at := find(rows, rel)
		if at < 0 {
			out = append(out, rel+" has no row; add one that says where it stands and why")
			continue
		}
		used[at] = true
		row := rows[at]
		for _, imp := range p.Imports {
			dep, ours := strings.CutPrefix(imp, module+"/")
			if !ours {
				for _, h := range heavy {
					if (imp == h.Module || strings.HasPrefix(imp, h.Module+"/")) && !matchAny(h.Only, rel) {
						out = append(out, rel+" must not import "+imp+": "+h.Why)
					}
				}
				continue
			}
			to := find(rows, dep)
			switch {
			case to < 0: // reported where dep itself is judged
			case to == at && !row.Siblings:
				out = append(out, rel+" must not import its sibling "+dep+": "+row.Why)
			case to > at:
				out = append(out, rel+" must not import "+dep+", which stands above it: "+row.Why)
			case to < at && row.Only != nil && !matchAny(row.Only, dep):
				out = append(out, rel+" must not import "+dep+": "+row.Why)
			}
		}
	}
	for i, r := range rows {
		if !used[i] {
			out = append(out, "row "+r.Pkg+" matches no package; delete it or mend the path")
		}
	}
	return out
}

func matchAny(patterns []string, pkg string) bool {
	for _, p := range patterns {
		if match(p, pkg) {
			return true
		}
	}
	return false
}

func TestImportLaw(t *testing.T) {
	for _, v := range violations(Rows, HeavyModules, load(t)) {
		t.Error(v)
	}
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	for _, p := range load(t) {
		if len(p.Doc) < 40 {
			t.Errorf("%s has no package comment worth the name: %q", p.ImportPath, p.Doc)
		}
	}
}

func TestTheLawCanFail(t *testing.T) {
	rows := []Row{{Pkg: "a", Why: "ground"}, {Pkg: "b/*", Why: "apart"}, {Pkg: "c", Only: []string{"a"}, Why: "narrow"}, {Pkg: "d", Why: "gone"}}
	heavy := []Heavy{{Module: "example.com/fat", Only: []string{"c"}, Why: "weight"}}
	p := func(path string, imports ...string) pkg {
		for i, s := range imports {
			if !strings.Contains(s, ".") {
				imports[i] = module + "/" + s
			}
		}
		return pkg{ImportPath: module + "/" + path, Imports: imports}
	}
	got := violations(rows, heavy, []pkg{
		p("a", "b/x"), p("b/x", "b/y"), p("b/y", "a", "example.com/fat/sub"), p("c", "a", "b/x", "example.com/fat"), p("e"),
	})
	want := []string{
		"a must not import b/x, which stands above it: ground",
		"b/x must not import its sibling b/y: apart",
		"b/y must not import example.com/fat/sub: weight",
		"c must not import b/x: narrow",
		"e has no row; add one that says where it stands and why",
		"row d matches no package; delete it or mend the path",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("violations:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
