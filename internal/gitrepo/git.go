package gitrepo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/kitbox-dev/kitbox/kiterr"
)

// gitBound is how long one run of git may take: a hostile repository may hold a
// pipe where an object should be.
const gitBound = 10 * time.Minute

// settings are what git is told each time, over what any file says.
var settings = []string{
	"core.hooksPath=/dev/null", "core.fsmonitor=false", "core.commitGraph=false", "core.untrackedCache=false", "core.symlinks=true",
	"core.autocrlf=false", "safe.directory=*", "protocol.allow=never", "gc.auto=0", "maintenance.auto=false", "submodule.recurse=false",
	"advice.detachedHead=false", "log.showSignature=false", "init.defaultBranch=main",
}

// git runs the host's git in the repository own, with an environment of its own.
func git(ctx context.Context, own string, in io.Reader, out io.Writer, env []string, args ...string) error {
	program, err := exec.LookPath("git")
	if err != nil {
		return fmt.Errorf("git is not installed here, and cloning a workspace takes it: %w", kiterr.ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(ctx, gitBound)
	defer cancel()
	var argv []string
	for _, s := range settings {
		argv = append(argv, "-c", s)
	}
	cmd := exec.CommandContext(ctx, program, append(argv, args...)...)
	cmd.Dir = "/"
	cmd.Env = append([]string{
		"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/nonexistent", "XDG_CONFIG_HOME=/nonexistent", "LC_ALL=C",
		"GIT_DIR=" + own, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_ATTR_NOSYSTEM=1",
		"GIT_NO_LAZY_FETCH=1", "GIT_NO_REPLACE_OBJECTS=1", "GIT_OPTIONAL_LOCKS=0", "GIT_TERMINAL_PROMPT=0", "GIT_ALLOW_PROTOCOL=none",
		"GIT_PAGER=cat", "GIT_EDITOR=false", "GIT_SSH_COMMAND=false", "GIT_ASKPASS=false",
	}, env...)
	cmd.WaitDelay = 5 * time.Second
	var errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, &limited{w: &errs, left: 16 << 10}
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("git %s: %w", args[0], ctx.Err())
		}
		why := strings.TrimSpace(errs.String())
		if i := strings.LastIndexByte(why, '\n'); i >= 0 {
			why = why[i+1:]
		}
		return fmt.Errorf("git %s: %s (%w)", args[0], printable(why), err)
	}
	return nil
}

// limited passes on as much as is left.
type limited struct {
	w    io.Writer
	left int
}

// Write implements [io.Writer].
func (l *limited) Write(b []byte) (int, error) {
	n := min(len(b), l.left)
	l.left -= n
	if _, err := l.w.Write(b[:n]); err != nil {
		return 0, err
	}
	return len(b), nil
}

func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0xfffd {
			return '?'
		}
		return r
	}, s)
}

// format is the kind of object ids in r.
func (r *Repo) format() string {
	for _, id := range r.Refs {
		if len(id) == 64 {
			return "sha256"
		}
	}
	return "sha1"
}

// lend makes the objects of repositories readable in own.
func lend(own string, rs ...*Repo) error {
	var list strings.Builder
	for _, r := range rs {
		p := filepath.Join(r.Common, "objects")
		if strings.ContainsAny(p, "\n\"") || strings.HasPrefix(p, "#") {
			return fmt.Errorf("%q: Git cannot be told of a path like that: %w", p, kiterr.ErrRefused)
		}
		list.WriteString(p + "\n")
	}
	if err := os.MkdirAll(filepath.Join(own, "objects/info"), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(own, alternates), []byte(list.String()), 0o600)
}

const alternates = "objects/info/alternates"

// copyShallow tells own where the histories of rs are cut off.
func copyShallow(own string, rs ...*Repo) error {
	var list strings.Builder
	for _, r := range rs {
		root, err := os.OpenRoot(r.Common)
		if err != nil {
			return err
		}
		f, err := open(root, "shallow")
		root.Close()
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		b, err := io.ReadAll(io.LimitReader(f, maxRefs))
		f.Close()
		if err != nil {
			return err
		}
		for _, id := range strings.Fields(string(b)) {
			if isID(id) {
				list.WriteString(id + "\n")
			}
		}
	}
	if list.Len() == 0 {
		return nil
	}
	return os.WriteFile(filepath.Join(own, "shallow"), []byte(list.String()), 0o644)
}
