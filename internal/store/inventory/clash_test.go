package inventory_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/store/inventory"
)

// list makes a list of lines such as "etc/x f 1" (path, kind, and
// anything that tells it apart).
func list(lines ...string) inventory.List {
	var inv inventory.List
	for _, l := range lines {
		f := strings.Fields(l)
		e := inventory.Entry{Path: f[0], Kind: inventory.Kind(f[1][0])}
		if f[1] == "o" {
			e.Kind, e.Opaque = inventory.Dir, true
		}
		if len(f) > 2 {
			copy(e.Sum[:], f[2])
		}
		inv = append(inv, e)
	}
	slices.SortFunc(inv, func(a, b inventory.Entry) int { return strings.Compare(a.Path, b.Path) })
	return inv
}

func TestClashes(t *testing.T) {
	base := []inventory.List{
		list("bin l usr/bin", "etc d", "etc/passwd f 1", "etc/gone f", "usr d", "usr/bin d", "usr/bin/sh f", "var d", "var/a f", "var/sub d", "var/sub/b f"),
		list("etc d", "etc/passwd f 2", "etc/gone w", "var d", "var/sub o", "var/sub/c f"),
	}
	for _, c := range []struct {
		name string
		kits [][]inventory.List
		want []string
	}{
		{"nothing in common", [][]inventory.List{{list("opt d", "opt/a f")}, {list("opt d", "opt/b f")}}, nil},
		{"equal files", [][]inventory.List{{list("opt d", "opt/a f 1")}, {list("opt d", "opt/a f 1")}}, nil},
		{"different files", [][]inventory.List{{list("opt/a f 1")}, {list("opt/a f 2")}}, []string{"/opt/a k1 k2 a file a file"}},
		{"the base's last word counts", [][]inventory.List{{list("etc/passwd f 2")}}, nil},
		{"not its first", [][]inventory.List{{list("etc/passwd f 1")}}, []string{"/etc/passwd k0 k1 a file a file"}},
		{"what the base removed is free", [][]inventory.List{{list("etc/gone f 9")}}, nil},
		{"what it hid is free", [][]inventory.List{{list("var/sub/b f 9")}}, nil},
		{"what it kept is not", [][]inventory.List{{list("var/sub/c f 9")}}, []string{"/var/sub/c k0 k1 a file a file"}},
		{"a directory over a symlink", [][]inventory.List{{list("bin d", "bin/tool f")}}, []string{"/bin k0 k1 a symlink a directory"}},
		{"a file over a directory", [][]inventory.List{{list("var f")}}, []string{"/var k0 k1 a directory a file"}},
		{"removing the base's file", [][]inventory.List{{list("etc d", "etc/passwd w")}}, []string{"/etc/passwd k0 k1 a file the removal of it"}},
		{"removing the base's directory", [][]inventory.List{{list("usr w")}}, []string{"/usr k0 k1 a directory the removal of it", "/usr/bin/sh k0 k1 a file the removal of it"}},
		{"removing nothing", [][]inventory.List{{list("srv w")}}, nil},
		{"making a directory opaque", [][]inventory.List{{list("usr d", "usr/bin o")}}, []string{"/usr/bin/sh k0 k1 a file the removal of it"}},
		{"removing another Kit's parent", [][]inventory.List{{list("opt d", "opt/x d", "opt/x/y f")}, {list("opt w")}}, []string{"/opt k1 k2 a directory the removal of it", "/opt/x/y k1 k2 a file the removal of it"}},
		{"two removals", [][]inventory.List{{list("srv w")}, {list("srv w")}}, nil},
		{"a Kit's own layers do not clash", [][]inventory.List{{list("opt/a f 1"), list("opt/a f 2")}, {list("opt/a f 2")}}, nil},
		{"a Kit's own removal", [][]inventory.List{{list("opt d", "opt/a f 1"), list("opt w"), list("opt d", "opt/b f")}, {list("opt d", "opt/a f 2")}}, nil},
	} {
		stacks := []inventory.Stack{{Name: "k0", Layers: base}}
		for i, k := range c.kits {
			stacks = append(stacks, inventory.Stack{Name: fmt.Sprint("k", i+1), Layers: k})
		}
		var got []string
		for _, cl := range inventory.Clashes(stacks) {
			got = append(got, strings.Join([]string{cl.Path, cl.Names[0], cl.Names[1], cl.What[0], cl.What[1]}, " "))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s:\n got %q\nwant %q", c.name, got, c.want)
		}
	}
	if got := inventory.Clashes([]inventory.Stack{{Layers: base}}); got != nil {
		t.Errorf("one Kit clashes with itself: %v", got)
	}
}

// A damaged inventory is noticed and never crashes.
func FuzzDecode(f *testing.F) {
	f.Add([]byte("kitbox inventory 1\n\x01f\x00\x00\x00\x00\x00\x01a"))
	f.Add([]byte("kitbox inventory 1\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	f.Fuzz(func(t *testing.T, data []byte) {
		inv, err := inventory.Decode(data)
		if err != nil {
			return
		}
		again, err := inventory.Decode(inv.Encode())
		if err != nil || !slices.Equal(inv, again) {
			t.Fatalf("%q changed on the way around: %v, %v", data, inv, err)
		}
	})
}
