package cli

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"

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
	driver string
	quiet  bool
}

func (m *making) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&m.name, "name", "", "`NAME` of the sandbox (default: made up from the workload's name)")
	f.StringArrayVar(&m.kits, "kit", nil, "add another `KIT`: a directory or an image (repeatable)")
	f.StringArrayVar(&m.args, "arg", nil, "`NAME=VALUE` for the arg NAME of the Kits that declare it (repeatable)")
	f.StringArrayVar(&m.env, "env", nil, "`NAME=VALUE` for the variable NAME of the sandbox (repeatable)")
	f.StringArrayVar(&m.routes, "route", nil, "make the allowed host NAME dial another address; `NAME=ADDR:PORT` (repeatable)")
	buildNetworkFlag(cmd, &m.build)
	f.StringVar(&m.driver, "driver", "", "what builds the machine, `NAME`: namespace (default),\nor oci for an installed crun or runc")
	f.BoolVarP(&m.quiet, "quiet", "q", false, "no progress and no summary on stderr")
}

// options is what was asked for; kit and workspace come from the arguments.
func (m *making) options(cmd *cobra.Command, kit, workspace string) (sandbox.CreateOptions, error) {
	o := sandbox.CreateOptions{Name: m.name, Driver: m.driver, Kits: append([]string{kit}, m.kits...)}
	if cmd.Flags().Changed("name") && !sandboxName.MatchString(m.name) {
		return o, usageError(cmd, "sandbox name %q: use letters, digits, '.', '_' and '-', starting with a letter or digit", m.name)
	}
	var err error
	if o.Args, err = pairs(cmd, "--arg", m.args); err != nil {
		return o, err
	}
	if o.Env, err = pairs(cmd, "--env", m.env); err != nil {
		return o, err
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

var sandboxName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]*$`)

var hostName = regexp.MustCompile(`^([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*$`)

// parseRoute reads NAME=ADDR:PORT or NAME=ADDR. The address is an address: a
// route through a second name would be a second resolution that no rule judges.
func parseRoute(s string) (sandbox.Route, error) {
	name, addr, ok := strings.Cut(s, "=")
	if !ok {
		return sandbox.Route{}, fmt.Errorf("not of the form NAME=ADDR:PORT")
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if len(name) > 253 || !hostName.MatchString(name) {
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
