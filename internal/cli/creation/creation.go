// Package creation has the options of every command that composes Kits, and makes of
// them what package sandbox is asked for.
package creation

import (
	"fmt"
	"math"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/internal/authoring"
	"github.com/kitbox-dev/kitbox/internal/cli/argument"
	"github.com/kitbox-dev/kitbox/internal/cli/lockfile"
	"github.com/kitbox-dev/kitbox/internal/cli/option"
	"github.com/kitbox-dev/kitbox/internal/cli/output"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// Options are the options of every command that composes Kits. The zero value is for
// Flags to fill.
type Options struct {
	name   string
	kits   []string
	args   []string
	env    []string
	routes []string
	build  string // --build-network
	pull   string
	deny   bool
	assent bool
	cpus   float64
	memory string
	pids   int64
	disk   string
	idle   time.Duration

	privileged  bool
	passthrough bool
	driver      string

	clone    bool
	mode     string // --workspace-mode
	readOnly bool
	masks    []string
	mounts   []string
	plainGit bool // --unprotected-git

	lock lockfile.Choice

	Quiet bool // --quiet: no progress and no summary
}

// PassthroughHelp explains --allow-passthrough.
const PassthroughHelp = "consent to Kits that want tokens of an OAuth server inside the sandbox"

// Flags adds the options to cmd.
func (m *Options) Flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&m.name, "name", "", "`NAME` of the sandbox (default: made up from the workload's name)")
	option.KitVar(cmd, &m.kits)
	option.ArgVar(cmd, &m.args)
	option.EnvVar(cmd, &m.env)
	option.Repeated(cmd, &m.routes, "route", "", "make the allowed host NAME dial another address; `NAME=ADDR:PORT` (repeatable)")
	option.BuildNetworkVar(cmd, &m.build)
	option.PullVar(cmd, &m.pull, "missing")
	m.lock.Flags(cmd)
	f.BoolVar(&m.deny, "deny-all", false, "let Kits reach nothing without --approve or a rule of yours")
	f.BoolVar(&m.assent, "approve", false, "consent to all that Kits ask to reach")
	f.Float64Var(&m.cpus, "cpus", 0, "`NUMBER` of cores that the sandbox gets, whatever its Kits ask for")
	f.StringVar(&m.memory, "memory", "", "`SIZE` of the memory that it gets, swap included, such as 512m or 2g")
	f.Int64Var(&m.pids, "pids", 0, "`NUMBER` of processes and threads that it may have")
	f.StringVar(&m.disk, "disk", "", "`SIZE` of what it may write outside volumes, mounts and the workspace")
	f.BoolVar(&m.privileged, "allow-privileged", false, "consent to Kits that ask for privileged@1")
	f.BoolVar(&m.passthrough, "allow-passthrough", false, PassthroughHelp)
	f.DurationVar(&m.idle, "idle-timeout", sandbox.DefaultIdle, "stop it after this `TIME` without a session; 0 means never")
	f.BoolVar(&m.clone, "clone", false, "make the workspace a clone of the Git repository PATH: what is committed\nthere and nothing else")
	f.StringVar(&m.mode, "workspace-mode", "", "`MODE` of the workspace: host (PATH itself, the default with PATH), cloned,\ninternal (a directory of the sandbox, the default without), or none")
	f.BoolVar(&m.readOnly, "workspace-ro", false, "keep the sandbox from writing to PATH")
	option.Repeated(cmd, &m.masks, "mask", "", "make files of PATH and mounts that match `PATTERN` appear empty: '.env*' at\nany depth, or 'conf/**/*.key' (repeatable)")
	option.Repeated(cmd, &m.mounts, "mount", "v", "give another file or directory of this machine, `SRC:DST[:ro]` (repeatable)")
	f.BoolVar(&m.plainGit, "unprotected-git", false, "let the sandbox write .git/hooks and .git/config, which your own git runs")
	f.StringVar(&m.driver, "driver", "", "what builds the machine, `NAME`: namespace (default), or oci (crun or runc)")
	option.Values(cmd, "driver", "namespace", "oci")
	option.Values(cmd, "workspace-mode", sandbox.WorkspaceHost, sandbox.WorkspaceCloned, sandbox.WorkspaceInternal, sandbox.WorkspaceNone)
	f.BoolVarP(&m.Quiet, "quiet", "q", false, "no progress and no summary on stderr")
}

