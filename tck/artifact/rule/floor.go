package rule

import (
	"path"
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/content"
	"github.com/kitbox-dev/kitbox/tck/artifact/tree"
)

const idFloor = "SPEC-v3 §3.5/workload-base-should-match-runtime"

// What content may assume of a base (§12). One of each is enough.
var floorFiles = []struct {
	what  string
	names []string
}{
	{"sh", []string{"/bin/sh", "/usr/bin/sh"}},
	{"bash", []string{"/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash"}},
	{"git", []string{"/usr/bin/git", "/usr/local/bin/git", "/bin/git"}},
	{"a CA store", []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/cert.pem", "/etc/pki/tls/certs/ca-bundle.crt"}},
}

// platformFloor finds what a workload lacks of that. Mixins, hooks and agents
// count on it without asking.
func (j *judge) platformFloor() {
	if j.doc.Kind != spec.KindWorkload {
		j.skip("not a workload")
		return
	}
	for _, im := range j.Images {
		var lacks []string
		for _, f := range floorFiles {
			if !slices.ContainsFunc(f.names, func(n string) bool { _, _, ok := tree.Resolve(im.Files, n); return ok }) {
				lacks = append(lacks, f.what)
			}
		}
		if !im.hasAgent() {
			lacks = append(lacks, "a user agent of uid 1000")
		}
		if len(lacks) > 0 {
			j.fail(im, "", "its file system lacks %s", strings.Join(lacks, ", "))
		}
	}
}

func (im *Image) hasAgent() bool {
	text, _ := tree.Text(im.Files, passwdFile)
	for line := range strings.Lines(text) {
		if f := strings.Split(line, ":"); len(f) > 2 && f[0] == "agent" && f[2] == "1000" {
			return true
		}
	}
	return false
}

// commentAlone finds recipes that carry the descriptor in their comments though
// the descriptor names another recipe.
func (j *judge) commentAlone() {
	d := j.doc
	if d.Build == "" && d.Dockerfile == "" && len(d.Kits) == 0 {
		j.skip("the descriptor names no recipe")
		return
	}
	for _, im := range j.Images {
		stem := j.own(im)
		if stem == "" {
			continue
		}
		at := path.Join(content.StageRoot, stem, content.StagedRecipe)
		text, _ := im.Files.Read(at)
		if _, ok := spec.ExtractComment(text); ok {
			j.fail(im, at, "holds a descriptor in its comments, and the descriptor names content of its own")
		}
	}
}
