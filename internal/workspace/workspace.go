// Package workspace judges what files of the host a user gives to a sandbox (a
// directory to work in, a clone of one, more mounts), puts them into its plan, and
// keeps the clones.
//
// Nothing is mounted here: that is a driver's business, as it is to hide and to
// protect what the plan says ([plan.Cover]). Git is read by package gitrepo.
package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/driver/cover"
	"github.com/kitbox-dev/kitbox/internal/gitrepo"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// DefaultDir is where a host directory goes whose image names no place.
const DefaultDir = "/workspace"

// A Host is where the user's files are.
type Host struct {
	Home     string // kitbox's own state, which no sandbox is given
	Rootless bool   // mounts cannot translate owners here
	Clones   Clones
}

// A Given is what files a sandbox is given, judged.
type Given struct {
	Mode   string
	Asked  string // real path of the user's directory
	Source string // what is mounted: that, or where a clone of it is kept
	Clone  *plan.Clone

	readOnly bool
	hide     []plan.Cover
	protect  []plan.Cover // on what is the user's and can be written
	binds    []plan.Bind
}

// guarded are the parts of a Git repository that make the host's git run
// programs, and what leads to them. A repository without its own configuration
// cannot be given one: .git/commondir would be that.
//
// A repository that is made inside is not guarded while it is being made: it is the
// sandbox's own in any case.
var guarded = []plan.Cover{
	{Pattern: "/.git", Kind: plan.CoverPin, If: ".git"},
	{Pattern: "/.git/hooks", Kind: plan.CoverKeep, If: ".git", Make: plan.MakeDir},
	{Pattern: "/.git/config", Kind: plan.CoverKeep, If: ".git"},
	{Pattern: "/.git/config.worktree", Kind: plan.CoverKeep, If: ".git", Make: plan.MakeFile},
	{Pattern: "/.git/commondir", Kind: plan.CoverForbid, If: ".git"},
	{Pattern: "/.git/worktrees/*/commondir", Kind: plan.CoverKeep, If: ".git", Once: true},
	{Pattern: "/.git/worktrees/*/gitdir", Kind: plan.CoverKeep, If: ".git", Once: true},
	{Pattern: "/.git/worktrees/*/config.worktree", Kind: plan.CoverKeep, If: ".git", Once: true, Make: plan.MakeFile},
	{Pattern: "/.git/modules/**/hooks/", Kind: plan.CoverKeep, If: ".git", Once: true},
	{Pattern: "/.git/modules/**/config", Kind: plan.CoverKeep, If: ".git", Once: true},
}

// Judge judges what o gives to the sandbox id. It makes nothing. What must not be
// given is [kiterr.ErrRefused].
func (h Host) Judge(ctx context.Context, o sandbox.CreateOptions, id string) (w Given, err error) {
	w = Given{Mode: o.WorkspaceMode, readOnly: o.WorkspaceReadOnly}
	if w.Mode == "" {
		w.Mode = plan.WorkspaceInternal
		if o.Workspace != "" {
			w.Mode = plan.WorkspaceHost
		}
	}
	switch w.Mode {
	case plan.WorkspaceHost, plan.WorkspaceCloned:
		if o.Workspace == "" {
			return w, fmt.Errorf("a workspace of mode %s takes the PATH of a directory", w.Mode)
		}
	case plan.WorkspaceInternal, plan.WorkspaceNone:
		if o.Workspace != "" {
			return w, fmt.Errorf("with a workspace of mode %s, %s would not be used; leave one of the two out", w.Mode, o.Workspace)
		}
	default:
		return w, fmt.Errorf("workspace mode %q is none of host, cloned, internal and none", w.Mode)
	}
	if w.readOnly && w.Mode != plan.WorkspaceHost {
		return w, fmt.Errorf("only a workspace of mode host can be read-only, and this one's is %s", w.Mode)
	}
	for _, m := range o.Masks {
		c := plan.Cover{Pattern: m, Kind: plan.CoverHide}
		if err := cover.Check(c); err != nil {
			return w, fmt.Errorf("mask: %w", err)
		}
		w.hide = append(w.hide, c)
	}
	if !o.UnprotectedGit {
		w.protect = guarded
	}
	if w.Asked, err = h.workspace(o.Workspace); err != nil {
		return w, err
	}
	w.Source = w.Asked
	if w.Mode == plan.WorkspaceCloned {
		if w.Clone, err = h.Clones.of(ctx, w.Asked, id); err != nil {
			return w, err
		}
		w.Source = h.Clones.At(id)
	}
	for _, m := range o.Mounts {
		b, err := h.bind(m)
		if err != nil {
			return w, err
		}
		w.binds = append(w.binds, b)
	}
	if len(w.hide) > 0 && w.Source == "" && len(w.binds) == 0 {
		return w, errors.New("there is nothing to mask: no directory of this machine is given to the sandbox")
	}
	return w, nil
}

