package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/spec/source"
)

// A block is fenced text of a page with the file name that the line above it
// gives.
type block struct{ file, language, text string }

var (
	fence  = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")
	naming = regexp.MustCompile("`([a-z0-9./-]+)`:\\s*$")

	// versioned is a type in a title, whose name may be that of the one before.
	versioned = regexp.MustCompile(`([a-z-]*)(@[0-9]+)`)
)

func blocks(page string) (out []block) {
	for _, m := range fence.FindAllStringSubmatchIndex(page, -1) {
		b := block{language: page[m[2]:m[3]], text: page[m[4]:m[5]]}
		if n := naming.FindStringSubmatch(page[:m[0]]); n != nil {
			b.file = n[1]
		}
		out = append(out, b)
	}
	return out
}

// TestDescriptorsInPagesAreValid checks every whole descriptor that a skill or a
// page shows, with the recipe that stands beside it.
func TestDescriptorsInPagesAreValid(t *testing.T) {
	var pages []string
	for _, pattern := range []string{"../skills/*/SKILL.md", "../docs/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	checked := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		here := 0
		for _, b := range blocks(string(text)) {
			if b.file == "" || b.language != "yaml" && b.language != "dockerfile" {
				continue
			}
			file := filepath.Join(dir, filepath.FromSlash(b.file))
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(b.text), 0o644); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(b.text, "schemaVersion:") {
				here++
			}
		}
		if here == 0 {
			if strings.Contains(string(text), "\nschemaVersion: \"3\"\n") {
				t.Errorf("%s shows a descriptor and does not name its file, as in `x/x.yaml`:", page)
			}
			continue
		}
		checked += here
		cmd := exec.Command("/proc/self/exe", "kit", "check", "--strict", dir)
		cmd.Args[0] = "kitbox"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", page, err, strings.ReplaceAll(string(out), dir+"/", ""))
		}
	}
	if checked < 4 {
		t.Errorf("%d descriptors were found", checked)
	}
}

// TestBlocksOfPagesPassTheGrammar checks every piece of YAML on the pages about
// capabilities and about writing: a whole descriptor as it is, a list of
// capabilities or other keys of a descriptor in one that is made for it. Every
// page of a capability has an example of it.
func TestBlocksOfPagesPassTheGrammar(t *testing.T) {
	pages, err := filepath.Glob("../docs/capabilities/*.md")
	if err != nil || len(pages) < 13 {
		t.Fatalf("%q, %v", pages, err)
	}
	const head = "schemaVersion: \"3\"\nkind: workload\nprovides: [example]\nversion: \"1.0.0\"\n"
	for _, page := range append(pages, "../docs/authoring.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		here := 0
		for i, b := range blocks(string(text)) {
			if b.language != "yaml" {
				continue
			}
			here++
			descriptor := b.text
			switch {
			case strings.Contains(b.text, "schemaVersion:"):
			case strings.HasPrefix(b.text, "- type:"):
				descriptor = head + "capabilities:\n" + b.text
			default:
				descriptor = head + b.text
			}
			file := filepath.Join(t.TempDir(), "example.yaml")
			if err := os.WriteFile(file, []byte(descriptor), 0o644); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("/proc/self/exe", "kit", "check", file)
			cmd.Args[0] = "kitbox"
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s, block %d: %v\n%s%s", page, i+1, err, out, descriptor)
			}
		}
		title, _, _ := strings.Cut(string(text), "\n")
		name := ""
		for _, m := range versioned.FindAllStringSubmatch(title, -1) {
			if m[1] != "" {
				name = m[1]
			}
			if typ := "- type: com.docker.sandbox/" + name + m[2]; !strings.Contains(string(text), "\n"+typ) {
				t.Errorf("%s has no example of %s", page, typ)
			}
		}
		if here == 0 {
			t.Errorf("%s has no example", page)
		}
	}
}

// TestSkillsAreSkills holds the skills against what agents ask of one.
func TestSkillsAreSkills(t *testing.T) {
	skills, err := filepath.Glob("../skills/*/SKILL.md")
	if err != nil || len(skills) < 2 {
		t.Fatalf("%q, %v", skills, err)
	}
	example, err := filepath.Glob("../examples/*/skills/*/SKILL.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(skills, example...) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		rest, ok := strings.CutPrefix(string(text), "---\n")
		head, body, closed := strings.Cut(rest, "\n---\n")
		root, err := source.Parse(head)
		if !ok || !closed || err != nil || root == nil || root.Kind != source.Object {
			t.Errorf("%s has no frontmatter: %v", file, err)
			continue
		}
		want := filepath.Base(filepath.Dir(file))
		name, about := root.Child("name"), root.Child("description")
		if name == nil || name.Text != want || about == nil || len(about.Text) < 40 || len(about.Text) > 1024 || !strings.Contains(about.Text, "Use it when") {
			t.Errorf("%s: name and description do not say what the skill is and when to use it", file)
		}
		if len(strings.Split(body, "\n")) > 500 {
			t.Errorf("%s is longer than an agent should load", file)
		}
	}
}
