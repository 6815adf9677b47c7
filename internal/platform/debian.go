package platform

import (
	"bytes"
	"context"
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

	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// packages are what Kits may count on (§12) and what hooks and skills expect.
var packages = []string{"bash", "ca-certificates", "curl", "git", "procps", "python3"}

// excluded are left out of every package: an agent reads no manual pages, and
// with them the base would be a third larger. Copyright files stay.
var excluded = []string{
	"path-exclude=/usr/share/doc/*", "path-include=/usr/share/doc/*/copyright",
	"path-exclude=/usr/share/man/*", "path-exclude=/usr/share/info/*",
	"path-exclude=/usr/share/locale/*", "path-exclude=/usr/share/lintian/*",
	// Nobody needs the chroot to survive a power cut before it is a tar.
	"force-unsafe-io",
}

// cleanup ends the installation: the user, and nothing of this machine's. It is
// one line of sh in which $1 is the chroot.
const cleanup = `set -e; chroot "$1" groupadd -g 1000 agent; ` +
	`chroot "$1" useradd -m -u 1000 -g 1000 -s /bin/bash agent; chmod 0755 "$1/home/agent"; ` +
	`rm -rf "$1"/etc/hostname "$1"/etc/resolv.conf "$1"/etc/passwd- "$1"/etc/group- "$1"/etc/shadow- "$1"/etc/gshadow- ` +
	`"$1"/var/log/* "$1"/var/cache/ldconfig/aux-cache "$1"/var/cache/debconf/*-old "$1"/var/lib/dpkg/*-old; ` +
	`rm -f "$1"/etc/dpkg/dpkg.cfg.d/99mmdebstrap; ` +
	`printf '%s\n' 'path-exclude=/usr/share/doc/*' 'path-include=/usr/share/doc/*/copyright' 'path-exclude=/usr/share/man/*' > "$1"/etc/dpkg/dpkg.cfg.d/kitbox-slim`

// bootstrapGrace is how long mmdebstrap has to clean up after an interruption.
const bootstrapGrace = 20 * time.Second

// bootstrap writes the tar of a fresh Debian to w.
func bootstrap(ctx context.Context, images *layout.Store, o Options, w io.Writer) error {
	program := o.Program
	if program == "" {
		var err error
		if program, err = exec.LookPath("mmdebstrap"); err != nil {
			return fmt.Errorf("mmdebstrap, which makes the base, is not installed: install it with 'apt-get install mmdebstrap', or give a root filesystem with --from-rootfs: %w", kiterr.ErrUnavailable)
		}
	}
	suite, mirrors, err := origin(o)
	if err != nil {
		return err
	}
	// The chroot lies in the store, which has the room; a kill leaves it for
	// a sweep.
	tmp, err := os.MkdirTemp(filepath.Join(images.Dir(), "ingest"), durable.TempPrefix+"base-*")
	if err != nil {
		return durable.Explain(images.Dir(), err)
	}
	defer os.RemoveAll(tmp)
	// apt downloads as another user if it can.
	if err := os.Chmod(tmp, 0o755); err != nil {
		return durable.Explain(tmp, err)
	}
	args := []string{"--variant=minbase", "--format=tar", "--skip=output/dev", "--include=" + strings.Join(packages, ",")}
	for _, e := range excluded {
		args = append(args, "--dpkgopt="+e)
	}
	args = append(args, "--customize-hook="+cleanup)
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: true}
	if os.Geteuid() == 0 {
		args = append(args, "--mode=root")
		// What it mounts in the chroot is nobody else's to see, and ends
		// with it: nothing can be deleted through a forgotten mount.
		attr.Unshareflags = syscall.CLONE_NEWNS
	}
	args = append(args, suite, "-")
	args = append(args, mirrors...)
	o.Progress(fmt.Sprintf("installing Debian %s from %s", suite, describeMirrors(mirrors)))

	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp, fmt.Sprintf("SOURCE_DATE_EPOCH=%d", o.Time.Unix()), "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive")
	cmd.SysProcAttr = attr
	said := &messages{tell: o.Progress}
	cmd.Stdout, cmd.Stderr = w, said
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = bootstrapGrace
	err = cmd.Run()
	if ctx.Err() != nil {
		return fmt.Errorf("making the base: %w", context.Cause(ctx))
	}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		if said.full() {
			return durable.Explain(images.Dir(), syscall.ENOSPC)
		}
		return fmt.Errorf("mmdebstrap could not make the base: %s: check the mirror, or choose another with --mirror", said.cause())
	case err != nil:
		return durable.Explain(images.Dir(), fmt.Errorf("running %s: %w", program, err))
	}
	return nil
}