// of says what a workspace cloned from dir would be.
func (c Clones) of(ctx context.Context, dir, id string) (*plan.Clone, error) {
	r, err := gitrepo.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := r.Cloneable(); err != nil {
		return nil, err
	}
	k := &plan.Clone{Source: dir, Head: r.Head, Branch: r.Branch, Known: []string{r.Head}}
	if have, err := c.Read(id); err == nil && have.Source == dir {
		return have, nil // made already: this is a recreation
	}
	if err := r.Whole(ctx); err != nil {
		return nil, err
	}
	for _, name := range r.Names("refs/heads/", "refs/tags/") {
		k.Known = append(k.Known, r.Refs[name])
	}
	slices.Sort(k.Known)
	k.Known = slices.Compact(k.Known)
	return k, nil
}

// workspace returns the real path of dir, which is empty or exists.
func (h Host) workspace(dir string) (string, error) {
	if dir == "" {
		return "", nil
	}
	real, st, err := h.given(dir)
	if err != nil {
		return "", fmt.Errorf("workspace %w", err)
	}
	if !st.IsDir() {
		return "", fmt.Errorf("workspace %s is not a directory", dir)
	}
	return real, nil
}

// Harmless reports why no sandbox is given the file or directory at p, whoever says that
// it should be; nil: it may be.
func (h Host) Harmless(p string) error {
	_, _, err := h.given(p)
	return err
}

// given returns the real path of what a user gives to a sandbox. A place that
// holds the home, or lies in it, is refused: the sandbox could write its own plan
// and those of all others, and with the next start have any directory of the
// host. So are sockets through which the host would do what it is told, and
// filesystems that are not made of files.
func (h Host) given(p string) (string, fs.FileInfo, error) {
	p, err := filepath.Abs(p)
	if err != nil {
		return "", nil, err
	}
	real, err := filepath.EvalSymlinks(p)
	if err != nil {
		return "", nil, err
	}
	st, err := os.Stat(real)
	if err != nil {
		return "", nil, err
	}
	home, err := filepath.Abs(h.Home)
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", real, err)
	}
	if home, err = filepath.EvalSymlinks(home); err != nil {
		return "", nil, fmt.Errorf("%s: %w", real, err)
	}
	for _, pair := range [][2]string{{real, home}, {home, real}} {
		ok, err := within(pair[0], pair[1])
		if err != nil {
			return "", nil, fmt.Errorf("%s: %w", real, err)
		}
		if ok {
			return "", nil, fmt.Errorf("%s: kitbox keeps its sandboxes in %s, which no sandbox may write to; name a directory beside it, or move it with KITBOX_HOME: %w",
				real, home, kiterr.ErrRefused)
		}
	}
	if err := harmless(real, st); err != nil {
		return "", nil, err
	}
	return real, st, nil
}

// unreal are filesystems that are switches of the kernel and not files.
var unreal = map[int64]string{unix.PROC_SUPER_MAGIC: "proc", unix.SYSFS_MAGIC: "sysfs", unix.DEVPTS_SUPER_MAGIC: "devpts", unix.CGROUP_SUPER_MAGIC: "cgroup",
	unix.CGROUP2_SUPER_MAGIC: "cgroup2", unix.DEBUGFS_MAGIC: "debugfs", unix.TRACEFS_MAGIC: "tracefs", unix.SECURITYFS_MAGIC: "securityfs", unix.BPF_FS_MAGIC: "bpf", unix.NSFS_MAGIC: "nsfs"}

