package frontend

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/moby/buildkit/frontend/gateway/client"

	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/constraint"
)

// The package databases that provides are derived from (§9.6).
const (
	dpkgStatus   = "var/lib/dpkg/status"
	apkInstalled = "lib/apk/db/installed"
)

// derive adds the packages of a workload's image to what it provides: those
// that all its platforms have in one version.
func (k *kit) derive(ctx context.Context, res *client.Result, platforms []platform) error {
	if k.published.Kind != spec.KindWorkload {
		return nil
	}
	var agreed map[string]string // name → version
	for _, p := range platforms {
		have := map[string]string{}
		for file, parse := range map[string]func([]byte) map[string]string{dpkgStatus: parseDpkg, apkInstalled: parseApk} {
			data, err := readFile(ctx, p.ref, file)
			if isNotExist(err) {
				continue
			}
			if err != nil {
				return fmt.Errorf("reading the image's package database /%s: %w", file, err)
			}
			maps.Copy(have, parse(data))
		}
		if agreed == nil {
			agreed = have
			continue
		}
		maps.DeleteFunc(agreed, func(name, v string) bool { return have[name] != v })
	}
	provides := slices.Clone(k.published.Provides)
	for _, name := range slices.Sorted(maps.Keys(agreed)) {
		provides = append(provides, name+"@"+agreed[name])
	}
	k.published.Provides = provides
	return nil
}

// derived reports whether a provide is one that only [kit.derive] states.
func derived(provide string) bool {
	name, _, _ := strings.Cut(provide, "@")
	n, err := constraint.ParseName(name)
	return err == nil && n.Derived()
}

// parseDpkg returns the installed packages of a dpkg database as derived
// provides.
func parseDpkg(data []byte) map[string]string {
	return stanzas(data, func(f map[string]string) (name, version string, ok bool) {
		// "install ok installed": what it should be, whether it is broken,
		// what it is.
		status := strings.Fields(f["Status"])
		installed := len(status) > 0 && status[len(status)-1] == "installed"
		return constraint.NamespaceDeb + "/" + f["Package"], f["Version"], installed
	}, ": ")
}

// parseApk returns the packages of an apk database as derived provides.
func parseApk(data []byte) map[string]string {
	return stanzas(data, func(f map[string]string) (name, version string, ok bool) {
		return constraint.NamespaceApk + "/" + f["P"], f["V"], true
	}, ":")
}

// stanzas reads paragraphs of "key<sep>value" lines. The last need not end in a
// blank line. A package that occurs in two versions is dropped, and so is one
// whose name or version cannot be a provide.
func stanzas(data []byte, take func(map[string]string) (name, version string, ok bool), sep string) map[string]string {
	out := map[string]string{}
	spoiled := map[string]bool{}
	fields := map[string]string{}
	flush := func() {
		if len(fields) == 0 {
			return
		}
		name, full, ok := take(fields)
		clear(fields)
		if !ok {
			return
		}
		if n, err := constraint.ParseName(name); err != nil || !n.Derived() {
			return
		}
		v, ok := upstreamCore(full)
		if before, had := out[name]; !ok || spoiled[name] || had && before != v {
			spoiled[name] = true
			delete(out, name)
			return
		}
		out[name] = v
	}
	for line := range strings.SplitSeq(string(data), "\n") {
		line = strings.TrimSuffix(line, "\r")
		if line == "" {
			flush()
			continue
		}
		if line[0] == ' ' || line[0] == '\t' {
			continue // continues a field that does not matter here
		}
		if key, value, ok := strings.Cut(line, strings.TrimSpace(sep)); ok {
			fields[key] = strings.TrimSpace(value)
		}
	}
	flush()
	return out
}

// upstreamCore returns the leading dotted numbers, at most three, of the
// upstream half of a package version. A tilde in that half marks a version that
// precedes the one it names: there is nothing true to say then.
func upstreamCore(full string) (string, bool) {
	v := full
	if i := strings.IndexByte(v, ':'); i >= 0 {
		v = v[i+1:] // epoch
	}
	if i := strings.LastIndexByte(v, '-'); i >= 0 {
		v = v[:i] // Debian revision, apk release
	}
	if strings.Contains(v, "~") {
		return "", false
	}
	var parts []string
	for len(parts) < 3 {
		n := 0
		for n < len(v) && v[n] >= '0' && v[n] <= '9' {
			n++
		}
		if n == 0 {
			break
		}
		parts = append(parts, v[:n])
		if n == len(v) || v[n] != '.' {
			break
		}
		v = v[n+1:]
	}
	return strings.Join(parts, "."), len(parts) > 0
}
