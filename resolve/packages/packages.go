// Package packages reads the databases of a distribution's package manager and
// says what a workload provides because it is installed (§9.6).
//
// It is handed the text of the files. Finding them in an image, and merging the
// result into a descriptor, is for the builder.
package packages

import (
	"maps"
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/spec/constraint"
)

// The files of a root file system that are read.
const (
	DpkgStatus   = "/var/lib/dpkg/status"
	ApkInstalled = "/lib/apk/db/installed"
)

// A Database is what one platform's image holds. Empty text means no such file.
type Database struct {
	Dpkg string // of DpkgStatus
	Apk  string // of ApkInstalled
}

// Derive returns the provides that all platforms agree on, sorted. A name that
// one platform lacks, has in another version, or has in a version that cannot
// be stated is left out. No platforms provide nothing.
func Derive(platforms []Database) []string {
	if len(platforms) == 0 {
		return nil
	}
	agreed := platforms[0].provides()
	for _, p := range platforms[1:] {
		other := p.provides()
		maps.DeleteFunc(agreed, func(name, version string) bool { return other[name] != version })
	}
	out := make([]string, 0, len(agreed))
	for name, version := range agreed {
		out = append(out, name+"@"+version)
	}
	slices.Sort(out)
	return out
}

// Check returns the entries in derived namespaces that the database does not
// bear out, in their order. Entries of other namespaces are none of its
// business. Do not call it for a published set: its entries were derived from
// the images it was merged from.
func Check(provides []string, db Database) []string {
	have := db.provides()
	var bad []string
	for _, entry := range provides {
		p, err := constraint.ParseProvide(entry)
		if err != nil || !p.Name.Derived() {
			continue
		}
		if v, ok := have[p.Name.String()]; !ok || v != p.Version {
			bad = append(bad, entry)
		}
	}
	return bad
}

// provides returns full names and their versions.
func (d Database) provides() map[string]string {
	out := make(map[string]string)
	t := tally{out, make(map[string]bool)}
	stanzas(d.Dpkg, func(f func(string) string) {
		if words := strings.Fields(f("Status")); len(words) == 3 && words[2] == "installed" {
			t.add(constraint.NamespaceDeb, f("Package"), f("Version"))
		}
	})
	stanzas(d.Apk, func(f func(string) string) { t.add(constraint.NamespaceApk, f("P"), f("V")) })
	return out
}

// A tally counts what a database states. A name it states in two ways, or in
// one that cannot be told, is spoiled for good.
type tally struct {
	versions map[string]string
	spoiled  map[string]bool
}

func (t tally) add(namespace, name, raw string) {
	full := namespace + "/" + name
	if n, err := constraint.ParseName(full); err != nil || n.String() != full {
		return
	}
	version := Version(raw)
	if old, ok := t.versions[full]; version == "" || ok && old != version {
		t.spoiled[full] = true
	}
	if t.spoiled[full] {
		delete(t.versions, full)
		return
	}
	t.versions[full] = version
}

// stanzas calls visit with a lookup of fields for every stanza of text. Lines
// that begin with a blank continue the field before.
func stanzas(text string, visit func(field func(string) string)) {
	fields := make(map[string]string)
	flush := func() {
		if len(fields) > 0 {
			visit(func(k string) string { return fields[k] })
			clear(fields)
		}
	}
	for line := range strings.SplitSeq(text, "\n") {
		line = strings.TrimSuffix(line, "\r")
		if strings.TrimSpace(line) == "" {
			flush()
			continue
		}
		if line[0] == ' ' || line[0] == '\t' {
			continue
		}
		if k, v, ok := strings.Cut(line, ":"); ok {
			if _, repeated := fields[k]; !repeated {
				fields[k] = strings.TrimSpace(v)
			}
		}
	}
	flush()
}

// maxParts bounds the numbers of a derived version.
const maxParts = 3

// Version returns the leading dotted-numeric core of a package version, at most
// three parts, without epoch, revision or release; "" if there is none or the
// upstream half marks a pre-release with a tilde.
func Version(raw string) string {
	if epoch, rest, ok := strings.Cut(raw, ":"); ok && epoch != "" && strings.Trim(epoch, "0123456789") == "" {
		raw = rest
	}
	upstream := raw
	if i := strings.LastIndexByte(raw, '-'); i >= 0 {
		upstream = raw[:i]
	}
	if strings.Contains(upstream, "~") {
		return ""
	}
	end, parts := 0, 0
	for parts < maxParts {
		i := end
		if parts > 0 {
			if i >= len(upstream) || upstream[i] != '.' {
				break
			}
			i++
		}
		start := i
		for i < len(upstream) && upstream[i] >= '0' && upstream[i] <= '9' {
			i++
		}
		if i == start {
			break
		}
		end = i
		parts++
	}
	return upstream[:end]
}
