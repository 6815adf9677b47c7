package checkout

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kitbox-dev/kitbox/kiterr"
)

// git runs the real one about one source.
type git struct {
	limits Limits
	source Source
	dir    string // its own, with nothing of anybody's in it
}

const (
	// maxAnswer bounds what git may print about names, in bytes.
	maxAnswer = 4 << 20

	// maxMemory bounds each process, in bytes of address space.
	maxMemory = 4 << 30

	// maxCPU bounds each process, in seconds.
	maxCPU = 600
)

// settings keep a repository from having anything of ours run, and a server from
// keeping us. They stand on the command line, which nothing overrides.
var settings = []string{
	"-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.askPass=", "-c", "credential.helper=",
	"-c", "protocol.version=2", "-c", "transfer.fsckObjects=true", "-c", "fetch.fsckObjects=true", "-c", "fetch.unpackLimit=1",
	"-c", "submodule.recurse=false", "-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "pack.threads=1",
	"-c", "http.followRedirects=initial", "-c", "http.lowSpeedLimit=1", "-c", "http.lowSpeedTime=60", "-c", "advice.detachedHead=false",
}

// environment is all that git gets of ours: where programs are, who signs for
// servers, and the way out.
func environment(home, scheme string) []string {
	env := []string{"HOME=" + home, "LC_ALL=C.UTF-8", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_ATTR_NOSYSTEM=1",
		"GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=/bin/false", "SSH_ASKPASS=/bin/false", "GIT_ALLOW_PROTOCOL=" + scheme, "GIT_PROTOCOL_FROM_USER=0", "GIT_OPTIONAL_LOCKS=0"}
	for _, name := range []string{"PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// limited sets limits before git is there, so that nothing it starts is without.
const limited = `ulimit -f "$1" && ulimit -v "$2" && ulimit -t "$3" && ulimit -c 0 || exit 126; shift 3; exec git "$@"`

// command prepares one run; dir is the bare repository, or where one will be.
func (g git) command(ctx context.Context, dir string, args ...string) *exec.Cmd {
	scheme, _, _ := strings.Cut(g.source.URL, ":")
	blocks := strconv.FormatInt(max(g.limits.Bytes/512, 1), 10)
	line := append([]string{"-c", limited, "sh", blocks, strconv.Itoa(maxMemory >> 10), strconv.Itoa(maxCPU)}, settings...)
	line = append(line, g.helper()...)
	if dir != "" {
		line = append(line, "--git-dir="+dir)
	}
	cmd := exec.CommandContext(ctx, "/bin/sh", append(line, args...)...)
	cmd.Dir = g.dir
	cmd.Env = environment(g.dir, scheme)
	// Its helpers are its children and end with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// run runs git to its end and returns what it prints. A server that wants a login
// gets the user's, once.
func (g git) run(ctx context.Context, dir string, args ...string) ([]byte, error) {
	out, said, err := g.try(ctx, dir, args)
	if len(g.helper()) > 0 {
		said = g.withoutLogin(said) // what a server says may have it
	}
	if err == nil || ctx.Err() != nil || !wantsLogin(said) {
		return out, g.explained(ctx, err, said)
	}
	if len(g.helper()) > 0 {
		return nil, g.denied(nil)
	}
	l, lerr := g.findLogin(ctx)
	if lerr != nil {
		return nil, g.denied(lerr)
	}
	if err := g.present(l); err != nil {
		return nil, err
	}
	if out, said, err = g.try(ctx, dir, args); err != nil && ctx.Err() == nil && wantsLogin(said) {
		return nil, g.denied(nil)
	}
	return out, g.explained(ctx, err, g.withoutLogin(said))
}

// try runs git once.
func (g git) try(ctx context.Context, dir string, args []string) (out []byte, said string, err error) {
	cmd := g.command(ctx, dir, args...)
	answer, errs := &bounded{left: maxAnswer}, &bounded{left: 64 << 10}
	cmd.Stdout, cmd.Stderr = answer, errs
	err = cmd.Run()
	return answer.Bytes(), errs.String(), err
}

func (g git) explained(ctx context.Context, err error, said string) error {
	if err == nil {
		return nil
	}
	return g.explain(ctx, err, said)
}

// A bounded keeps the first bytes and drops the rest.
type bounded struct {
	bytes.Buffer
	left int
}

func (b *bounded) Write(p []byte) (int, error) {
	n := min(len(p), b.left)
	b.left -= n
	b.Buffer.Write(p[:n])
	return len(p), nil
}

// explain puts what git says into one line.
func (g git) explain(ctx context.Context, err error, said string) error {
	if ctx.Err() != nil {
		if cause := context.Cause(ctx); errors.Is(cause, errSlow) {
			return fmt.Errorf("%s: getting it took longer than %v: %w", g.source, g.limits.Time, kiterr.ErrUnavailable)
		}
		return context.Cause(ctx)
	}
	last := ""
	for l := range strings.Lines(said) {
		l = strings.TrimSpace(strings.Map(func(r rune) rune {
			if r < ' ' || r == 0x7f {
				return ' '
			}
			return r
		}, l))
		for _, p := range []string{"fatal: ", "error: "} {
			if rest, ok := strings.CutPrefix(l, p); ok {
				last = rest
			}
		}
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && (strings.Contains(said, "signal 25") || strings.Contains(said, "File too large") || strings.Contains(said, "File size limit")) {
		return fmt.Errorf("%s: it has more than %d bytes, which is the limit: %w", g.source, g.limits.Bytes, kiterr.ErrRefused)
	}
	if last == "" {
		last = err.Error()
	}
	const most = 300
	return fmt.Errorf("%s: git says: %.*s: %w", g.source, most, last, kiterr.ErrNotFound)
}

// ask asks the server what the ref of s stands for.
func (g git) ask(ctx context.Context, s Source) (point, error) {
	patterns := []string{"HEAD"}
	if s.Ref != "" {
		patterns = []string{s.Ref, s.Ref + "^{}"} // git matches the ends of names
	}
	out, err := g.run(ctx, "", append([]string{"ls-remote", "--", s.URL}, patterns...)...)
	if err != nil {
		return point{}, err
	}
	has := map[string]string{}
	for l := range strings.Lines(string(out)) {
		if commit, ref, ok := strings.Cut(strings.TrimSuffix(l, "\n"), "\t"); ok && isCommit(commit) {
			has[ref] = commit
		}
	}
	for _, full := range []string{s.Ref, "refs/tags/" + s.Ref, "refs/heads/" + s.Ref, "HEAD"} {
		if full == "" || full == "HEAD" && s.Ref != "" {
			continue
		}
		if commit := has[full+"^{}"]; commit != "" { // what an annotated tag is about
			return point{commit, full}, nil
		}
		if commit := has[full]; commit != "" {
			return point{commit, full}, nil
		}
	}
	return point{}, fmt.Errorf("%s: the repository has no branch or tag %s: %w", s, s.refName(), kiterr.ErrNotFound)
}

// fill fetches the commit and writes what the source names of it to tree below
// its directory.
func (g git) fill(ctx context.Context, at point) error {
	bare := filepath.Join(g.dir, "git")
	if _, err := g.run(ctx, bare, "init", "--quiet", "--bare", "--template=", bare); err != nil {
		return err
	}
	fetch := func(what string) error {
		_, err := g.run(ctx, bare, "fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head", "--", g.source.URL, "+"+what+":refs/kitbox/it")
		return err
	}
	err := fetch(at.Commit)
	if err != nil && at.Name != "" && !errors.Is(err, kiterr.ErrRefused) && ctx.Err() == nil {
		err = fetch(at.Name) // a server that gives names only
	}
	if err != nil {
		return err
	}
	// A name may have moved since it was asked about, and a server may lie.
	got, err := g.run(ctx, bare, "rev-parse", "--verify", "--quiet", "refs/kitbox/it^{commit}")
	if err != nil {
		return fmt.Errorf("%s: %s is no commit: %w", g.source, at.Commit, kiterr.ErrRefused)
	}
	if commit := strings.TrimSpace(string(got)); commit != at.Commit {
		return fmt.Errorf("%s: asked for commit %s, the server sent %s: %w", g.source, at.Commit, commit, kiterr.ErrRefused)
	}
	r, err := g.list(ctx, bare, at.Commit)
	if err != nil {
		return err
	}
	tree := filepath.Join(g.dir, "tree")
	if err := os.MkdirAll(filepath.Join(tree, "files"), 0o755); err != nil {
		return err
	}
	if err := g.write(ctx, bare, r.entries, filepath.Join(tree, "files")); err != nil {
		return err
	}
	data, err := json.Marshal(record{recordVersion, g.source.URL, g.source.Dir, r.file, at.Commit})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tree, "source.json"), append(data, '\n'), 0o600); err != nil {
		return err
	}
	return settle(tree)
}

// write writes entries below dir. Links come last, so that nothing is written
// through one.
func (g git) write(ctx context.Context, bare string, entries []entry, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	cmd := g.command(ctx, bare, "cat-file", "--batch")
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	errs := &bounded{left: 64 << 10}
	cmd.Stderr = errs
	if err := cmd.Start(); err != nil {
		return err
	}
	err = writeAll(root, entries, in, out)
	if err != nil {
		_ = cmd.Cancel() // the reason is known
	}
	if cerr := in.Close(); err == nil && cerr != nil {
		err = cerr
	}
	_, _ = io.Copy(io.Discard, out)
	if werr := cmd.Wait(); err == nil && werr != nil {
		err = g.explain(ctx, werr, errs.String())
	}
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", g.source, err)
	}
	return nil
}
