// Package artifact judges a published Kit: its manifest, its config, and the
// file system that its layers make, by what the specification says of artifacts
// (§9, §10) and by what well-known capability types ask of an image.
//
// It looks only at what was published, so it can judge Kits of any builder. It
// links the pure libraries of the grammar and neither the builder nor the
// runtime: layers are read by an implementation of its own, package tree.
package artifact

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/resolve/packages"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/annotation"
	kitcontent "github.com/kitbox-dev/kitbox/spec/content"
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

// A Report is the judgement of one artifact. Verdicts has one entry for every
// statement that was looked at, in the order of the rules.
type Report struct {
	Ref       string        `json:"ref"`
	Digest    digest.Digest `json:"digest"`
	Kind      string        `json:"kind,omitzero"`
	Platforms []string      `json:"platforms"`
	Findings  []Finding     `json:"findings"`
	Verdicts  []tck.Verdict `json:"verdicts"`
	Tally     Tally         `json:"tally"`
}

// A Tally counts verdicts by outcome.
type Tally struct {
	Passed   int `json:"passed"`
	Failed   int `json:"failed"`
	Warnings int `json:"warnings"`
	Skipped  int `json:"skipped"` // does not concern this artifact
	Waived   int `json:"waived"`  // nobody can judge it from an artifact
}

// OK reports whether nothing binding is broken.
func (r *Report) OK() bool { return r.Tally.Failed == 0 }

// An image is a platform's with what was read of it.
type image struct {
	Image
	text string // the descriptor annotation of its manifest
	fs   tree.Tree
}

// A judge is one run over one artifact.
type judge struct {
	*Artifact
	images []*image
	text   string         // the descriptor a reader of the reference finds
	doc    *spec.Document // nil if it cannot be read
	whole  bool           // all layers of all images were read
	broken []Finding      // about layers that could not be

	findings []Finding
	rule     *rule
	skipped  string
}

func (j *judge) report(o tck.Outcome, id, platform, at, format string, args ...any) {
	j.findings = append(j.findings, Finding{id, section(id), o, platform, at, fmt.Sprintf(format, args...)})
}

// fail reports that the current rule is broken; what only should be is a
// warning.
func (j *judge) fail(im *image, at, format string, args ...any) {
	o, platform := tck.Fail, ""
	if s, ok := tck.Lookup(j.rule.id); ok && !s.Level.Binding() {
		o = tck.Warn
	}
	if im != nil && len(j.images) > 1 {
		platform = im.Platform
	}
	j.report(o, j.rule.id, platform, at, format, args...)
}

// skip says why the current rule does not concern the artifact.
func (j *judge) skip(why string) { j.skipped = why }

// section returns what a statement's id says about where it stands.
func section(id string) string {
	s, _, _ := strings.Cut(strings.TrimPrefix(id, "SPEC-v3 "), "/")
	return s
}

// Judge reads the layers of a and judges it by all rules. An error means that it
// could not be judged.
func Judge(ctx context.Context, a *Artifact) (*Report, error) {
	j := &judge{Artifact: a}
	var index map[string]string
	if a.Index != nil {
		index = a.Index.Annotations
	}
	for _, im := range a.Images {
		i := &image{Image: im, text: im.Manifest.Annotations[annotation.Descriptor]}
		j.images = append(j.images, i)
		if j.text == "" {
			j.text, _ = annotation.Discover(index, im.Manifest.Annotations)
		}
	}
	var ds spec.Diagnostics
	if j.text != "" {
		j.doc, ds = spec.Decode([]byte(j.text), spec.Options{Form: capability.Published})
		if j.doc != nil {
			ds = append(ds, j.doc.Validate()...)
		}
	}
	if err := j.read(ctx); err != nil {
		return nil, err
	}

	r := &Report{Ref: a.Ref, Digest: a.Root.Digest, Findings: []Finding{}}
	if j.doc != nil {
		r.Kind = j.doc.Kind
	}
	for _, im := range j.images {
		r.Platforms = append(r.Platforms, im.Platform)
	}
	for i := range rules {
		j.run(&rules[i], ds, r)
	}
	for _, v := range r.Verdicts {
		switch v.Outcome {
		case tck.Pass:
			r.Tally.Passed++
		case tck.Fail:
			r.Tally.Failed++
		case tck.Warn:
			r.Tally.Warnings++
		case tck.Skipped:
			r.Tally.Skipped++
		case tck.Waived:
			r.Tally.Waived++
		}
	}
	return r, nil
}

