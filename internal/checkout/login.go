package checkout

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/kitbox-dev/kitbox/kiterr"
)

// A login is what a server asks for. It is never printed.
type login struct{ user, password string }

// Format implements [fmt.Formatter].
func (login) Format(s fmt.State, _ rune) { fmt.Fprint(s, "REDACTED") }

const (
	// askTime bounds the helpers of the user, which may ask a person.
	askTime = time.Minute

	// maxNetrc bounds the file, in bytes.
	maxNetrc = 1 << 20
)

// wantsLogin reports whether git ended because the server wants to know who asks.
func wantsLogin(said string) bool {
	for _, s := range []string{"could not read Username", "could not read Password", "Authentication failed", "terminal prompts disabled"} {
		if strings.Contains(said, s) {
			return true
		}
	}
	return false
}

// errNoLogin means that nobody knows a login.
var errNoLogin = errors.New("no login is known")

// findLogin asks those whom the user lets git ask, who are the user's and not the
// repository's: credential helpers, GIT_ASKPASS, and then netrc. Nobody is asked at
// a terminal.
func (g git) findLogin(ctx context.Context) (login, error) {
	u, err := url.Parse(g.source.URL)
	if err != nil {
		return login{}, err
	}
	l, err := g.askHelpers(ctx, u)
	if err == nil {
		return l, nil
	}
	if ctx.Err() != nil {
		return login{}, context.Cause(ctx)
	}
	return netrc(u.Hostname(), os.Getenv)
}

// askHelpers runs git with the user's own configuration and environment, in a
// directory where no repository can add its own: what a repository configures as a
// helper would run here.
func (g git) askHelpers(ctx context.Context, u *url.URL) (login, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "git", "credential", "fill")
	cmd.Dir = g.dir
	for _, e := range os.Environ() {
		switch name, _, _ := strings.Cut(e, "="); name {
		case "GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_CEILING_DIRECTORIES", "GIT_TERMINAL_PROMPT", "GIT_TRACE", "GIT_TRACE_CURL", "GIT_CURL_VERBOSE":
		default:
			cmd.Env = append(cmd.Env, e)
		}
	}
	cmd.Env = append(cmd.Env, "GIT_TERMINAL_PROMPT=0", "GIT_CEILING_DIRECTORIES="+filepath.Dir(g.dir))
	cmd.Stdin = strings.NewReader(fmt.Sprintf("protocol=%s\nhost=%s\npath=%s\n\n", u.Scheme, u.Host, strings.TrimPrefix(u.Path, "/")))
	out := &bounded{left: 64 << 10}
	cmd.Stdout = out // what helpers say otherwise may hold anything
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		return login{}, errNoLogin
	}
	var l login
	for line := range strings.Lines(out.String()) {
		k, v, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		switch k {
		case "username":
			l.user = v
		case "password":
			l.password = v
		case "protocol", "host":
			if v != map[string]string{"protocol": u.Scheme, "host": u.Host}[k] {
				return login{}, errNoLogin // of another server
			}
		}
	}
	if l.password == "" {
		return login{}, errNoLogin
	}
	return l, nil
}

// netrc looks for host in the file that NETRC names, or ~/.netrc. A file that
// others can read is left alone.
func netrc(host string, getenv func(string) string) (login, error) {
	name := getenv("NETRC")
	if name == "" {
		if getenv("HOME") == "" {
			return login{}, errNoLogin
		}
		name = filepath.Join(getenv("HOME"), ".netrc")
	}
	st, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return login{}, errNoLogin
	}
	if err != nil {
		return login{}, err
	}
	if st.Mode().Perm()&0o077 != 0 {
		return login{}, fmt.Errorf("%s can be read by others and is not used: chmod 600 it", name)
	}
	if !st.Mode().IsRegular() || st.Size() > maxNetrc {
		return login{}, fmt.Errorf("%s is no netrc file of at most %d bytes", name, maxNetrc)
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return login{}, err
	}
	return parseNetrc(data, host)
}

// parseNetrc returns the first entry for host, or the default entry before any
// that follows it.
func parseNetrc(data []byte, host string) (login, error) {
	var l login
	in := false  // the words are about host
	mac := false // the lines are a macro, up to an empty one
	for line := range bytes.Lines(data) {
		words := strings.Fields(string(line))
		if len(words) == 0 {
			mac = false
		}
		if mac {
			continue
		}
		for i := 0; i < len(words); i++ {
			next := ""
			if i+1 < len(words) {
				next = words[i+1]
			}
			switch w := words[i]; w {
			case "machine", "default":
				if in && l.password != "" {
					return l, nil
				}
				l, in = login{}, w == "default" || strings.EqualFold(next, host)
				if w == "machine" {
					i++
				}
			case "login", "password", "account":
				i++
				if in && w == "login" {
					l.user = next
				} else if in && w == "password" {
					l.password = next
				}
			case "macdef":
				mac, i = true, len(words)
			default:
				if strings.HasPrefix(w, "#") {
					i = len(words)
				}
			}
		}
	}
	if l.password == "" {
		return login{}, errNoLogin
	}
	return l, nil
}

// present writes the login where git's own helper finds it, for this server alone:
// whoever it redirects to is another one. It goes with the directory.
func (g git) present(l login) error {
	u, err := url.Parse(g.source.URL)
	if err != nil {
		return err
	}
	at := url.URL{Scheme: u.Scheme, Host: u.Host, User: url.UserPassword(l.user, l.password)}
	return os.WriteFile(g.loginFile(), []byte(at.String()+"\n"), 0o600)
}

func (g git) loginFile() string { return filepath.Join(g.dir, "login") }

// withoutLogin returns text without the login that is presented: a server that was given
// it can say it again, to be printed and logged here. Text about a login that cannot be
// read is none.
func (g git) withoutLogin(text string) string {
	b, err := os.ReadFile(g.loginFile())
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		// Git writes it anew, and then it is no URL of Go's.
		_, rest, _ := strings.Cut(strings.TrimSpace(line), "://")
		user, quoted, ok := strings.Cut(rest[:max(strings.LastIndexByte(rest, '@'), 0)], ":")
		password, perr := url.PathUnescape(quoted)
		user, uerr := url.PathUnescape(user)
		if !ok || perr != nil || uerr != nil || password == "" {
			return ""
		}
		basic := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
		for _, form := range []string{basic, quoted, url.QueryEscape(password), url.PathEscape(password), password} {
			text = strings.ReplaceAll(text, form, "REDACTED")
		}
	}
	return text
}

// helper are the settings that make git use the login, if there is one.
func (g git) helper() []string {
	if _, err := os.Stat(g.loginFile()); err != nil {
		return nil
	}
	quoted := "'" + strings.ReplaceAll(g.loginFile(), "'", `'\''`) + "'"
	return []string{"-c", "credential.helper=store --file=" + quoted}
}

// denied is what there is to say of a server that wants a login.
func (g git) denied(cause error) error {
	u, err := url.Parse(g.source.URL)
	if err != nil {
		return err
	}
	why := "no credential helper of git's, GIT_ASKPASS or ~/.netrc has one"
	switch {
	case cause == nil:
		why = "and refuses the one that git's credential helpers, GIT_ASKPASS or ~/.netrc have"
	case !errors.Is(cause, errNoLogin):
		why = cause.Error()
	}
	sep := ", and "
	if cause == nil {
		sep = ", "
	}
	return fmt.Errorf("%s: there is no such repository, or %s wants a login%s%s: %w", g.source, u.Host, sep, why, kiterr.ErrNotFound)
}
