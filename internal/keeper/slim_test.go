package keeper

import (
	"bufio"
	"slices"
	"strings"
	"testing"
)

func TestOnlyCleanPagesOfTheProgramAreDropped(t *testing.T) {
	const smaps = `00400000-00a00000 r-xp 00000000 fe:00 1 /bin/kitbox
Rss: 3900 kB
Anonymous: 0 kB
00a00000-00b00000 r--p 00600000 fe:00 1 /bin/kitbox
Anonymous: 4 kB
00b00000-00c00000 r--p 00700000 fe:00 1 /bin/kitbox
Anonymous: 0 kB
00c00000-00d00000 rw-p 00800000 fe:00 1 /bin/kitbox
Anonymous: 0 kB
00e00000-00f00000 r--p 00000000 fe:00 2 /lib/libc.so
Anonymous: 0 kB
7f0000000000-7f0000001000 rw-p 00000000 00:00 0
Anonymous: 0 kB
01000000-01100000 r-xp 00000000 fe:00 1 /bin/kitbox (deleted)
Anonymous: 0 kB
`
	got := cleanMappings(bufio.NewScanner(strings.NewReader(smaps)), "/bin/kitbox")
	if want := []mapping{{0x400000, 0xa00000}, {0xb00000, 0xc00000}}; !slices.Equal(got, want) {
		t.Errorf("mappings %x, want %x", got, want)
	}
}

// TestDroppedProgramRunsOn would not return if a page that is needed were gone.
func TestDroppedProgramRunsOn(t *testing.T) {
	for range 3 {
		dropProgram()
		if strings.Repeat("x", 3) != "xxx" {
			t.Fatal("the program is not what it was")
		}
	}
}
