// Package rule is what a Kit as an artifact is judged by: one rule for each
// statement of the specification about descriptor, annotations, config and file
// system (§9, §10), and about what well-known capability types ask of an image.
//
// It is pure: documents and a view of the files are handed in. So the same rules
// judge what was published, in package artifact, and what a builder is about to
// export, before it does.
package rule

import (
	"fmt"
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/annotation"
	"github.com/kitbox-dev/kitbox/spec/constraint"
	"github.com/kitbox-dev/kitbox/tck"
	"github.com/kitbox-dev/kitbox/tck/artifact/tree"
)

// A Finding is one way in which an artifact is not as it should be.
type Finding struct {
	Statement string      `json:"statement"`
	Section   string      `json:"section"` // of the specification, or the capability's page
	Outcome   tck.Outcome `json:"outcome"` // fail or warn
	Platform  string      `json:"platform,omitzero"`
	At        string      `json:"at,omitzero"` // annotation key, dotted path or file
	Message   string      `json:"message"`
}

// A Subject is what is judged.
type Subject struct {
	Index  *ocispec.Index // nil for a single manifest
	Images []*Image       // at least one

	// Partial means that the index has platforms that are not judged.
	Partial bool

	// Draft means that nothing has been exported: manifests hold annotations
	// only, there are no layers, and rules about those are not applied.
	Draft bool

	// Listed has the Kits that a set lists, by the digest that it pins, as far
	// as they were asked for.
	Listed map[string]Lookup

	// Broken is what is wrong with layers that could not be read to their end,
	// or are not what they should be.
	Broken []Finding
}

// An Image is one platform's.
type Image struct {
	Platform   string // as the config states it
	Descriptor ocispec.Descriptor
	Manifest   ocispec.Manifest
	Config     ocispec.Image

	// Files is the file system. It is nil if that cannot be read.
	Files tree.View

	// Layers is the same as its layers make it. It is nil in a draft.
	Layers *tree.Tree
}

// A Judgement is what came of it. Verdicts has one entry for every statement
// that was looked at, in the order of the rules.
type Judgement struct {
	Kind     string // of the descriptor; empty if it cannot be read
	Findings []Finding
	Verdicts []tck.Verdict
}

// Keep names the files whose content the rules look at.
func Keep(name string) bool { return keep(name) }

// Judge judges s by all rules.
func Judge(s *Subject) *Judgement {
	j := &judge{Subject: s, out: &Judgement{Findings: []Finding{}}}
	var index map[string]string
	if s.Index != nil {
		index = s.Index.Annotations
	}
	for _, im := range s.Images {
		if j.text == "" {
			j.text, _ = annotation.Discover(index, im.Manifest.Annotations)
		}
	}
	if j.text != "" {
		j.doc, j.grammar = spec.Decode([]byte(j.text), spec.Options{Form: capability.Published})
		if j.doc != nil {
			j.grammar = append(j.grammar, j.doc.Validate()...)
			j.out.Kind = j.doc.Kind
		}
	}
	for i := range rules {
		j.run(&rules[i])
	}
	return j.out
}

// A judge is one run over one subject.
type judge struct {
	*Subject
	text    string         // the descriptor a reader of the reference finds
	doc     *spec.Document // nil if it cannot be read
	grammar spec.Diagnostics
	staging map[*Image]map[string]stagedDescriptor
	placed  map[*Image]*placing
	offers  map[string]constraint.Provide // what a set provides; nil: not read yet
	sets    map[*Image]*merging

	rule     *rule
	findings []Finding // of the rule
	skipped  string
	waived   string
	out      *Judgement
}

func (j *judge) report(o tck.Outcome, id, platform, at, format string, args ...any) {
	j.findings = append(j.findings, Finding{id, section(id), o, platform, at, fmt.Sprintf(format, args...)})
}

// fail reports that the current rule is broken; what only should be is a
// warning.
func (j *judge) fail(im *Image, at, format string, args ...any) {
	j.failBy(j.rule.id, im, at, format, args...)
}

// failBy reports that another statement is broken, which the current rule looks
// after too.
func (j *judge) failBy(id string, im *Image, at, format string, args ...any) {
	o, platform := tck.Fail, ""
	if s, ok := tck.Lookup(id); ok && !s.Level.Binding() {
		o = tck.Warn
	}
	if im != nil && len(j.Images) > 1 {
		platform = im.Platform
	}
	j.report(o, id, platform, at, format, args...)
}

// skip says why the current rule does not concern the artifact.
func (j *judge) skip(why string) { j.skipped = why }

// waive says why the current rule cannot be judged, if nothing else is wrong.
func (j *judge) waive(why string) { j.waived = why }

// section returns what a statement's id says about where it stands.
func section(id string) string {
	s, _, _ := strings.Cut(strings.TrimPrefix(id, "SPEC-v3 "), "/")
	return s
}

// run judges by one rule and gives a verdict for each statement it reported.
func (j *judge) run(ru *rule) {
	j.rule, j.findings, j.skipped, j.waived = ru, nil, "", ""
	switch {
	case ru.waived != "":
		j.out.Verdicts = append(j.out.Verdicts, tck.Verdict{Statement: ru.id, Check: ru.check, Outcome: tck.Waived, Message: ru.waived})
		return
	case ru.exported && j.Draft:
		j.skip("nothing has been exported")
	case ru.needs >= readable && j.doc == nil:
		j.skip("the descriptor cannot be read")
	case ru.needs >= files && slices.ContainsFunc(j.Images, func(im *Image) bool { return im.Files == nil }):
		j.skip("the layers cannot be read")
	default:
		ru.judge(j)
	}
	j.out.Findings = append(j.out.Findings, j.findings...)
	verdict := func(id string) tck.Verdict {
		v := tck.Verdict{Statement: id, Check: ru.check, Outcome: tck.Pass}
		var messages []string
		for _, f := range j.findings {
			if f.Statement == id {
				messages = append(messages, f.Message)
				if v.Outcome != tck.Fail {
					v.Outcome = f.Outcome
				}
			}
		}
		v.Message = strings.Join(messages, "; ")
		return v
	}
	own := verdict(ru.id)
	switch {
	case own.Outcome != tck.Pass:
	case j.skipped != "":
		own.Outcome, own.Message = tck.Skipped, j.skipped
	case j.waived != "":
		own.Outcome, own.Message = tck.Waived, j.waived
	}
	j.out.Verdicts = append(j.out.Verdicts, own)
	seen := []string{ru.id}
	for _, f := range j.findings {
		if !slices.Contains(seen, f.Statement) {
			seen = append(seen, f.Statement)
			v := verdict(f.Statement)
			v.Check = ""
			if s, ok := tck.Lookup(f.Statement); ok {
				v.Check = s.Text
			}
			j.out.Verdicts = append(j.out.Verdicts, v)
		}
	}
}
