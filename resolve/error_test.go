package resolve_test

import (
	"testing"

	"github.com/kitbox-dev/kitbox/resolve"
	"github.com/kitbox-dev/kitbox/spec"
)

// published is a Kit with provides that only publishing writes.
func published(t *testing.T, ref, kind string, provides ...string) resolve.Kit {
	k := kit(t, ref, kind, "")
	k.Descriptor = spec.Descriptor{SchemaVersion: "3", Kind: kind, Provides: provides}
	return k
}

func TestErrorsNameTheCauseAndFoldPackages(t *testing.T) {
	w := published(t, "w:1", "workload", "w", "deb/bash@1", "deb/curl@1", "deb/git@1")
	v := published(t, "v:1", "workload", "w", "deb/bash@1", "deb/curl@1")
	m := published(t, "m:1", "mixin", "m", "deb/bash@1", "deb/curl@1", "deb/git@1")
	n := published(t, "n:1", "mixin", "m", "deb/zip@1")
	for _, c := range []struct {
		kits []resolve.Kit
		want string
		all  int
	}{
		{[]resolve.Kit{w, w}, "w:1 is given twice; leave one out", 6},
		{[]resolve.Kit{w, v}, "only one workload can be the base, not w:1 and v:1", 4},
		{[]resolve.Kit{w, m}, "w:1 and m:1 both provide deb/bash and 2 more packages", 3},
		{[]resolve.Kit{w, m, n}, "w:1 and m:1 both provide deb/bash and 2 more packages; m:1 and n:1 both provide m", 4},
	} {
		_, err := resolve.Resolve(c.kits, resolve.Options{})
		if want := "the Kits do not form a set: " + c.want; err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
		if got := len(rules(err)); got != c.all {
			t.Errorf("%s: %d violations, want %d", c.want, got, c.all)
		}
	}
}
