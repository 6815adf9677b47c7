package workspace

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// commanders are the sockets of programs that do with the rights of root what
// whoever connects asks for.
var commanders = []string{"/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock", "/run/crio/crio.sock",
	"/run/buildkit/buildkitd.sock",
	"/run/dbus/system_bus_socket", "/run/systemd/private", "/run/systemd/io.system.ManagedOOM", "/var/run/libvirt/libvirt-sock", "/run/snapd.socket"}

// engines are the names that container engines give to their sockets, wherever
// they are told to put them.
var engines = []string{"docker.sock", "docker.raw.sock", "podman.sock", "containerd.sock", "crio.sock", "buildkitd.sock"}

// lookedThrough bounds how many names of a directory are read for subdirectories
// with an engine's socket.
const lookedThrough = 4096

// usersCommanders are the sockets of programs that do with the rights of this
// user what whoever connects asks for.
func usersCommanders() []string {
	var all []string
	if home, err := os.UserHomeDir(); err == nil {
		for _, p := range []string{".docker/run/docker.sock", ".docker/desktop/docker.sock", ".docker/desktop/docker.raw.sock"} {
			all = append(all, filepath.Join(home, p))
		}
	}
	dirs := []string{"/run/user/" + strconv.Itoa(os.Getuid())}
	if d := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(d) && filepath.Clean(d) != dirs[0] {
		dirs = append(dirs, d)
	}
	for _, d := range dirs {
		for _, p := range []string{"docker.sock", "podman/podman.sock", "buildkit/buildkitd.sock", "buildkit-default/buildkitd.sock", "containerd/containerd.sock", "bus", "systemd/private"} {
			all = append(all, filepath.Join(d, p))
		}
	}
	return all
}

// commander returns a socket in the directory real through which the host would do
// as it is told: one at a place that is known, at any depth, or one with the name
// of an engine's, in real itself or one directory below. Empty: there is none.
func commander(real string) (string, error) {
	for _, c := range append(usersCommanders(), commanders...) {
		at, err := filepath.EvalSymlinks(c)
		if err != nil {
			continue
		}
		if ok, err := within(at, real); err == nil && ok {
			return c, nil
		}
	}
	if at := engine(real); at != "" {
		return at, nil
	}
	d, err := os.Open(real)
	if err != nil {
		return "", fmt.Errorf("%s cannot be looked through for sockets: %w", real, err)
	}
	defer d.Close()
	for read := 0; read < lookedThrough; {
		below, err := d.ReadDir(min(256, lookedThrough-read))
		for _, e := range below {
			// A link leads, inside, to what the sandbox has there.
			if !e.IsDir() {
				continue
			}
			if at := engine(filepath.Join(real, e.Name())); at != "" {
				return at, nil
			}
		}
		read += len(below)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", fmt.Errorf("%s cannot be looked through for sockets: %w", real, err)
		}
	}
	return "", nil
}

// engine returns the socket of an engine that stands in dir itself; empty: none
// that this user can see.
func engine(dir string) string {
	for _, name := range engines {
		at := filepath.Join(dir, name)
		if st, err := os.Lstat(at); err == nil && st.Mode()&fs.ModeSocket != 0 {
			return at
		}
	}
	return ""
}
