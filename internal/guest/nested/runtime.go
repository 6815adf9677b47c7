package nested

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Name is what the program is called that stands in front of a runtime, besides
// the names of runtimes themselves.
const Name = "oci-runtime"

// runtimes are what it stands in front of, the first that is there.
var runtimes = []string{"runc", "crun"}

// Is reports whether a program that was started by this name is a runtime.
func Is(arg0 string) bool {
	base := filepath.Base(arg0)
	return base == Name || slices.Contains(runtimes, base)
}

// shared is where files lie that containers are given.
const shared = "/run/kitbox/authorities"

// stateTime bounds asking a runtime what a container is.
const stateTime = 10 * time.Second

// Main does what a runtime that was called with args does, and returns a status if
// it cannot. With "precreate" alone it is a hook of podman, buildah and CRI-O: a
// configuration comes from in and goes to out.
func Main(args []string, in io.Reader, out, errs io.Writer) int {
	warn := func(err error) {
		fmt.Fprintf(errs, "kitbox: containers do not get what the sandbox trusts: %v\n", err)
	}
	c, err := Load(ConfigPath)
	if err != nil {
		c = nil
	}
	if len(args) == 2 && args[1] == "precreate" {
		spec, rerr := io.ReadAll(io.LimitReader(in, maxDocument))
		if rerr != nil {
			fmt.Fprintf(errs, "kitbox: reading the configuration of a container: %v\n", rerr)
			return 1
		}
		if c != nil {
			if changed, err := c.Filter(spec, ".", shared); err == nil {
				spec = changed
			} else {
				warn(err)
			}
		}
		if _, err := out.Write(spec); err != nil {
			return 1
		}
		return 0
	}
	real, rerr := find(args[0], os.Getenv("PATH"))
	if rerr != nil {
		fmt.Fprintf(errs, "kitbox: %v\n", rerr)
		return 127
	}
	if c == nil {
		warn(err)
	} else if err := c.prepare(real, args); err != nil {
		warn(err)
	}
	err = syscall.Exec(real, append([]string{real}, args[1:]...), os.Environ())
	fmt.Fprintf(errs, "kitbox: %s: %v\n", real, err)
	return 126
}

// find returns the runtime that arg0 stands in front of: the first of that name in
// search that is not this program.
func find(arg0, search string) (string, error) {
	self, err := os.Stat("/proc/self/exe")
	if err != nil {
		return "", err
	}
	names := runtimes
	if base := filepath.Base(arg0); base != Name {
		names = []string{base}
	}
	dirs := append(filepath.SplitList(search), "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
	for _, name := range names {
		for _, dir := range dirs {
			p := filepath.Join(dir, name)
			if st, err := os.Stat(p); err == nil && filepath.IsAbs(p) && st.Mode().IsRegular() && st.Mode()&0o111 != 0 && !os.SameFile(st, self) {
				return p, nil
			}
		}
	}
	return "", fmt.Errorf("%s: not found", strings.Join(names, ", "))
}

// prepare changes what the runtime is about to read.
func (c *Config) prepare(real string, args []string) error {
	at := slices.IndexFunc(args, func(a string) bool { return a == "create" || a == "run" || a == "exec" })
	if at < 1 {
		return nil
	}
	if args[at] == "exec" {
		file := option(args[at+1:], "process", "p")
		if file == "" {
			return nil
		}
		id := ""
		for _, a := range args[at+1:] {
			if !strings.HasPrefix(a, "-") {
				id = a // the last: nothing follows it where a process is given
			}
		}
		if !has(real, args[1:at], id) {
			return nil
		}
		return rewrite(file, func(b []byte) ([]byte, error) { return c.Environ(b) })
	}
	bundle := option(args[at+1:], "bundle", "b")
	if bundle == "" {
		bundle = "."
	}
	bundle, err := filepath.Abs(bundle)
	if err != nil {
		return err
	}
	return rewrite(filepath.Join(bundle, "config.json"), func(b []byte) ([]byte, error) { return c.Filter(b, bundle, shared) })
}

// option is the value of a flag, by one of its names.
func option(args []string, names ...string) string {
	for i, a := range args {
		name, value, ok := strings.Cut(strings.TrimLeft(a, "-"), "=")
		if !strings.HasPrefix(a, "-") || !slices.Contains(names, name) {
			continue
		}
		if ok {
			return value
		}
		if i+1 < len(args) {
			return args[i+1]
		}
	}
	return ""
}

// has reports whether a container was given the file: one that was made before has
// none.
func has(real string, global []string, id string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), stateTime)
	defer cancel()
	b, err := exec.CommandContext(ctx, real, append(slices.Clone(global), "state", id)...).Output()
	var state struct{ PID int }
	if err != nil || json.Unmarshal(b, &state) != nil || state.PID < 1 {
		return false
	}
	st, err := os.Lstat(fmt.Sprintf("/proc/%d/root%s", state.PID, target))
	return err == nil && st.Mode().IsRegular()
}

// rewrite replaces a file by what change makes of it, in one step.
func rewrite(name string, change func([]byte) ([]byte, error)) error {
	b, err := read(os.Open, name, maxDocument)
	if errors.Is(err, os.ErrNotExist) {
		return nil // the runtime says so
	}
	if err != nil {
		return err
	}
	changed, err := change(b)
	if err != nil || string(changed) == string(b) {
		return err
	}
	st, err := os.Stat(name)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".kitbox-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(changed)
	err = errors.Join(err, f.Chmod(st.Mode().Perm()), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	return err
}
