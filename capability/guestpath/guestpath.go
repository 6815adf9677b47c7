// Package guestpath is the grammar of paths inside a sandbox. It touches no
// file system: resolving a path against an image is the runtime's business.
package guestpath

import (
	"path"
	"strings"
)

// Space is the claim space of paths at which something is mounted.
const Space = "mount path"

// Absolute says why p cannot be the place of a mount or a file, or returns "".
// Such a path is absolute and not the root; it need not be clean, because
// [Clean] decides what it names.
func Absolute(p string) string {
	switch {
	case p == "":
		return "a path is required"
	case strings.IndexByte(p, 0) >= 0:
		return "a path cannot hold a NUL byte"
	case p[0] != '/':
		return "must be an absolute path"
	case Clean(p) == "/":
		return "must be below the root"
	}
	return ""
}

// Canonical says why p is not an absolute path in its only spelling, or
// returns "". An alias such as /x/../y for /y would slip past the comparison of
// paths, so where the grammar asks for a canonical path it is not cleaned.
func Canonical(p string) string {
	if fault := Absolute(p); fault != "" {
		return fault
	}
	if Clean(p) != p {
		return "must be written canonically, without . or .. segments, repeated or trailing slashes: " + Clean(p)
	}
	return ""
}

// Clean returns the path that p names.
func Clean(p string) string { return path.Clean(p) }
