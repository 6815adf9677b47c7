package rule

import (
	"bytes"
	"path"
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/assemble/passwd"
	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/agentcontext"
	"github.com/kitbox-dev/kitbox/capability/sbx"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/content"
	"github.com/kitbox-dev/kitbox/tck/artifact/tree"
)

// The account files.
const (
	passwdFile = "/etc/passwd"
	groupFile  = "/etc/group"
)

func (j *judge) workloadContent() {
	if j.doc.Kind != spec.KindWorkload {
		j.skip("not a workload")
		return
	}
	for _, im := range j.Images {
		found := false
		tree.Walk(im.Files, "/", func(name string, e tree.Entry) bool {
			found = e.Kind == tree.File && !under(name, content.StageRoot)
			return !found
		})
		if !found {
			j.fail(im, "", "its layers hold no file but the staged sources")
		}
	}
}

// stems returns the names under which descriptors are staged, sorted.
func (im *Image) stems() []string {
	var out []string
	for _, stem := range im.Files.Names(content.StageRoot) {
		if e, ok := im.Files.At(path.Join(content.StageRoot, stem, content.StagedDescriptor)); ok && e.Kind == tree.File {
			out = append(out, stem)
		}
	}
	return out
}

// A stagedDescriptor is one as publishing encodes it, and decoded. The document is
// nil if it cannot be read.
type stagedDescriptor struct {
	text []byte
	doc  *spec.Document
}

// stagedAs returns the staged descriptor of a stem. Many rules ask, and a layer
// can hold many large ones.
func (j *judge) stagedAs(im *Image, stem string) stagedDescriptor {
	if j.staging == nil {
		j.staging = map[*Image]map[string]stagedDescriptor{}
	}
	if j.staging[im] == nil {
		j.staging[im] = map[string]stagedDescriptor{}
	}
	d, done := j.staging[im][stem]
	if done {
		return d
	}
	text, _ := im.Files.Read(path.Join(content.StageRoot, stem, content.StagedDescriptor))
	if doc, ds := spec.Decode(text, spec.Options{Form: capability.Published}); doc != nil && !ds.HasErrors() {
		if b, err := doc.Descriptor.AppendJSON(nil); err == nil {
			d = stagedDescriptor{b, doc}
		}
	}
	j.staging[im][stem] = d
	return d
}

// own returns the stem under which the Kit itself is staged, or "".
func (j *judge) own(im *Image) string {
	want, err := j.doc.Descriptor.AppendJSON(nil)
	if err != nil {
		return ""
	}
	for _, stem := range im.stems() {
		if d := j.stagedAs(im, stem); d.doc != nil && bytes.Equal(d.text, want) {
			return stem
		}
	}
	return ""
}

// Sources are the places of what a Kit stages of its own sources.
type Sources struct {
	Descriptor string
	Recipe     string // where one would be; empty for a set, which has none
}

// StagedSources finds, in a view of its files, where the Kit with this
// descriptor stages its own sources. The zero value means that it does not.
func StagedSources(doc *spec.Document, v tree.View) Sources {
	j := &judge{doc: doc}
	stem := j.own(&Image{Files: v})
	if stem == "" {
		return Sources{}
	}
	s := Sources{Descriptor: path.Join(content.StageRoot, stem, content.StagedDescriptor)}
	if len(doc.Kits) == 0 {
		s.Recipe = path.Join(content.StageRoot, stem, content.StagedRecipe)
	}
	return s
}

func (j *judge) staged() {
	for _, im := range j.Images {
		switch stems := im.stems(); {
		case len(stems) == 0:
			j.fail(im, content.StageRoot, "there is no %s below it", content.StagedDescriptor)
		case j.own(im) == "":
			j.fail(im, path.Join(content.StageRoot, strings.Join(stems, ","), content.StagedDescriptor), "does not say what the descriptor annotation says")
		}
	}
}

