package cli

import (
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/sandbox"
)

// making are the options of every command that composes Kits.
type making struct {
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
	quiet    bool

	lock locking
}

const passthroughHelp = "consent to Kits that want tokens of an OAuth server inside the sandbox"

func (m *making) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&m.name, "name", "", "`NAME` of the sandbox (default: made up from the workload's name)")
	f.StringArrayVar(&m.kits, "kit", nil, "add another `KIT`: a directory or an image (repeatable)")
	f.StringArrayVar(&m.args, "arg", nil, "`NAME=VALUE` for the arg NAME of the Kits that declare it (repeatable)")
	f.StringArrayVar(&m.env, "env", nil, "`NAME=VALUE` for the variable NAME of the sandbox (repeatable)")
	f.StringArrayVar(&m.routes, "route", nil, "make the allowed host NAME dial another address; `NAME=ADDR:PORT` (repeatable)")
	buildNetworkFlag(cmd, &m.build)
	pullFlag(cmd, &m.pull, "missing")
	m.lock.flags(cmd)
	f.BoolVar(&m.deny, "deny-all", false, "let Kits reach nothing without --approve or a rule of yours")
	f.BoolVar(&m.assent, "approve", false, "consent to all that Kits ask to reach")
	f.Float64Var(&m.cpus, "cpus", 0, "cores that the sandbox gets, whatever its Kits ask for")
	f.StringVar(&m.memory, "memory", "", "memory that it gets, swap included, e.g. 512m or 2g")
	f.Int64Var(&m.pids, "pids", 0, "how many processes and threads it may have")
	f.StringVar(&m.disk, "disk", "", "how much it may write outside volumes, mounts and the workspace, such as 10g")
	f.BoolVar(&m.privileged, "allow-privileged", false, "consent to Kits that ask for privileged@1")
	f.BoolVar(&m.passthrough, "allow-passthrough", false, passthroughHelp)
	f.DurationVar(&m.idle, "idle-timeout", sandbox.DefaultIdle, "stop it after this long without a session; 0 means never")
	f.BoolVar(&m.clone, "clone", false, "make the workspace a clone of the Git repository PATH: what is committed\nthere and nothing else")
	f.StringVar(&m.mode, "workspace-mode", "", "`MODE` of the workspace: host (PATH itself, the default with PATH), cloned,\ninternal (a directory of the sandbox, the default without), or none")
	f.BoolVar(&m.readOnly, "workspace-ro", false, "keep the sandbox from writing to PATH")
	f.StringArrayVar(&m.masks, "mask", nil, "make files of PATH and mounts that match `PATTERN` appear empty: '.env*' at\nany depth, or 'conf/**/*.key' (repeatable)")
	f.StringArrayVarP(&m.mounts, "mount", "v", nil, "give another file or directory of this machine, `SRC:DST[:ro]` (repeatable)")
	f.BoolVar(&m.plainGit, "unprotected-git", false, "let the sandbox write .git/hooks and .git/config, which your own git runs")
	f.StringVar(&m.driver, "driver", "", "what builds the machine, `NAME`: namespace (default), or oci (crun or runc)")
	f.BoolVarP(&m.quiet, "quiet", "q", false, "no progress and no summary on stderr")
}

