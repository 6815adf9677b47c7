package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// What an idle sandbox may have of its own, in bytes.
const (
	memoryBar = 16 << 20
)

// idleTime is how long a sandbox has done nothing when it is looked at: keepers
// give memory back a little after their boot.
const idleTime = 4 * time.Second

// memory looks at the sandbox that has been there for the whole run.
func memory(_ context.Context, o options, f *fixture, r *report) error {
	if !o.quick {
		time.Sleep(idleTime)
	}
	keeper, guest, err := f.status()
	if err != nil {
		return err
	}
	k, err := footprintOf(keeper)
	if err != nil {
		return fmt.Errorf("memory of the keeper: %w", err)
	}
	g, err := footprintOf(guest)
	if err != nil {
		return fmt.Errorf("memory of the guest: %w", err)
	}
	kernel, err := kernelMemory(guest)
	if err != nil {
		return err
	}
	// Pages of the programs' files are the page cache's, which the kernel takes
	// away when it needs them. They are told, and do not count.
	total := k.pss - k.file + g.pss - g.file + kernel
	l := line{what: "idle sandbox: keeper, guest, kernel memory of its cgroup; page cache aside", peer: "–",
		ours: mib(total), theirs: fmt.Sprintf("keeper %s, guest %s, kernel %s; and in the page cache, of the programs' files: keeper %s, guest %s",
			mib(k.pss-k.file), mib(g.pss-g.file), mib(kernel), mib(k.file), mib(g.file)),
		bar: "≤ " + mib(memoryBar), ok: verdict(total <= memoryBar)}
	r.add(l)
	return nil
}

// A footprint is memory in bytes.
type footprint struct {
	pss  int64 // with the process's share of what others map too
	file int64 // of that, pages of files
}

func footprintOf(pid int) (footprint, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return footprint{}, err
	}
	defer f.Close()
	var fp footprint
	for s := bufio.NewScanner(f); s.Scan(); {
		w := strings.Fields(s.Text())
		if len(w) != 3 || w[2] != "kB" {
			continue
		}
		n, err := strconv.ParseInt(w[1], 10, 64)
		if err != nil {
			return fp, err
		}
		switch w[0] {
		case "Pss:":
			fp.pss = n << 10
		case "Pss_File:":
			fp.file = n << 10
		}
	}
	if fp.pss == 0 {
		return fp, errors.New("the kernel does not say")
	}
	return fp, nil
}

// kernelMemory is what the kernel holds for the group that pid is in.
func kernelMemory(pid int) (int64, error) {
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return 0, err
	}
	return kernelMemoryOf(string(groups), "/sys/fs/cgroup")
}

// kernelMemoryOf looks in the trees below root for what groups, as of /proc, hold. A
// kernel that does not say is an error: nothing would pass any bar.
func kernelMemoryOf(groups, root string) (int64, error) {
	var looked []string
	for l := range strings.Lines(groups) {
		p := strings.SplitN(strings.TrimSpace(l), ":", 3)
		if len(p) != 3 {
			continue
		}
		file, key := "", ""
		switch p[1] {
		case "memory":
			file = filepath.Join(root, "memory", p[2], "memory.kmem.usage_in_bytes")
		case "":
			file, key = filepath.Join(root, p[2], "memory.stat"), "kernel "
		default:
			continue
		}
		looked = append(looked, file)
		b, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		for v := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(v, key); ok {
				return strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			}
		}
	}
	return 0, fmt.Errorf("kernel memory of the sandbox: none of %q says it", looked)
}

func mib(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// available is how much memory programs could still have.
func available() (int64, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for l := range strings.Lines(string(b)) {
		if w := strings.Fields(l); len(w) == 3 && w[0] == "MemAvailable:" {
			n, err := strconv.ParseInt(w[1], 10, 64)
			return n << 10, err
		}
	}
	return 0, errors.New("the kernel does not say how much memory is available")
}
