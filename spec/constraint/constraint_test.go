package constraint_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/spec/constraint"
)

func TestParseNameFollowsTheGrammar(t *testing.T) {
	label63 := strings.Repeat("a", 63)
	for s, want := range map[string]string{
		"lamp": "com.docker.kit/lamp", "a.b+c-d": "com.docker.kit/a.b+c-d", "com.example/x": "com.example/x",
		"deb/tar": "deb/tar", "apk/musl": "apk/musl", "9p": "com.docker.kit/9p", "g++": "com.docker.kit/g++",
		label63 + ".x/y": label63 + ".x/y",
	} {
		n, err := constraint.ParseName(s)
		if err != nil || n.String() != want {
			t.Errorf("ParseName(%q) = %v, %v; want %s", s, n, err, want)
		}
	}
	for _, s := range []string{
		"", "Lamp", "-a", "a-", "a.", "a/b/c", "tools/lamp", "com.-a/x", "com.a-/x", "/x", "com./x", "com.example/",
		label63 + "a.x/y", strings.Repeat("abc.", 64) + "x/y", "a_b", "a b", "com.Example/x",
	} {
		if n, err := constraint.ParseName(s); err == nil {
			t.Errorf("ParseName(%q) = %v, want an error", s, n)
		}
	}
	if _, err := constraint.ParseName("tools/lamp"); !errors.Is(err, constraint.ErrNamespace) {
		t.Errorf("a reserved namespace gives %v", err)
	}
}

func TestCompare(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"1", "1.0", -1}, {"1.2", "1.2", 0}, {"10", "9", 1}, {"1.rc1", "1.0", 1}, {"01.0", "1.0", 0},
		{"99999999999999999999999", "100000000000000000000000", -1}, {"1.a", "1.b", -1}, {"1.A", "1.a", -1}, {"1.-", "1.0", -1},
	} {
		if got := constraint.Compare(c.a, c.b); got != c.want {
			t.Errorf("Compare(%s, %s) = %d, want %d", c.a, c.b, got, c.want)
		}
		if got := constraint.Compare(c.b, c.a); got != -c.want {
			t.Errorf("Compare(%s, %s) = %d, want %d", c.b, c.a, got, -c.want)
		}
	}
}

func TestUnsatisfiableRelationsAreRefused(t *testing.T) {
	for _, s := range []string{
		"a = 1, = 2", "a > 2, < 1", "a > 1, < 1", "a >= 1, < 1", "a > 1, <= 1", "a < 0", "a > 0, < 0.-", "a >= 0.-, < 0.-",
		"a = 1, > 1", "a > 1.2, < 1.2.-", "a < 00", "a >= 3, <= 2, > 1",
	} {
		if _, err := constraint.ParseRelation(s); !errors.Is(err, constraint.ErrUnsatisfiable) {
			t.Errorf("ParseRelation(%q) gives %v, want unsatisfiable", s, err)
		}
	}
	for _, s := range []string{
		"a", "a <= 0", "a > 1, < 1.0", "a > 9, < 10", "a >= 1, <= 1", "a = 01, >= 1", "a < 0.-", "a > 1.-, < 1.--", "a > 1.a, < 1.b",
		"a >= 0.-, < 0.-.-", "a>=1,<2", "a > 1.2, < 1.1a", "a > 1.9, < 1.9a", "a > 5", "a > 1.5, > 1.3, < 1.10",
	} {
		if _, err := constraint.ParseRelation(s); err != nil {
			t.Errorf("ParseRelation(%q): %v", s, err)
		}
	}
	for _, s := range []string{"", ">= 1", "a ~> 1", "a 1", "a >= 1,", "a >=", "a == 1", "a >= v1", "a, >= 1", "a@1", "a >= 1 < 2"} {
		if r, err := constraint.ParseRelation(s); err == nil {
			t.Errorf("ParseRelation(%q) = %v, want an error", s, r)
		}
	}
}

func TestParseImage(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	for s, want := range map[string]string{
		"base": "docker.io/library/base:latest", "me/x:1": "docker.io/me/x:1", "hub.example/a:1": "hub.example/a:1",
		"localhost/a": "localhost/a:latest", "hub.example:5000/a/b@" + digest: "hub.example:5000/a/b@" + digest,
		"index.docker.io/x:1": "docker.io/library/x:1", "hub.example/a:1@" + digest: "hub.example/a:1", "hub.example/a__b.c--d": "hub.example/a__b.c--d:latest",
	} {
		img, err := constraint.ParseImage(s)
		if err != nil || img.Key() != want {
			t.Errorf("ParseImage(%q) = %v, %v; want %s", s, img.Key(), err, want)
		}
	}
	for _, s := range []string{
		"", "./x", "/x", "../x", "git+https://g/x", "https://h/x", "hub.example/Base:1", "a:", "a@sha256:12", "a b", "a/", "hub.example/a..b",
		"hub.example/a___b", "git@h:x", "hub.example/x.git#main", "~/x", "hub.example:port/x", "-h.example/x",
	} {
		if img, err := constraint.ParseImage(s); err == nil {
			t.Errorf("ParseImage(%q) = %v, want an error", s, img)
		}
	}
}

func TestOperatorsOfOtherLanguagesAreTranslated(t *testing.T) {
	for s, want := range map[string]string{
		"node => 22":       `"node => 22": "=> 22" is not a constraint: write ">= 22"`,
		"node=<22":         `"node=<22": "=<22" is not a constraint: write "<= 22"`,
		"node == 22":       `"node == 22": "== 22" is not a constraint: write "= 22"`,
		"node > 1, => 2.1": `"node > 1, => 2.1": "=> 2.1" is not a constraint: write ">= 2.1"`,
		"node => x":        `"node => x": "> x" is not a version`,
	} {
		if _, err := constraint.ParseRelation(s); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", s, err, want)
		}
	}
}

func FuzzParseRelation(f *testing.F) {
	for _, s := range []string{"a", "a >= 1, < 2", "com.x/y = 1.a-", "a > 0, < 0.-", "a > 1.2, < 1.1a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := constraint.ParseRelation(s)
		if err != nil {
			return
		}
		again, err := constraint.ParseRelation(r.Canonical())
		if err != nil {
			return // an order that is not transitive can leave bounds that only meant something together
		}
		if again.Name != r.Name {
			t.Fatalf("%q changed its name: %v then %v", s, r.Name, again.Name)
		}
	})
}