// options is what was asked for; kit and workspace come from the arguments. With
// a lock kit may be empty, and a single argument that is none of its Kits is the
// workspace.
func (m *making) options(cmd *cobra.Command, kit, workspace string) (sandbox.CreateOptions, error) {
	o := sandbox.CreateOptions{Name: m.name, Driver: m.driver, DenyAll: m.deny, Approve: m.assent}
	l, err := m.lock.read(cmd)
	if err != nil {
		return o, err
	}
	switch {
	case l != nil:
		o.Lock = l
		if _, ok := spelled(l, kit); !ok && workspace == "" {
			kit, workspace = "", kit
		}
	case kit == "":
		return o, usageError(cmd, "which KIT? %s takes a directory or an image", cmd.Name())
	}
	for _, ref := range append([]string{kit}, m.kits...) {
		if l != nil {
			ref, _ = spelled(l, ref)
		}
		if ref != "" {
			o.Kits = append(o.Kits, ref)
		}
	}
	if cmd.Flags().Changed("name") && !sandboxName().MatchString(m.name) {
		return o, usageError(cmd, "sandbox name %q: use letters, digits, '.', '_' and '-', starting with a letter or digit", m.name)
	}
	if len(m.name) > maxName {
		return o, usageError(cmd, "sandbox name %.20q… has %d bytes, the limit is %d", m.name, len(m.name), maxName)
	}
	if o.Args, err = pairs(cmd, "--arg", m.args); err != nil {
		return o, err
	}
	if o.Env, err = variables(cmd, m.env); err != nil {
		return o, err
	}
	if cmd.Flags().Changed("cpus") && !(m.cpus > 0 && !math.IsInf(m.cpus, 0)) || cmd.Flags().Changed("pids") && m.pids <= 0 {
		return o, usageError(cmd, "--cpus and --pids take a positive number")
	}
	o.AllowPrivileged, o.AllowPassthrough = m.privileged, m.passthrough
	o.Limits = sandbox.Limits{CPUs: m.cpus, Pids: m.pids}
	switch {
	case m.idle < 0:
		return o, usageError(cmd, "--idle-timeout takes a time such as 20m, or 0 for never")
	case m.idle == 0:
		o.Idle = -1
	default:
		o.Idle = m.idle
	}
	if cmd.Flags().Changed("memory") {
		if o.Limits.MemoryBytes, err = parseBytes(m.memory); err != nil {
			return o, usageError(cmd, "--memory %q: %v", m.memory, err)
		}
		if o.Limits.MemoryBytes < leastMemory {
			return o, usageError(cmd, "--memory %q: no sandbox comes up with that; give at least %d MiB, as %dm", m.memory, leastMemory>>20, leastMemory>>20)
		}
	}
	if cmd.Flags().Changed("disk") {
		if o.Limits.DiskBytes, err = parseBytes(m.disk); err != nil {
			return o, usageError(cmd, "--disk %q: %v", m.disk, err)
		}
	}
	for _, r := range m.routes {
		route, err := parseRoute(r)
		if err != nil {
			return o, usageError(cmd, "--route %q: %v", r, err)
		}
		o.Routes = append(o.Routes, route)
	}
	if o.BuildNetwork, err = buildNetwork(cmd, m.build); err != nil {
		return o, err
	}
	switch {
	case m.clone && m.mode != "" && m.mode != sandbox.WorkspaceCloned:
		return o, usageError(cmd, "--clone and --workspace-mode %s exclude each other", m.mode)
	case m.clone:
		m.mode = sandbox.WorkspaceCloned
	}
	o.WorkspaceMode, o.WorkspaceReadOnly, o.Masks, o.UnprotectedGit = m.mode, m.readOnly, m.masks, m.plainGit
	switch m.mode {
	case "", sandbox.WorkspaceInternal, sandbox.WorkspaceNone:
		if m.readOnly && workspace == "" {
			return o, usageError(cmd, "--workspace-ro takes a PATH")
		}
		if m.mode != "" && workspace != "" {
			return o, usageError(cmd, "with --workspace-mode %s there is no PATH", m.mode)
		}
	case sandbox.WorkspaceHost, sandbox.WorkspaceCloned:
		if workspace == "" {
			return o, usageError(cmd, "--workspace-mode %s takes a PATH", m.mode)
		}
	default:
		return o, usageError(cmd, "--workspace-mode %q is none of host, cloned, internal and none", m.mode)
	}
	for _, v := range m.mounts {
		mount, err := parseMount(v)
		if err != nil {
			return o, usageError(cmd, "--mount %q: %v", v, err)
		}
		o.Mounts = append(o.Mounts, mount)
	}
	if err := pullPolicy(cmd, m.pull); err != nil {
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
	}
	return o, nil
}

func buildNetworkFlag(cmd *cobra.Command, v *string) {
	cmd.Flags().StringVar(v, "build-network", "none", "the `NET` that RUN steps reach while a Kit is built: none, public, or\nhost, which is all that this machine reaches")
}

func pullFlag(cmd *cobra.Command, v *string, preset string) {
	cmd.Flags().StringVar(v, "pull", preset, "`WHEN` registries are asked: always, missing or never")
}

func pullPolicy(cmd *cobra.Command, v string) error {
	switch v {
	case "always", "missing", "never":
		return nil
	}
	return usageError(cmd, "--pull %q is none of always, missing and never", v)
}

// buildNetwork judges the value of --build-network; empty stands for none.
func buildNetwork(cmd *cobra.Command, v string) (string, error) {
	switch v {
	case "none":
		return "", nil
	case "public", "host":
		return v, nil
	}
	return "", usageError(cmd, "--build-network %q is none of none, public and host", v)
}

// buildNetworkText is what a user should know of a network that is given to
// recipes.
func buildNetworkText(v string) string {
	if v == "host" {
		return "RUN steps of Kits that are built reach whatever this machine reaches"
	}
	return "RUN steps of Kits that are built reach public hosts"
}

