package gpu

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kitbox-dev/kitbox/internal/plan"
)

// nodesLookedFor names what nodes does, for people.
const nodesLookedFor = "the nodes /dev/nvidia0, /dev/nvidia1, … and /dev/dri/renderD*"

// Vendors of GPUs, as the kernel writes them.
const (
	amd    = "0x1002"
	nvidia = "0x10de"
)

// What a driver of NVIDIA's needs beside the node of a GPU, as far as it is there,
// and what AMD's does for computing.
var (
	withNVIDIA = []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-modeset"}
	withAMD    = []string{"/dev/kfd"}
)

// nodes finds GPUs by their device nodes. A GPU has no libraries then but those of
// the image.
func (h Host) nodes() []GPU {
	var gpus []GPU
	for _, name := range h.numbered("/dev", "nvidia") {
		gpus = append(gpus, h.byNodes(name, append([]string{"/dev/" + name}, withNVIDIA...)))
	}
	own := len(gpus) > 0
	for _, name := range h.numbered("/dev/dri", "renderD") {
		b, _ := os.ReadFile(filepath.Join(h.Root, "/sys/class/drm", name, "device/vendor"))
		nodes := []string{"/dev/dri/" + name}
		switch strings.TrimSpace(string(b)) {
		case nvidia:
			if own {
				continue // it is one of those above
			}
		case amd:
			nodes = append(nodes, withAMD...)
		}
		gpus = append(gpus, h.byNodes(name, nodes))
	}
	return gpus
}

// numbered lists the character devices in dir that are called prefix and a number,
// in the order of the numbers.
func (h Host) numbered(dir, prefix string) []string {
	entries, err := os.ReadDir(filepath.Join(h.Root, dir))
	if err != nil {
		return nil
	}
	numbers := map[string]uint64{}
	var names []string
	for _, e := range entries {
		digits, ok := strings.CutPrefix(e.Name(), prefix)
		n, err := strconv.ParseUint(digits, 10, 31)
		if !ok || err != nil || e.Type()&os.ModeCharDevice == 0 {
			continue
		}
		names, numbers[e.Name()] = append(names, e.Name()), n
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(numbers[a], numbers[b]) })
	return names
}

// byNodes is the GPU of the first of nodes, with the others as far as they are there.
func (h Host) byNodes(name string, nodes []string) GPU {
	g := GPU{Name: name, Aliases: []string{nodes[0]}}
	for i, n := range nodes {
		source := filepath.Join("/", h.Root, n)
		if st, err := os.Stat(source); i > 0 && (err != nil || st.Mode()&os.ModeCharDevice == 0) {
			continue
		}
		h.add(&g, plan.Device{Source: source, Path: n})
	}
	return g
}
