package platform

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A source is one entry of apt's configuration.
type source struct {
	uri, suite, signedBy string
	components           []string
}

// aptSources returns, as one-line entries, the sources of this machine that
// have suite, its updates or its security fixes in component main. Foreign
// archives (a vendor's, another suite's) are not part of the platform.
func aptSources(root, suite string) []string {
	var all []source
	lists, _ := filepath.Glob(filepath.Join(root, "etc/apt/sources.list.d/*.list"))
	for _, f := range append([]string{filepath.Join(root, "etc/apt/sources.list")}, lists...) {
		if data, err := os.ReadFile(f); err == nil {
			all = append(all, oneLine(string(data))...)
		}
	}
	stanzas, _ := filepath.Glob(filepath.Join(root, "etc/apt/sources.list.d/*.sources"))
	for _, f := range stanzas {
		if data, err := os.ReadFile(f); err == nil {
			all = append(all, deb822(string(data))...)
		}
	}
	var out []string
	for _, s := range all {
		if !slices.Contains([]string{suite, suite + "-updates", suite + "-security"}, s.suite) || !slices.Contains(s.components, "main") {
			continue
		}
		options := ""
		if s.signedBy != "" {
			options = fmt.Sprintf("[signed-by=%s] ", s.signedBy)
		}
		if line := fmt.Sprintf("deb %s%s %s main", options, s.uri, s.suite); !slices.Contains(out, line) {
			out = append(out, line)
		}
	}
	// Updates without the release itself install nothing.
	if !slices.ContainsFunc(out, func(l string) bool { return strings.HasSuffix(l, " "+suite+" main") }) {
		return nil
	}
	return out
}

// oneLine reads the traditional form: deb [options] uri suite component….
func oneLine(text string) []source {
	var out []source
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if kind != "deb" {
			continue
		}
		var s source
		rest = strings.TrimSpace(rest)
		if strings.HasPrefix(rest, "[") {
			options, after, ok := strings.Cut(rest[1:], "]")
			if !ok {
				continue
			}
			for _, o := range strings.Fields(options) {
				if k, v, _ := strings.Cut(o, "="); strings.EqualFold(k, "signed-by") && filepath.IsAbs(v) {
					s.signedBy = v
				}
			}
			rest = after
		}
		f := strings.Fields(rest)
		if len(f) < 3 {
			continue
		}
		s.uri, s.suite, s.components = f[0], f[1], f[2:]
		out = append(out, s)
	}
	return out
}

// deb822 reads the form of stanzas with fields.
func deb822(text string) []source {
	var out []source
	fields := map[string]string{}
	last := ""
	flush := func() {
		if slices.Contains(strings.Fields(fields["types"]), "deb") && !strings.EqualFold(strings.TrimSpace(fields["enabled"]), "no") {
			signed := strings.TrimSpace(fields["signed-by"])
			if !filepath.IsAbs(signed) || strings.ContainsAny(signed, " \n") {
				signed = "" // a key written out; mmdebstrap has the distribution's own
			}
			for _, uri := range strings.Fields(fields["uris"]) {
				for _, suite := range strings.Fields(fields["suites"]) {
					out = append(out, source{uri: uri, suite: suite, signedBy: signed, components: strings.Fields(fields["components"])})
				}
			}
		}
		fields, last = map[string]string{}, ""
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.TrimSpace(line) == "":
			flush()
		case line[0] == ' ' || line[0] == '\t':
			if last != "" {
				fields[last] += "\n" + strings.TrimSpace(line)
			}
		default:
			if k, v, ok := strings.Cut(line, ":"); ok {
				last = strings.ToLower(strings.TrimSpace(k))
				fields[last] = strings.TrimSpace(v)
			}
		}
	}
	flush()
	return out
}