func harmless(real string, st fs.FileInfo) error {
	switch {
	case st.Mode()&fs.ModeSocket != 0:
		return fmt.Errorf("%s is a socket: whoever listens there would do for the sandbox what it does for you; Kits ask for such things by capability: %w", real, kiterr.ErrRefused)
	case !st.IsDir() && !st.Mode().IsRegular():
		return fmt.Errorf("%s is neither a directory nor an ordinary file: %w", real, kiterr.ErrRefused)
	}
	var sys unix.Statfs_t
	if err := unix.Statfs(real, &sys); err != nil {
		return fmt.Errorf("%s: %w", real, err)
	}
	if name, ok := unreal[sys.Type]; ok || real == "/dev" {
		if !ok {
			name = "the devices of this machine"
		}
		return fmt.Errorf("%s is %s and not files: %w", real, name, kiterr.ErrRefused)
	}
	if !st.IsDir() {
		return nil
	}
	at, err := commander(real)
	if err != nil {
		return err
	}
	if at != "" {
		return fmt.Errorf("%s holds %s: whoever connects to it commands what listens there; name a directory without it, or delete it if nothing does: %w", real, at, kiterr.ErrRefused)
	}
	return nil
}

// within reports whether p is dir or below it. It compares what the names stand
// for, since a directory may be mounted at two places.
func within(p, dir string) (bool, error) {
	want, err := os.Stat(dir)
	if err != nil {
		return false, err
	}
	for {
		st, err := os.Stat(p)
		if err != nil {
			return false, err
		}
		if os.SameFile(st, want) {
			return true, nil
		}
		if p == "/" {
			return false, nil
		}
		p = filepath.Dir(p)
	}
}

