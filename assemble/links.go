package assemble

import (
	"maps"
	"path"
	"slices"
	"strings"
)

// floor lists what every base has (§12), so that links into it lead somewhere.
var floor = []string{"/bin/sh", "/bin/bash", "/usr/bin/bash", "/usr/bin/git", "/usr/bin/curl", "/dev", "/proc"}

// maxLinks bounds how many symlinks one path follows.
const maxLinks = 40

// DanglingLinks returns the symlinks that lead neither to what the overlay ships
// nor to what every base has (§10/overlay-links-resolve), sorted. entries maps
// every absolute path to where it leads, or to "" if it is no symlink.
func DanglingLinks(entries map[string]string) []string {
	var out []string
	for _, p := range slices.Sorted(maps.Keys(entries)) {
		if entries[p] != "" && !leads(entries, p) {
			out = append(out, p)
		}
	}
	return out
}

// leads follows name to its end.
func leads(entries map[string]string, name string) bool {
	at, rest := "/", strings.Split(name, "/")
	for links := 0; len(rest) > 0; {
		elem := rest[0]
		rest = rest[1:]
		switch elem {
		case "", ".":
			continue
		case "..":
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, elem)
		whole := path.Join(append([]string{next}, rest...)...)
		if slices.ContainsFunc(floor, func(f string) bool { return whole == f || strings.HasPrefix(whole, f+"/") }) {
			return true
		}
		to, there := entries[next]
		switch {
		case !there:
			return false
		case to == "":
			at = next
			continue
		}
		if links++; links > maxLinks {
			return false
		}
		if path.IsAbs(to) {
			at = "/"
		}
		rest = append(strings.Split(to, "/"), rest...)
	}
	return true
}