// messages tells the lines of mmdebstrap's standard error that people want to
// see, and keeps its last words.
type messages struct {
	tell func(string)
	part []byte
	last []string // bounded
}

func (m *messages) Write(p []byte) (int, error) {
	m.part = append(m.part, p...)
	for {
		line, rest, ok := bytes.Cut(m.part, []byte{'\n'})
		if !ok {
			break
		}
		m.line(strings.TrimSpace(string(line)))
		m.part = append(m.part[:0], rest...)
	}
	if len(m.part) > 64<<10 {
		m.part = m.part[:0]
	}
	return len(p), nil
}

func (m *messages) line(s string) {
	if s == "" {
		return
	}
	if m.last = append(m.last, s); len(m.last) > 50 {
		m.last = m.last[1:]
	}
	if text, ok := strings.CutPrefix(s, "I: "); ok && !strings.HasPrefix(text, "running --customize-hook") && !strings.HasPrefix(text, "automatically") {
		m.tell(strings.TrimRight(text, "."))
	}
}

// cause is the line that says why it failed: apt's and dpkg's errors come
// before mmdebstrap's own, which only says that they did.
func (m *messages) cause() string {
	for _, l := range m.last {
		if text, ok := strings.CutPrefix(l, "E: "); ok && !strings.HasPrefix(text, "run_chroot failed") && !strings.Contains(text, "mmdebstrap failed") {
			return text
		}
	}
	if n := len(m.last); n > 0 {
		return m.last[n-1]
	}
	return "it said nothing"
}

func (m *messages) full() bool {
	return slices.ContainsFunc(m.last, func(l string) bool { return strings.Contains(l, "No space left on device") })
}

// origin returns the suite to install and where from, as mmdebstrap wants it.
// No mirror means mmdebstrap's own choice for the suite.
func origin(o Options) (suite string, mirrors []string, err error) {
	host := hostSuite(o.Root)
	suite = o.Suite
	if suite == "" {
		if suite = host; suite == "" {
			return "", nil, fmt.Errorf("this machine is not Debian: say which release to install with --suite, such as --suite bookworm: %w", kiterr.ErrUnavailable)
		}
	}
	if strings.HasPrefix(suite, "-") || strings.ContainsAny(suite, " \t\n/") {
		return "", nil, fmt.Errorf("%q is no name of a Debian release: %w", suite, kiterr.ErrRefused)
	}
	if o.Mirror != "" {
		if strings.ContainsAny(o.Mirror, " \t\n") || !strings.Contains(o.Mirror, ":/") {
			return "", nil, fmt.Errorf("%q is no mirror: give a URL such as http://deb.debian.org/debian: %w", o.Mirror, kiterr.ErrRefused)
		}
		return suite, []string{o.Mirror}, nil
	}
	return suite, aptSources(o.Root, suite), nil
}

// hostSuite is the release of this machine, or empty if it is not Debian.
func hostSuite(root string) string {
	data, err := os.ReadFile(filepath.Join(root, "etc/os-release"))
	if err != nil {
		return ""
	}
	v := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if k, val, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			v[k] = strings.Trim(val, `"'`)
		}
	}
	if v["ID"] != "debian" {
		return ""
	}
	return v["VERSION_CODENAME"]
}

func describeMirrors(mirrors []string) string {
	var urls []string
	for _, m := range mirrors {
		for _, f := range strings.Fields(m) {
			if strings.Contains(f, ":/") && !strings.HasPrefix(f, "[") && !slices.Contains(urls, f) {
				urls = append(urls, f)
			}
		}
	}
	if len(urls) == 0 {
		return "the default mirror"
	}
	return strings.Join(urls, " and ")
}
