package creation

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"github.com/kitbox-dev/kitbox/sandbox"
)

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