// Read is what was asked for; kit and workspace come from the arguments. With
// a lock kit may be empty, and a single argument that is none of its Kits is the
// workspace. lookup tells the variables of this program.
func (m *Options) Read(cmd *cobra.Command, lookup func(string) (string, bool), kit, workspace string) (sandbox.CreateOptions, error) {
	o := sandbox.CreateOptions{Name: m.name, Driver: m.driver, DenyAll: m.deny, Approve: m.assent}
	l, err := m.lock.Read(cmd)
	if err != nil {
		return o, err
	}
	switch {
	case l != nil:
		o.Lock = l
		if _, ok := lockfile.Spelled(l, kit); !ok && workspace == "" {
			kit, workspace = "", kit
		}
	case kit == "":
		return o, argument.Mistake(cmd, "which KIT? %s takes a directory or an image", cmd.Name())
	}
	for _, ref := range append([]string{kit}, m.kits...) {
		if l != nil {
			ref, _ = lockfile.Spelled(l, ref)
		}
		if ref != "" {
			o.Kits = append(o.Kits, ref)
		}
	}
	if cmd.Flags().Changed("name") {
		if err := sandbox.CheckName(m.name); err != nil {
			return o, argument.Mistake(cmd, "%v", err)
		}
	}
	if o.Args, err = option.Pairs(cmd, "--arg", m.args); err != nil {
		return o, err
	}
	if o.Env, err = option.Variables(cmd, option.Own(lookup, m.env)); err != nil {
		return o, err
	}
	if cmd.Flags().Changed("cpus") && !(m.cpus > 0 && !math.IsInf(m.cpus, 0)) || cmd.Flags().Changed("pids") && m.pids <= 0 {
		return o, argument.Mistake(cmd, "--cpus and --pids take a positive number")
	}
	o.AllowPrivileged, o.AllowPassthrough = m.privileged, m.passthrough
	o.Limits = sandbox.Limits{CPUs: m.cpus, Pids: m.pids}
	switch {
	case m.idle < 0:
		return o, argument.Mistake(cmd, "--idle-timeout takes a time such as 20m, or 0 for never")
	case m.idle == 0:
		o.Idle = -1
	default:
		o.Idle = m.idle
	}
	if cmd.Flags().Changed("memory") {
		if o.Limits.MemoryBytes, err = option.Bytes(m.memory); err != nil {
			return o, argument.Mistake(cmd, "--memory %q: %v", m.memory, err)
		}
		if o.Limits.MemoryBytes < sandbox.LeastMemoryBytes {
			return o, argument.Mistake(cmd, "--memory %q: no sandbox comes up with that; give at least %d MiB, as %dm", m.memory, sandbox.LeastMemoryBytes>>20, sandbox.LeastMemoryBytes>>20)
		}
	}
	if cmd.Flags().Changed("disk") {
		if o.Limits.DiskBytes, err = option.Bytes(m.disk); err != nil {
			return o, argument.Mistake(cmd, "--disk %q: %v", m.disk, err)
		}
	}
	for _, r := range m.routes {
		route, err := parseRoute(r)
		if err != nil {
			return o, argument.Mistake(cmd, "--route %q: %v", r, err)
		}
		o.Routes = append(o.Routes, route)
	}
	if o.BuildNetwork, err = option.BuildNetwork(cmd, m.build); err != nil {
		return o, err
	}
	switch {
	case m.clone && m.mode != "" && m.mode != sandbox.WorkspaceCloned:
		return o, argument.Mistake(cmd, "--clone and --workspace-mode %s exclude each other", m.mode)
	case m.clone:
		m.mode = sandbox.WorkspaceCloned
	}
	o.WorkspaceMode, o.WorkspaceReadOnly, o.Masks, o.UnprotectedGit = m.mode, m.readOnly, m.masks, m.plainGit
	switch m.mode {
	case "", sandbox.WorkspaceInternal, sandbox.WorkspaceNone:
		if m.readOnly && workspace == "" {
			return o, argument.Mistake(cmd, "--workspace-ro takes a PATH")
		}
		if m.mode != "" && workspace != "" {
			return o, argument.Mistake(cmd, "with --workspace-mode %s there is no PATH", m.mode)
		}
	case sandbox.WorkspaceHost, sandbox.WorkspaceCloned:
		switch {
		case workspace == "" && m.clone:
			return o, argument.Mistake(cmd, "--clone takes the PATH of a Git repository")
		case workspace == "":
			return o, argument.Mistake(cmd, "--workspace-mode %s takes a PATH", m.mode)
		}
	default:
		return o, argument.Mistake(cmd, "--workspace-mode %q is none of host, cloned, internal and none", m.mode)
	}
	for _, v := range m.mounts {
		mount, err := parseMount(v)
		if err != nil {
			return o, argument.Mistake(cmd, "--mount %q: %v", v, err)
		}
		o.Mounts = append(o.Mounts, mount)
	}
	if err := option.Pull(cmd, m.pull); err != nil {
		return o, err
	}
	o.Pull = m.pull
	if workspace != "" {
		if o.Workspace, err = directory(workspace); err != nil {
			if cmd.Name() == "run" {
				err = fmt.Errorf("%w; arguments for the workload go after --", err)
			}
			return o, err
		}
		if !m.Quiet {
			hintAtKit(cmd, o, workspace)
		}
	}
	return o, nil
}

// hintAtKit says on stderr that the workspace, spelled as the user did, holds a Kit:
// --kit before it is easily forgotten. One that is a Kit of the sandbox as well is meant.
func hintAtKit(cmd *cobra.Command, o sandbox.CreateOptions, spelled string) {
	const kitsHave = 64 // a directory of more is somebody's project and takes long to read
	d, err := os.Open(o.Workspace)
	if err != nil {
		return
	}
	defer d.Close()
	if names, err := d.Readdirnames(kitsHave + 1); err != nil || len(names) > kitsHave {
		return
	}
	if _, err := authoring.Find(o.Workspace); err != nil {
		return
	}
	for _, kit := range o.Kits {
		if dir, err := directory(kit); err == nil && dir == o.Workspace {
			return
		}
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "kitbox: did you mean --kit %s? it is the workspace now\n", output.Printable(spelled))
}
