package checkout

import (
	"fmt"
	"net"
	"net/url"
	"path"
	"path/filepath"
	"strings"

	"github.com/kitbox-dev/kitbox/kiterr"
)

// A Source names a directory, or a file, of a repository at some commit.
type Source struct {
	URL string // https, or http on this machine's loopback; canonical
	Ref string // a branch, a tag, a full name or a commit; empty: the server's HEAD
	Dir string // clean, relative, with slashes; empty: the root
}

// Is reports whether ref is written like a source.
func Is(ref string) bool { return strings.HasPrefix(ref, "git+") }

// Parse reads git+https://HOST/PATH, with ref= and dir= in its query or its
// fragment, or with a fragment REF or REF:DIR. What cannot be a source is
// [kiterr.ErrRefused].
func Parse(ref string) (Source, error) {
	fail := func(format string, args ...any) (Source, error) {
		return Source{}, fmt.Errorf("%s %s: write git+https://HOST/REPOSITORY#ref=TAG&dir=PATH: %w", ref, fmt.Sprintf(format, args...), kiterr.ErrRefused)
	}
	text, ok := strings.CutPrefix(ref, "git+")
	if !ok {
		return fail("is no git source")
	}
	u, err := url.Parse(text)
	if err != nil {
		return fail("is no URL")
	}
	switch {
	case u.User != nil:
		// It would be in every record and message about the Kit.
		return Source{}, fmt.Errorf("git+%s holds a login, which would be recorded with the Kit: leave it out; git's credential helpers, GIT_ASKPASS and ~/.netrc are asked for it: %w", u.Redacted(), kiterr.ErrRefused)
	case u.Scheme == "http" && !loopback(u.Hostname()):
		return fail("goes over a connection without TLS, which is only for this machine")
	case u.Scheme != "https" && u.Scheme != "http":
		return fail("has the scheme %q", u.Scheme)
	case u.Host == "" || u.Path == "" || u.Path == "/":
		return fail("names no repository")
	}
	s := Source{}
	for _, part := range []string{u.RawQuery, u.EscapedFragment()} {
		if part == "" {
			continue
		}
		if !strings.Contains(part, "=") {
			part, err := url.PathUnescape(part)
			if err != nil {
				return fail("is no URL")
			}
			s.Ref, s.Dir, _ = strings.Cut(part, ":")
			continue
		}
		q, err := url.ParseQuery(part)
		if err != nil {
			return fail("is no URL")
		}
		for k, v := range q {
			switch {
			case k == "ref" && len(v) == 1 && s.Ref == "":
				s.Ref = v[0]
			case k == "dir" && len(v) == 1 && s.Dir == "":
				s.Dir = v[0]
			default:
				return fail("states %q, which is unknown or there twice", k)
			}
		}
	}
	// What git would take for an option or a pattern is no name.
	if strings.HasPrefix(s.Ref, "-") || strings.ContainsAny(s.Ref, " ~^:?*[\\\x7f") || strings.Contains(s.Ref, "..") || strings.ContainsFunc(s.Ref, func(r rune) bool { return r < ' ' }) {
		return fail("has the ref %q, which is no name", s.Ref)
	}
	if s.Dir != "" {
		if s.Dir = path.Clean(s.Dir); !filepath.IsLocal(s.Dir) {
			return fail("has the directory %q, which is not inside the repository", s.Dir)
		}
		if s.Dir == "." {
			s.Dir = ""
		}
	}
	s.URL = (&url.URL{Scheme: u.Scheme, Host: strings.ToLower(u.Host), Path: u.Path, RawPath: u.RawPath}).String()
	return s, nil
}

// String is s as it is written.
func (s Source) String() string {
	out, sep := "git+"+s.URL, "#"
	for _, f := range [][2]string{{"ref", s.Ref}, {"dir", s.Dir}} {
		if f[1] != "" {
			out += sep + f[0] + "=" + f[1]
			sep = "&"
		}
	}
	return out
}

// refName is how messages call the ref.
func (s Source) refName() string {
	if s.Ref == "" {
		return "HEAD"
	}
	return s.Ref
}

func isCommit(s string) bool {
	return (len(s) == 40 || len(s) == 64) && strings.Trim(s, "0123456789abcdef") == ""
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