func (j *judge) recipe() {
	switch d := j.doc; {
	case len(d.Kits) > 0:
		j.skip("a set has no recipe")
		return
	case d.Kind != spec.KindWorkload && d.Build == "" && d.Dockerfile == "":
		j.skip("nothing says that the Kit has a recipe")
		return
	}
	for _, im := range j.Images {
		stem := j.own(im)
		if stem == "" {
			j.skip("the descriptor is not staged")
			continue
		}
		at := path.Join(content.StageRoot, stem, content.StagedRecipe)
		if e, ok := im.Files.At(at); !ok || e.Kind != tree.File {
			j.fail(im, at, "is missing")
			continue
		}
		// Text that the descriptor holds is handed over verbatim (§3.2).
		text, ok := im.Files.Read(at)
		if ok && j.doc.Build != "" && strings.TrimRight(string(text), "\n") != strings.TrimRight(j.doc.Build, "\n") {
			j.fail(im, at, "is not the recipe that the descriptor holds in build")
		}
	}
}

// The owners that every base gives these directories.
const (
	homeDir  = "/home"
	agentDir = "/home/agent"
	agentUID = 1000
)

func (j *judge) home() {
	if j.doc.Kind != spec.KindMixin {
		j.skip("not a mixin")
		return
	}
	for _, im := range j.Images {
		for _, want := range []struct {
			dir string
			uid int
		}{{homeDir, 0}, {agentDir, agentUID}} {
			e, ok := im.Files.At(want.dir)
			switch {
			case !ok || e.Kind == tree.Dir && !e.Stated:
			case e.Kind != tree.Dir:
				j.fail(im, want.dir, "is no directory; on every base it would take the place of user %d's", want.uid)
			case e.UID != want.uid:
				j.fail(im, want.dir, "belongs to user %d; on every base it would be taken from user %d", e.UID, want.uid)
			}
		}
	}
}

// floor lists what every base has, so that a mixin's links into it resolve.
var floor = []string{"/bin/sh", "/bin/bash", "/usr/bin/bash", "/usr/bin/git", "/usr/bin/curl", "/dev", "/proc"}

func (j *judge) links() {
	if j.doc.Kind != spec.KindMixin {
		j.skip("not a mixin")
		return
	}
	for _, im := range j.Images {
		n := 0
		bounded, _ := im.Files.(tree.Bounded)
		whole := tree.Walk(im.Files, "/", func(p string, e tree.Entry) bool {
			if bounded != nil && bounded.Spare() == 0 {
				return false
			}
			if e.Kind != tree.Symlink || reaches(im.Files, p, e.Link) {
				return true
			}
			if n++; n <= few {
				j.fail(im, p, "leads to %q, which the mixin does not ship", e.Link)
			}
			return true
		})
		if n > few {
			j.fail(im, "", "%d more lead to what the mixin does not ship", n-few)
		}
		if !whole {
			j.fail(im, "", "the mixin has more directories than are looked at now, so that links of it are not judged; kit-tck validate judges them all")
		}
	}
}

// few is how many of many alike findings are listed.
const few = 5

// reaches reports whether a link leads to what is shipped, or to what every base
// has.
func reaches(v tree.View, at, link string) bool {
	to := link
	if !path.IsAbs(to) {
		to = path.Join(path.Dir(at), to)
	}
	if slices.ContainsFunc(floor, func(f string) bool { return under(path.Clean(to), f) }) {
		return true
	}
	_, _, ok := tree.Resolve(v, at)
	return ok
}

// requests returns the entries of a type, members of groups included.
func (j *judge) requests(typ string) []capability.Request {
	return slices.DeleteFunc(j.doc.Requests(), func(r capability.Request) bool { return r.Type != typ })
}