// run judges by one rule and gives a verdict for each statement it reported.
func (j *judge) run(ru *rule, ds spec.Diagnostics, r *Report) {
	j.rule, j.findings, j.skipped = ru, nil, ""
	switch {
	case ru.waived != "":
		r.Verdicts = append(r.Verdicts, tck.Verdict{Statement: ru.id, Check: ru.check, Outcome: tck.Waived, Message: ru.waived})
		return
	case ru.id == idValid:
		j.descriptor(ds)
	case ru.needs >= readable && j.doc == nil:
		j.skip("the descriptor cannot be read")
	case ru.needs >= layers && !j.whole:
		j.skip("the layers cannot be read")
	default:
		ru.judge(j)
	}
	r.Findings = append(r.Findings, j.findings...)
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
	if own.Outcome == tck.Pass && j.skipped != "" {
		own.Outcome, own.Message = tck.Skipped, j.skipped
	}
	r.Verdicts = append(r.Verdicts, own)
	seen := []string{ru.id}
	for _, f := range j.findings {
		if !slices.Contains(seen, f.Statement) {
			seen = append(seen, f.Statement)
			v := verdict(f.Statement)
			v.Check = ""
			if s, ok := tck.Lookup(f.Statement); ok {
				v.Check = s.Text
			}
			r.Verdicts = append(r.Verdicts, v)
		}
	}
}

// descriptor reports what the grammar found, under the grammar's own statements
// where it names one.
func (j *judge) descriptor(ds spec.Diagnostics) {
	if j.text == "" {
		j.skip("there is no descriptor")
		return
	}
	for _, d := range ds {
		id, o := d.Statement, tck.Warn
		if _, known := tck.Lookup(id); !known {
			id = idValid
		}
		if d.Severity == spec.Error {
			o = tck.Fail
		}
		j.report(o, id, "", d.Path, "%s", d.Message)
	}
	if j.doc == nil && len(j.findings) == 0 {
		j.fail(nil, annotation.Descriptor, "holds no descriptor")
	}
}

// read reads all layers. What is wrong with a layer is kept for the rule that
// reports it; only what keeps the judge from looking is an error.
func (j *judge) read(ctx context.Context) error {
	j.whole = true
	set := j.doc != nil && len(j.doc.Kits) > 0
	for _, im := range j.images {
		im.fs.Keep, im.fs.Hash = keep, set
		for n, d := range im.Manifest.Layers {
			id, err := j.layer(ctx, d, func(r io.Reader) error { return im.fs.Add(ctx, r) })
			switch at := fmt.Sprintf("layers[%d]", n); {
			case err == nil && n < len(im.Config.RootFS.DiffIDs) && id != im.Config.RootFS.DiffIDs[n]:
				j.broken = append(j.broken, Finding{Platform: im.Platform, At: at, Message: fmt.Sprintf("unpacks to %s; the config states %s", id, im.Config.RootFS.DiffIDs[n])})
			case err == nil:
			case errors.Is(err, errContent):
				j.whole = false
				j.broken = append(j.broken, Finding{Platform: im.Platform, At: at, Message: err.Error()})
			default:
				return err
			}
			if !j.whole {
				break
			}
		}
	}
	return nil
}

// keep names the files whose content the rules look at.
func keep(name string) bool {
	switch name {
	case passwdFile, groupFile, packages.DpkgStatus, packages.ApkInstalled, "/usr" + packages.ApkInstalled:
		return true
	}
	base := path.Base(name)
	return strings.HasPrefix(name, kitcontent.StageRoot+"/") && (base == kitcontent.StagedDescriptor || base == kitcontent.StagedRecipe)
}
