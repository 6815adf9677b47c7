package seccomp

// A Table is one architecture's numbers, for the test of the program.
type Table struct {
	Audit   uint32
	Numbers map[string]uint32
}

// Tables returns both tables of this build.
func Tables() []Table {
	ts := []Table{{archNative, map[string]uint32{}}, {archCompat, map[string]uint32{}}}
	for i, list := range [][]number{native, compat} {
		for _, n := range list {
			ts[i].Numbers[n.name] = n.nr
		}
	}
	return ts
}
