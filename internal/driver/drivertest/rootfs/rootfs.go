// Package rootfs makes the small root filesystem that driver tests and
// benchmarks run in: one static busybox and a user.
package rootfs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// ErrNoBusybox means that there is no static busybox to build from.
var ErrNoBusybox = errors.New("no static busybox: install the package busybox-static")

// The user of the root filesystem besides root.
const (
	User = "agent"
	UID  = 1000
	GID  = 1000
)

// T is the part of [testing.T] that Layer needs.
type T interface {
	Helper()
	TempDir() string
	Skip(args ...any)
	Fatal(args ...any)
}

// Layer makes the root filesystem in a directory of t and returns it. Without
// busybox it skips t, or fails it when CI is "true": there a skipped test is a
// promise that nobody checked.
func Layer(t T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "layer")
	switch err := Make(dir); {
	case err == nil:
	case errors.Is(err, ErrNoBusybox) && os.Getenv("CI") != "true":
		t.Skip(err)
	default:
		t.Fatal(err)
	}
	return dir
}

// Make fills dir, which must not exist, with a root filesystem.
func Make(dir string) error {
	busybox, err := find()
	if err != nil {
		return err
	}
	for _, d := range []struct {
		name string
		mode os.FileMode
	}{
		{"", 0o755}, {"bin", 0o755}, {"etc", 0o755}, {"usr", 0o755}, {"usr/bin", 0o755}, {"var", 0o755},
		{"root", 0o700}, {"home", 0o755}, {"home/agent", 0o755}, {"tmp", 0o777 | os.ModeSticky},
	} {
		p := filepath.Join(dir, d.name)
		if err := os.Mkdir(p, 0o755); err != nil {
			return err
		}
		if err := os.Chmod(p, d.mode); err != nil {
			return err
		}
	}
	if err := copyFile(filepath.Join(dir, "bin/busybox"), busybox); err != nil {
		return err
	}
	list, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		return fmt.Errorf("%s --list: %w", busybox, err)
	}
	for name := range strings.FieldsSeq(string(list)) {
		if name == "busybox" {
			continue
		}
		if err := os.Symlink("busybox", filepath.Join(dir, "bin", name)); err != nil {
			return err
		}
	}
	if err := os.Symlink("../bin/env", filepath.Join(dir, "usr/bin/env")); err != nil {
		return err
	}
	for name, content := range map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:agent:/home/agent:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
		"etc/group":  "root:x:0:\ntty:x:5:\nstaff:x:50:agent\nagent:x:1000:\nnogroup:x:65534:\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	if os.Geteuid() == 0 {
		// In a namespace with one id there is no other owner to give it to.
		_ = os.Chown(filepath.Join(dir, "home/agent"), UID, GID)
	}
	return nil
}

// find returns a busybox that needs no libraries.
func find() (string, error) {
	for _, p := range []string{"/bin/busybox", "/usr/bin/busybox", "/bin/busybox.static", "/usr/bin/busybox.static"} {
		b, err := os.ReadFile(p)
		if err != nil {
			continue
		}
		// A dynamic program names its interpreter.
		if !strings.Contains(string(b[:min(len(b), 4096)]), "/ld-") {
			return p, nil
		}
	}
	return "", ErrNoBusybox
}

func copyFile(to, from string) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(w, r); err != nil {
		w.Close()
		return err
	}
	return w.Close()
}