// Places of a sandbox that no mount of a user's may take.
var (
	systemTrees = []string{"/proc", "/sys", "/dev", "/usr/share/sandbox"}
	systemDirs  = []string{"/", "/bin", "/boot", "/etc", "/home", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/root", "/run", "/sbin", "/srv", "/tmp", "/usr",
		"/usr/bin", "/usr/lib", "/usr/local", "/usr/sbin", "/usr/share", "/var", "/var/run",
		"/etc/passwd", "/etc/group", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/bin/sh", "/bin/bash", "/usr/bin/sh", "/usr/bin/bash"}
)

// bind judges a mount that the user asks for.
func (h Host) bind(m sandbox.Mount) (plan.Bind, error) {
	b := plan.Bind{Path: path.Clean(m.Path), ReadOnly: m.ReadOnly}
	if !path.IsAbs(m.Path) || strings.ContainsRune(m.Path, 0) {
		return b, fmt.Errorf("mount %s: %q is not an absolute path in the sandbox", m.Source, m.Path)
	}
	if slices.Contains(systemDirs, b.Path) {
		return b, fmt.Errorf("mount %s: %s is a part of the sandbox's own system; mount below it or elsewhere: %w", m.Source, b.Path, kiterr.ErrRefused)
	}
	for _, t := range systemTrees {
		if below(t, b.Path) {
			return b, fmt.Errorf("mount %s: %s belongs to the sandbox's runtime; mount it elsewhere: %w", m.Source, t, kiterr.ErrRefused)
		}
	}
	real, _, err := h.given(m.Source)
	if err != nil {
		return b, fmt.Errorf("mount %w", err)
	}
	b.Source = real
	return b, nil
}

// Add mounts what the user gives, so that what is made there by the image's
// user belongs to its owner outside, and orders the mounts so that none hides
// another.
func (h Host) Add(p *plan.Plan, w Given) error {
	ms := w.binds
	if w.Source != "" {
		ms = append([]plan.Bind{{Source: w.Source, Path: p.Launch.Dir, ReadOnly: w.readOnly}}, ms...)
	}
	p.Binds = w.binds
	taken := map[string]string{}
	for _, m := range p.Machine.Mounts {
		taken[path.Clean(m.Path)] = "a Kit"
	}
	for i, b := range ms {
		if by, ok := taken[b.Path]; ok {
			return fmt.Errorf("mount %s: %s is taken by %s; mount it elsewhere: %w", b.Source, b.Path, by, kiterr.ErrRefused)
		}
		taken[b.Path] = b.Source
		m := plan.Mount{Kind: plan.MountBind, Path: b.Path, Source: b.Source, ReadOnly: b.ReadOnly}
		if i == 0 && w.Clone != nil {
			// Not there yet, and the sandbox's own.
			m.Covers = w.hide
			p.Machine.Mounts = append(p.Machine.Mounts, m)
			continue
		}
		st, err := os.Stat(b.Source)
		if err != nil {
			return fmt.Errorf("mount %w", err)
		}
		sys, ok := st.Sys().(*syscall.Stat_t)
		if !ok {
			return fmt.Errorf("mount %s: who owns it cannot be read", b.Source)
		}
		m.Owner = &plan.OwnerMap{HostUID: sys.Uid, HostGID: sys.Gid, MachineUID: p.Launch.User.UID, MachineGID: p.Launch.User.GID}
		if h.Rootless && !b.ReadOnly && sys.Uid == 0 && p.Launch.User.UID != 0 {
			// Inside the user's own namespace no mount can translate owners:
			// the image's user has to be the one who runs kitbox.
			p.Machine.IDMap.Swap = plan.Swap{UID: p.Launch.User.UID, GID: p.Launch.User.GID}
		}
		if st.IsDir() {
			m.Covers = slices.Clone(w.hide)
			// A driver that cannot cover anything refuses a repository, and
			// takes a directory that is none.
			_, err := os.Lstat(filepath.Join(b.Source, ".git"))
			if !b.ReadOnly && (p.Machine.Driver != "oci" || err == nil) {
				m.Covers = append(m.Covers, w.protect...)
			}
		}
		p.Machine.Mounts = append(p.Machine.Mounts, m)
	}
	if p.Machine.IDMap.Swap != (plan.Swap{}) && len(p.HostMounts) > 0 {
		return fmt.Errorf("without root, a directory of yours cannot be given for writing to Kits that share %s between sandboxes (host-mount@1): its files would belong to different users in each; give the directory read-only or --clone it: %w",
			p.HostMounts[0].Path, kiterr.ErrUnsupported)
	}
	slices.SortStableFunc(p.Machine.Mounts, func(a, b plan.Mount) int {
		return strings.Count(a.Path, "/") - strings.Count(b.Path, "/")
	})
	// What cannot be covered is said now and not at the boot.
	for _, m := range p.Machine.Mounts {
		if m.Kind == plan.MountBind && len(m.Covers) > 0 && (w.Clone == nil || m.Source != w.Source) {
			if _, err := cover.Find(m.Source, m.Covers); err != nil {
				return fmt.Errorf("%s: %w", m.Source, err)
			}
		}
	}
	return nil
}

// Shown is p's workspace as a user sees it.
func Shown(p *plan.Plan) *sandbox.Workspace {
	w := &sandbox.Workspace{Host: p.Workspace, Path: p.Launch.Dir, Mode: p.WorkspaceMode}
	if w.Mode == "" {
		w.Mode = sandbox.WorkspaceHost // of a plan that did not say
	}
	if p.Clone != nil {
		w.From = p.Clone.Source
	}
	for _, m := range p.Machine.Mounts {
		if m.Path != p.Launch.Dir || m.Source != p.Workspace {
			continue
		}
		w.ReadOnly = m.ReadOnly
		for _, c := range m.Covers {
			if c.Kind == plan.CoverHide {
				w.Masks = append(w.Masks, c.Pattern)
			} else {
				w.Protected = append(w.Protected, strings.TrimPrefix(c.Pattern, "/"))
			}
		}
	}
	return w
}

// below reports whether file is dir or below it. Both are absolute.
func below(dir, file string) bool {
	dir, file = path.Clean(dir), path.Clean(file)
	return file == dir || strings.HasPrefix(file, strings.TrimSuffix(dir, "/")+"/")
}
