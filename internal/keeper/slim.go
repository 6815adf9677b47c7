package keeper

import (
	"bufio"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// settled is how long a keeper must have had nothing to do before it makes
// itself small. Until then the next command has the processor to itself, and a
// sandbox that is made for one command is gone.
const settled = 2 * time.Second

// slim gives back what the boot, and later each bout of commands, needed and is
// not needed again. During the boot memory is cheaper than collecting;
// afterwards it is the other way around.
func slim(k *Keeper) {
	select {
	case <-k.Booted():
	case <-k.Ended():
		return
	}
	t := time.NewTimer(settled)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			debug.SetGCPercent(25)
			debug.FreeOSMemory()
			dropProgram()
		case <-k.quiet:
			t.Reset(settled)
		case <-k.Ended():
			return
		}
	}
}

// dropProgram unmaps the pages of this program's file from this process, which
// brings back what it still runs: most of what a boot runs never runs again. The
// file's pages stay in the kernel's cache for the next process.
func dropProgram() {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return
	}
	defer f.Close()
	for _, m := range cleanMappings(bufio.NewScanner(f), exe) {
		// A hint that the kernel does not take costs nothing but memory.
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_DONTNEED)
	}
}

type mapping struct{ start, end uintptr }

// cleanMappings returns the mappings of file in smaps, the kernel's account of a
// process's memory, that cannot be written and hold no page of the process's
// own: what such a page says is nowhere else, and dropping it would be fatal.
func cleanMappings(smaps *bufio.Scanner, file string) []mapping {
	var out []mapping
	var at *mapping // of file and read-only
	for smaps.Scan() {
		w := strings.Fields(smaps.Text())
		if len(w) >= 5 && strings.Contains(w[0], "-") {
			at = nil
			from, to, _ := strings.Cut(w[0], "-")
			start, err1 := strconv.ParseUint(from, 16, 64)
			end, err2 := strconv.ParseUint(to, 16, 64)
			if err1 == nil && err2 == nil && len(w) == 6 && w[5] == file && strings.HasPrefix(w[1], "r-") {
				at = &mapping{uintptr(start), uintptr(end)}
			}
			continue
		}
		if at != nil && len(w) == 3 && w[0] == "Anonymous:" {
			if w[1] == "0" {
				out = append(out, *at)
			}
			at = nil
		}
	}
	return out
}