func (j *judge) guidance() {
	rs := j.requests(agentcontext.Type)
	any := false
	for _, r := range rs {
		c, ok := agentcontext.Peek(r)
		if !ok || c.ContentFile == "" || capability.HasReference(c.ContentFile) {
			continue
		}
		any = true
		for _, im := range j.Images {
			if _, e, ok := tree.Resolve(im.Files, c.ContentFile); !path.IsAbs(c.ContentFile) || !ok || e.Kind != tree.File {
				j.fail(im, c.ContentFile, "is not a file of the image")
			}
		}
	}
	if !any {
		j.skip("no guidance is named as a file")
	}
}

// operated reports whether the Kit is a workload that declares sbx@1.
func (j *judge) operated() bool {
	if j.doc.Kind == spec.KindWorkload && len(j.requests(sbx.Type)) > 0 {
		return true
	}
	j.skip("not a workload with " + sbx.Type)
	return false
}

func (j *judge) declaresUser() {
	if !j.operated() {
		return
	}
	for _, im := range j.Images {
		if im.Config.Config.User == "" {
			j.fail(im, "config.User", "is empty")
		}
	}
}

// user resolves the user of an image in its own account files.
func (im *Image) user() (passwd.User, error) {
	accounts, _ := tree.Text(im.Files, passwdFile)
	groups, _ := tree.Text(im.Files, groupFile)
	return passwd.Resolve(accounts, groups, im.Config.Config.User)
}

func (j *judge) userResolves() {
	if !j.operated() {
		return
	}
	for _, im := range j.Images {
		if im.Config.Config.User == "" {
			j.skip("the image declares no user")
		} else if _, err := im.user(); err != nil {
			j.fail(im, "config.User", "%v", err)
		}
	}
}

func (j *judge) shell(name string) {
	if !j.operated() {
		return
	}
	for _, im := range j.Images {
		real, e, ok := tree.Resolve(im.Files, name)
		u, err := im.user()
		switch {
		case !ok:
			j.fail(im, name, "is not there, or leads nowhere")
		case e.Kind != tree.File:
			j.fail(im, name, "%s is not an ordinary file", real)
		case err != nil:
			if e.Mode&0o111 == 0 {
				j.fail(im, name, "%s cannot be executed", real)
			}
		case closed(im.Files, real, u) != "":
			dir := closed(im.Files, real, u)
			d, _ := im.Files.At(dir)
			j.fail(im, name, "%s is below %s (mode %#o, owner %d:%d), which user %d:%d cannot enter", real, dir, d.Mode, d.UID, d.GID, u.UID, u.GID)
		case !e.Executable(u.UID, u.GID):
			j.fail(im, name, "%s (mode %#o, owner %d:%d) cannot be executed by user %d:%d", real, e.Mode, e.UID, e.GID, u.UID, u.GID)
		}
	}
}

// closed returns the first directory on the way to a file, which holds no symlink,
// that a user cannot enter, or "".
func closed(v tree.View, file string, u passwd.User) string {
	for i := 1; i < len(file); i++ {
		if file[i] != '/' {
			continue
		}
		if d, ok := v.At(file[:i]); ok && u.UID != 0 && !d.Enterable(u.UID, u.GID) {
			return file[:i]
		}
	}
	return ""
}

func (j *judge) bashEnv() {
	if !j.operated() {
		return
	}
	for _, im := range j.Images {
		value, stated := "", false
		for _, kv := range im.Config.Config.Env {
			if k, v, _ := strings.Cut(kv, "="); k == "BASH_ENV" {
				value, stated = v, true
			}
		}
		_, e, ok := tree.Resolve(im.Files, value)
		switch {
		case !stated:
			j.fail(im, "config.Env", "BASH_ENV is not set: what the sandbox adds to the environment later does not reach the agent")
		case !path.IsAbs(value):
			j.fail(im, "config.Env", "BASH_ENV is %q, which is not absolute", value)
		case !ok || e.Kind != tree.File:
			j.fail(im, value, "is what BASH_ENV names, and not a file of the image")
		}
	}
}
