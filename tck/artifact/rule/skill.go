package rule

import (
	"bytes"
	"path"
	"strings"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/agentskill"
	"github.com/kitbox-dev/kitbox/spec/source"
	"github.com/kitbox-dev/kitbox/tck/artifact/tree"
)

// skillFile is at the root of every skill.
const skillFile = "SKILL.md"

// eachSkill calls f for every skill of the Kit on every platform, with the place
// of its SKILL.md and what stands there.
func (j *judge) eachSkill(f func(im *Image, c agentskill.Config, at string, e tree.Entry, there bool)) {
	rs := j.requests(agentskill.Type)
	if len(rs) == 0 {
		j.skip("no " + agentskill.Type)
	}
	for _, r := range rs {
		c, err := agentskill.Decode(r)
		if err != nil {
			continue // said where the descriptor is judged
		}
		for _, im := range j.Images {
			dir, d, ok := tree.Resolve(im.Files, c.Path)
			at := path.Join(dir, skillFile)
			e, there := im.Files.At(at)
			f(im, c, at, e, ok && d.Kind == tree.Dir && there)
		}
	}
}

func (j *judge) skills() {
	j.eachSkill(func(im *Image, c agentskill.Config, _ string, e tree.Entry, there bool) {
		if !there || e.Kind != tree.File {
			j.fail(im, path.Join(c.Path, skillFile), "is not a regular file of the image")
		}
	})
}

// skillText reads the frontmatter of every skill. Agents find a skill by what it
// says there: one without a description is never used, and one under another
// name than its directory's is not loaded by all of them.
func (j *judge) skillText() {
	j.eachSkill(func(im *Image, c agentskill.Config, at string, e tree.Entry, there bool) {
		text, ok := im.Files.Read(at)
		if !there || e.Kind != tree.File || !ok {
			return // said by the rule before
		}
		head, ok := frontmatter(text)
		if !ok {
			j.fail(im, at, "does not begin with a frontmatter, lines of YAML between two of ---")
			return
		}
		root, err := source.Parse(string(head))
		if err != nil || root == nil || root.Kind != source.Object {
			j.fail(im, at, "has a frontmatter that is no YAML mapping")
			return
		}
		field := func(name string) string {
			if n := root.Child(name); n != nil && n.Kind == source.Text {
				return strings.TrimSpace(n.Text)
			}
			return ""
		}
		if field("description") == "" {
			j.fail(im, at, "has no description in its frontmatter: agents choose a skill by it")
		}
		name := c.SkillName()
		if got := field("name"); got != name && !capability.HasReference(name) {
			j.fail(im, at, "is named %q in its frontmatter, and the skill is %q", got, name)
		}
	})
}

// frontmatter returns the lines between the first two of "---".
func frontmatter(text []byte) ([]byte, bool) {
	text = bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))
	rest, ok := bytes.CutPrefix(text, []byte("---\n"))
	if !ok {
		return nil, false
	}
	if head, _, ok := bytes.Cut(rest, []byte("\n---\n")); ok {
		return head, true
	}
	return bytes.CutSuffix(rest, []byte("\n---"))
}