// parseBytes reads a size as Kits spell it: powers of 1024.
func parseBytes(s string) (int64, error) {
	digits := strings.TrimRight(strings.ToLower(s), "abgikmt")
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("not a size such as 512m or 2g")
	}
	unit := strings.TrimSuffix(strings.TrimSuffix(strings.ToLower(s)[len(digits):], "b"), "i")
	shift := map[string]int{"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
	by, ok := shift[unit]
	if !ok || n > math.MaxInt64>>by {
		return 0, fmt.Errorf("not a size such as 512m or 2g")
	}
	return n << by, nil
}

// notNegative refuses a time below zero.
func notNegative(cmd *cobra.Command, flag string, d time.Duration) error {
	if d < 0 {
		return usageError(cmd, "--%s takes a time such as 20m, or 0; %s is in the past", flag, d)
	}
	return nil
}

func pairs(cmd *cobra.Command, flag string, list []string) (map[string]string, error) {
	m := make(map[string]string, len(list))
	for _, s := range list {
		name, value, ok := strings.Cut(s, "=")
		if !ok || name == "" {
			return nil, usageError(cmd, "%s %q is not of the form NAME=VALUE", flag, s)
		}
		if _, twice := m[name]; twice {
			return nil, usageError(cmd, "%s sets %s twice", flag, name)
		}
		m[name] = value
	}
	return m, nil
}

// variables are the pairs of --env.
func variables(cmd *cobra.Command, list []string) (map[string]string, error) {
	m, err := pairs(cmd, "--env", list)
	for name := range m {
		if !variable().MatchString(name) {
			return nil, usageError(cmd, "--env: %q is no name of a variable: use letters, digits and '_', and no digit first", name)
		}
	}
	return m, err
}

// maxName bounds names of sandboxes, in bytes: they are host name labels, too.
const maxName = 63

// leastMemory is what Kits have to ask for at least, too.
const leastMemory = 16 << 20

var variable = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`) })

var sandboxName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]*$`) })

var hostName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*$`)
})

// parseRoute reads NAME=ADDR:PORT or NAME=ADDR. The address is an address: a
// route through a second name would be a second resolution that no rule judges.
func parseRoute(s string) (sandbox.Route, error) {
	name, addr, ok := strings.Cut(s, "=")
	if !ok {
		return sandbox.Route{}, fmt.Errorf("not of the form NAME=ADDR:PORT")
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if len(name) > 253 || !hostName().MatchString(name) {
		return sandbox.Route{}, fmt.Errorf("%q is not a host name", name)
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return sandbox.Route{}, fmt.Errorf("%q is an address; only names can be routed", name)
	}
	if ap, err := netip.ParseAddrPort(addr); err == nil {
		if ap.Port() == 0 {
			return sandbox.Route{}, fmt.Errorf("port 0 cannot be dialled")
		}
		return sandbox.Route{Name: name, Addr: ap.String()}, nil
	}
	if a, err := netip.ParseAddr(addr); err == nil {
		return sandbox.Route{Name: name, Addr: a.String()}, nil
	}
	return sandbox.Route{}, fmt.Errorf("%q is neither ADDR:PORT nor an address", addr)
}

// parseMount reads SRC:DST or SRC:DST:ro. A path with a colon cannot be written.
func parseMount(s string) (sandbox.Mount, error) {
	parts := strings.Split(s, ":")
	m := sandbox.Mount{}
	switch {
	case len(parts) == 3 && (parts[2] == "ro" || parts[2] == "rw"):
		m.ReadOnly = parts[2] == "ro"
	case len(parts) == 3:
		return m, fmt.Errorf("%q is neither ro nor rw", parts[2])
	case len(parts) != 2:
		return m, fmt.Errorf("not of the form SRC:DST or SRC:DST:ro")
	}
	m.Source, m.Path = parts[0], parts[1]
	if m.Source == "" || !strings.HasPrefix(m.Path, "/") {
		return m, fmt.Errorf("SRC is a path of this machine and DST an absolute one of the sandbox")
	}
	var err error
	if m.Source, err = filepath.Abs(m.Source); err != nil {
		return m, err
	}
	if _, err := os.Stat(m.Source); err != nil {
		return m, fmt.Errorf("%s: no such file or directory", parts[0])
	}
	return m, nil
}

// directory resolves a workspace argument. Links are resolved, since what is
// shown as granted must be what is mounted.
func directory(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("workspace %s: %w", path, err)
	}
	real, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return "", fmt.Errorf("workspace %s: no such directory; make it first, or leave PATH out", path)
	}
	if st, err := os.Stat(real); err != nil || !st.IsDir() {
		return "", fmt.Errorf("workspace %s is not a directory", path)
	}
	return real, nil
}
