package gpu

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/kitbox-dev/kitbox/internal/plan"
)

// class is the class of CDI devices that are GPUs. A selector reaches no other: what
// else the operator has described is not what was asked for.
const class = "gpu"

// maxSpecs bounds all specifications together, in bytes. That of a machine with eight
// GPUs, each in seven parts, has some two hundred thousand.
const maxSpecs = 2 << 20

// readable reports why specifications in dirs cannot be read within bounds, which
// whoever reads them next does not keep: one that is a pipe is waited for without end.
func readable(dirs []string) error {
	left := int64(maxSpecs)
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // there are none, or it is told of later
		}
		for _, e := range entries {
			name := filepath.Join(dir, e.Name())
			if ext := filepath.Ext(name); ext != ".json" && ext != ".yaml" {
				continue
			}
			st, err := os.Stat(name)
			switch {
			case err != nil || st.IsDir(): // neither is read
			case !st.Mode().IsRegular():
				return fmt.Errorf("%s is no file; move it away", name)
			case st.Size() > left:
				return fmt.Errorf("%s is too long: all specifications together may have %d bytes", name, maxSpecs)
			default:
				left -= st.Size()
			}
		}
	}
	return nil
}

// described returns what specifications in dirs say, and what was wrong with those
// that could not be read.
func (h Host) described(dirs []string) (gpus []GPU, faults []error) {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dirs...), cdi.WithAutoRefresh(false))
	if err != nil {
		return nil, []error{err}
	}
	broken := cache.GetErrors()
	for _, file := range slices.Sorted(maps.Keys(broken)) {
		faults = append(faults, fmt.Errorf("%s: %w", file, errors.Join(broken[file]...)))
	}
	var devices []*cdi.Device
	for _, name := range cache.ListDevices() {
		if d := cache.GetDevice(name); d != nil && d.GetSpec().GetClass() == class {
			devices = append(devices, d)
		}
	}
	// The single ones first, by number, so that other names of the same and
	// what stands for all follow them.
	slices.SortFunc(devices, func(a, b *cdi.Device) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.GetSpec().GetVendor(), b.GetSpec().GetVendor()), cmp.Compare(number(a), number(b)), cmp.Compare(a.Name, b.Name))
	})
	byNodes := map[string]int{}
	single := map[string]bool{} // vendors with one
	for _, d := range devices {
		key := nodesOf(d)
		if i, ok := byNodes[key]; ok && key != "" {
			gpus[i].Aliases = append(gpus[i].Aliases, d.GetQualifiedName())
			continue
		}
		byNodes[key] = len(gpus)
		g := GPU{Name: d.GetQualifiedName(), several: d.Name == "all" && single[d.GetSpec().GetVendor()]}
		single[d.GetSpec().GetVendor()] = true
		h.edit(&g, &d.GetSpec().ContainerEdits)
		h.edit(&g, &d.ContainerEdits)
		if n := len(d.GetSpec().ContainerEdits.Hooks) + len(d.ContainerEdits.Hooks); n > 0 {
			g.Notes = append(g.Notes, fmt.Sprintf("hooks of its specification (%d) are not run, since no program of this machine runs because a Kit asks for something; what they do inside, such as ldconfig, a startup hook can do", n))
		}
		if len(g.Devices) == 0 {
			g.fault("its specification %s names no device node", d.GetSpec().GetPath())
		}
		gpus = append(gpus, g)
	}
	return gpus, faults
}

// rank puts numbers before other names, and what stands for all behind them.
func rank(d *cdi.Device) int {
	switch {
	case d.Name == "all":
		return 2
	case number(d) < 0:
		return 1
	}
	return 0
}

// number is the number that is d's name; -1: it is none.
func number(d *cdi.Device) int {
	if n, err := strconv.ParseUint(d.Name, 10, 31); err == nil {
		return int(n)
	}
	return -1
}

// nodesOf identifies a device by its own nodes: specifications describe one device
// by several names.
func nodesOf(d *cdi.Device) string {
	var nodes []string
	for _, n := range d.ContainerEdits.DeviceNodes {
		nodes = append(nodes, cmp.Or(n.HostPath, n.Path))
	}
	if len(nodes) == 0 {
		return ""
	}
	slices.Sort(nodes)
	return d.GetSpec().GetVendor() + "\x00" + strings.Join(nodes, "\x00")
}

// edit adds to g what e asks for.
func (h Host) edit(g *GPU, e *specs.ContainerEdits) {
	g.Env = append(g.Env, e.Env...)
	for _, n := range e.DeviceNodes {
		h.node(g, n)
	}
	for _, m := range e.Mounts {
		h.mount(g, m)
	}
	if len(e.NetDevices) > 0 {
		g.Notes = append(g.Notes, "network interfaces of its specification are left out: a sandbox has one way out, through the boundary")
	}
}

func (h Host) node(g *GPU, n *specs.DeviceNode) {
	d := plan.Device{Source: cmp.Or(n.HostPath, n.Path), Path: n.Path, ReadOnly: n.Permissions != "" && !strings.Contains(n.Permissions, "w")}
	switch {
	case n.Type != "" && n.Type != "c" && n.Type != "u":
		g.fault("%s is of type %q, and only character devices are passed", d.Path, n.Type)
	case path.Clean(d.Path) != d.Path || !strings.HasPrefix(d.Path, "/dev/"):
		g.fault("%s is not below /dev", d.Path)
	}
	h.add(g, d)
}

// add adds a node, unless g has it.
func (h Host) add(g *GPU, d plan.Device) {
	if slices.Contains(g.Devices, d) {
		return
	}
	if h.Usable != nil {
		if err := h.Usable(d.Source); err != nil {
			g.fault("%w", err)
		}
	}
	g.Devices = append(g.Devices, d)
}

// owned are trees of a sandbox's own, in which nothing is mounted for a GPU.
var owned = []string{"/dev", "/proc", "/sys"}

func (h Host) mount(g *GPU, m *specs.Mount) {
	at := path.Clean(m.ContainerPath)
	own := !path.IsAbs(at) || at == "/"
	for _, dir := range owned {
		own = own || at == dir || strings.HasPrefix(at, dir+"/")
	}
	st, err := os.Stat(m.HostPath)
	switch {
	case own:
		g.fault("its specification mounts something at %s", m.ContainerPath)
	case !slices.Contains([]string{"", "bind", "none"}, m.Type):
		g.fault("its specification asks for a mount of type %q at %s", m.Type, at)
	case !path.IsAbs(m.HostPath):
		g.fault("its specification mounts %q, which is no absolute path", m.HostPath)
	case err != nil:
		g.fault("its specification mounts what is not there; make it anew: %w", err)
	case !st.IsDir() && !st.Mode().IsRegular():
		g.Notes = append(g.Notes, m.HostPath+" is left out: it is neither file nor directory, and a service of this machine is reached through the boundary or not at all")
	default:
		if h.Mountable != nil {
			if err := h.Mountable(m.HostPath); err != nil {
				g.fault("its specification mounts what no sandbox is given: %w", err)
			}
		}
		g.Mounts = append(g.Mounts, plan.Mount{Kind: plan.MountBind, Source: m.HostPath, Path: at, ReadOnly: true})
	}
}
