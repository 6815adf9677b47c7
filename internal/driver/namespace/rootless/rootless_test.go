package rootless

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheLargestSubordinateRangeCounts(t *testing.T) {
	p := filepath.Join(t.TempDir(), "subuid")
	os.WriteFile(p, []byte("other:1:2\n# a comment\n\nme:100000:1000\n1001:200000:65536\nme:300000:5\n"), 0o600)
	for _, c := range []struct {
		name        string
		uid         int
		start, size uint32
	}{
		{"me", 1000, 100000, 1000},
		{"me", 1001, 200000, 65536},
		{"", 1001, 200000, 65536},
		{"", 1000, 0, 0},
		{"nobody", 1000, 0, 0},
	} {
		start, size, err := readSub(p, c.name, c.uid)
		if err != nil || start != c.start || size != c.size {
			t.Errorf("%q, %d: %d+%d, %v", c.name, c.uid, start, size, err)
		}
	}
	if _, size, err := readSub(p+".missing", "me", 1); err != nil || size != 0 {
		t.Errorf("without a file: %d, %v", size, err)
	}
	os.WriteFile(p, []byte("me:x:1\n"), 0o600)
	if _, _, err := readSub(p, "me", 1); err == nil || !strings.Contains(err.Error(), p) {
		t.Errorf("a bad line: %v", err)
	}
}

func TestWithoutTheNamespaceLifeMeansNothing(t *testing.T) {
	for _, v := range []string{"", "x", "99999", "0"} {
		t.Setenv(LifeVariable, v)
		f, err := Life()
		if err != nil {
			t.Errorf("%q: %v", v, err)
			continue
		}
		f.Close()
	}
}

func TestArriveGoesBack(t *testing.T) {
	t.Chdir("/")
	dir := t.TempDir()
	t.Setenv(dirVariable, dir)
	if err := Arrive(); err != nil {
		t.Fatal(err)
	}
	if wd, err := os.Getwd(); err != nil || wd != dir {
		t.Errorf("in %s, %v", wd, err)
	}
	if _, ok := os.LookupEnv(dirVariable); ok {
		t.Error("the variable is still there")
	}
	t.Chdir("/")
	if err := Arrive(); err != nil {
		t.Fatal(err)
	}
	if wd, _ := os.Getwd(); wd != "/" {
		t.Errorf("went to %s", wd)
	}
}
