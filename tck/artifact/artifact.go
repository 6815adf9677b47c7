// Package artifact judges a published Kit: its manifest, its config, and the
// file system that its layers make, by what the specification says of artifacts
// (§9, §10) and by what well-known capability types ask of an image.
//
// It looks only at what was published, so it can judge Kits of any builder. It
// links the pure libraries of the grammar and neither the builder nor the
// runtime: layers are read by an implementation of its own, package tree. What a
// Kit is judged by is in package rule. A registry may send anything: documents,
// layers, the number of images and the time for an answer are bounded.
package artifact

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/opencontainers/go-digest"

	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/annotation"
	"github.com/kitbox-dev/kitbox/tck"
	"github.com/kitbox-dev/kitbox/tck/artifact/rule"
	"github.com/kitbox-dev/kitbox/tck/artifact/tree"
)

// A Finding is one way in which an artifact is not as it should be.
type Finding = rule.Finding

// A Report is the judgement of one artifact. Verdicts has one entry for every
// statement that was looked at, in the order of the rules.
type Report struct {
	Version   string        `json:"version"` // of the suite
	Revision  string        `json:"revision,omitzero"`
	Ref       string        `json:"ref"`
	Digest    digest.Digest `json:"digest"`
	Kind      string        `json:"kind,omitzero"`
	Platforms []string      `json:"platforms"`
	Findings  []Finding     `json:"findings"`
	Verdicts  []tck.Verdict `json:"verdicts"`
	Tally     Tally         `json:"tally"`

	// Unread are the Kits of a set that were to be looked up and could not be,
	// each with why.
	Unread []string `json:"unread,omitzero"`
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

// Judge reads the layers of a and judges it by all rules. An error means that it
// could not be judged.
func Judge(ctx context.Context, a *Artifact) (*Report, error) {
	s := &rule.Subject{Index: a.Index, Partial: a.Partial}
	r := &Report{Version: tck.Version, Revision: tck.Revision, Ref: a.Ref, Digest: a.Root.Digest}
	var err error
	for _, im := range a.Images {
		i := &rule.Image{Platform: im.Platform, Descriptor: im.Descriptor, Manifest: im.Manifest, Config: im.Config}
		if i.Layers, err = a.read(ctx, s, im); err != nil {
			return nil, err
		}
		if i.Layers != nil {
			i.Files = i.Layers
		}
		s.Images = append(s.Images, i)
		r.Platforms = append(r.Platforms, im.Platform)
	}
	if text, _ := annotation.Discover(nil, a.Images[0].Manifest.Annotations); text != "" {
		if doc, err := spec.DecodePublished([]byte(text)); err == nil {
			s.Listed = a.listed(ctx, doc.Kits, a.options)
			for _, k := range doc.Kits {
				if why := s.Listed[k.Digest].Unread; why != "" && a.options.Kits {
					r.Unread = append(r.Unread, k.Ref+": "+why)
				}
			}
		}
	}
	j := rule.Judge(s)
	r.Kind, r.Findings, r.Verdicts = j.Kind, j.Findings, j.Verdicts
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

// read reads the layers of one image. What is wrong with a layer is kept for the
// rule that reports it, and the files are nil; only what keeps the judge from
// looking is an error.
func (a *Artifact) read(ctx context.Context, s *rule.Subject, im Image) (*tree.Tree, error) {
	files := &tree.Tree{Keep: rule.Keep, Hash: true}
	for n, d := range im.Manifest.Layers {
		got, err := a.layer(ctx, d, func(r io.Reader) error { return files.Add(ctx, r) })
		at := fmt.Sprintf("layers[%d]", n)
		broken := func(format string, args ...any) {
			s.Broken = append(s.Broken, Finding{Platform: im.Platform, At: at, Message: fmt.Sprintf(format, args...)})
		}
		if err == nil && !got.packing.of(d.MediaType) {
			broken("is %s by its media type, and its bytes are %s: programs that go by the type cannot unpack it", d.MediaType, cmp.Or(string(got.packing), "not compressed"))
		}
		switch {
		case err == nil && n < len(im.Config.RootFS.DiffIDs) && got.id != im.Config.RootFS.DiffIDs[n]:
			broken("unpacks to %s; the config states %s", got.id, im.Config.RootFS.DiffIDs[n])
		case err == nil:
		case errors.Is(err, errContent):
			broken("%v", err)
			return nil, nil
		default:
			return nil, err
		}
	}
	return files, nil
}
