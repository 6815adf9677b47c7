package constraint

import (
	"errors"
	"fmt"
	"strings"
)

// ErrNotPublished means that a reference names a local path or a source
// repository where only a published image may stand (§3.4).
var ErrNotPublished = errors.New("not a published image reference")

// An Image is a parsed registry reference.
type Image struct {
	Repository string // normalized, with its registry: docker.io/library/x
	Tag        string // "" if none is written
	Digest     string // sha256:…, "" if none
}

// Key returns a text shared by references to one image: the repository and the
// tag (latest unless stated), or the digest when only that is written.
func (i Image) Key() string {
	switch {
	case i.Tag != "":
		return i.Repository + ":" + i.Tag
	case i.Digest != "":
		return i.Repository + "@" + i.Digest
	default:
		return i.Repository + ":latest"
	}
}

// ParseImage parses a registry reference: `[registry/]path[:tag][@digest]`. A
// local path, a git source or any other URL is an error that matches
// [ErrNotPublished].
func ParseImage(s string) (Image, error) {
	switch {
	case s == "":
		return Image{}, errors.New("the reference is empty")
	case strings.HasPrefix(s, "git+"), strings.HasPrefix(s, "git@"), strings.HasPrefix(s, "git:"), strings.Contains(s, "#"):
		return Image{}, fmt.Errorf("%q is a git source: %w", s, ErrNotPublished)
	case strings.Contains(s, "://"):
		return Image{}, fmt.Errorf("%q is a URL: %w", s, ErrNotPublished)
	case strings.HasPrefix(s, "."), strings.HasPrefix(s, "/"), strings.HasPrefix(s, "~"), strings.Contains(s, `\`):
		return Image{}, fmt.Errorf("%q is a local path: %w", s, ErrNotPublished)
	}
	var img Image
	rest, digest, ok := strings.Cut(s, "@")
	if ok {
		if !ValidDigest(digest) {
			return Image{}, fmt.Errorf("%q: %q is not a digest: sha256: and 64 hexadecimal digits", s, digest)
		}
		img.Digest = digest
	}
	if i := strings.LastIndexByte(rest, ':'); i >= 0 && strings.IndexByte(rest[i:], '/') < 0 {
		img.Tag, rest = rest[i+1:], rest[:i]
		if !validTag(img.Tag) {
			return Image{}, fmt.Errorf("%q: %q is not a tag", s, img.Tag)
		}
	}
	host, path, ok := strings.Cut(rest, "/")
	if !ok || !strings.ContainsAny(host, ".:") && host != "localhost" {
		host, path = "docker.io", rest
	}
	if host == "index.docker.io" {
		host = "docker.io"
	}
	if host == "docker.io" && !strings.Contains(path, "/") {
		path = "library/" + path
	}
	if !validHost(host) {
		return Image{}, fmt.Errorf("%q: %q is not a registry", s, host)
	}
	for part := range strings.SplitSeq(path, "/") {
		if !validComponent(part) {
			return Image{}, fmt.Errorf("%q: %q is not a repository name: lowercase letters and digits, with '.', '_', '__' or '-' between them", s, path)
		}
	}
	img.Repository = host + "/" + path
	if len(img.Repository) > 255 {
		return Image{}, fmt.Errorf("%q: a repository name has at most 255 characters", s)
	}
	return img, nil
}

// ValidDigest reports whether s is sha256: and 64 lowercase hexadecimal digits.
func ValidDigest(s string) bool {
	h, ok := strings.CutPrefix(s, "sha256:")
	if !ok || len(h) != 64 {
		return false
	}
	for i := range len(h) {
		if c := h[i]; !digit(c) && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func validTag(s string) bool {
	if s == "" || len(s) > 128 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		word := digit(c) || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_'
		if !word && (i == 0 || c != '.' && c != '-') {
			return false
		}
	}
	return true
}

func validHost(s string) bool {
	if inner, ok := strings.CutPrefix(s, "["); ok { // IPv6 literal
		addr, port, ok := strings.Cut(inner, "]")
		return ok && addr != "" && strings.Trim(addr, "0123456789abcdefABCDEF:.") == "" &&
			(port == "" || port[0] == ':' && allDigits(port[1:]))
	}
	host, port, ok := strings.Cut(s, ":")
	if ok && !allDigits(port) {
		return false
	}
	for label := range strings.SplitSeq(host, ".") {
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for i := range len(label) {
			if !segmentChar(label[i]) {
				return false
			}
		}
	}
	return true
}

// validComponent reports whether s is one path component: alphanumerics with
// single separators '.', '_', '__' or a run of '-' between them.
func validComponent(s string) bool {
	for i := 0; i < len(s); {
		start := i
		for i < len(s) && lowerAlnum(s[i]) {
			i++
		}
		if i == start {
			return false
		}
		if i == len(s) {
			return true
		}
		sep := i
		for i < len(s) && (s[i] == '.' || s[i] == '_' || s[i] == '-') {
			i++
		}
		switch run := s[sep:i]; {
		case run == ".", run == "_", run == "__", strings.Trim(run, "-") == "" && run != "":
		default:
			return false
		}
	}
	return false
}
