package frontend

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"strings"

	"github.com/moby/buildkit/exporter/containerimage/exptypes"
	"github.com/moby/buildkit/frontend/gateway/client"

	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/annotation"
	"github.com/kitbox-dev/kitbox/tck"
	"github.com/kitbox-dev/kitbox/tck/artifact/rule"
)

// judge holds what is about to be exported against the rules that a published
// Kit is judged by, as far as they can be asked before there is a manifest
// (conformance §1). What they find here was not found earlier, where the author's
// line would have been known better.
func (k *kit) judge(ctx context.Context, res *client.Result, platforms []platform, annotations map[string]string) error {
	s := &rule.Subject{Draft: true}
	var views []*view
	for _, p := range platforms {
		im := &rule.Image{Platform: p.id}
		if err := json.Unmarshal(res.Metadata[exptypes.ExporterImageConfigKey+p.suffix()], &im.Config); err != nil {
			return fmt.Errorf("the image config: %w", err)
		}
		im.Manifest.Annotations = annotations
		s.Images = append(s.Images, im)
		if k.isSet() {
			continue // its layers are published: nothing is fetched to look at them
		}
		ref := res.Ref
		if p.id != "" {
			ref = res.Refs[p.id]
		}
		v := &view{ctx: ctx, ref: ref}
		if ref != nil {
			dirs := []string{"/"}
			for d := k.stagedDir(); d != "/"; d = path.Dir(d) {
				dirs = append(dirs, d)
			}
			if k.published.Kind == spec.KindWorkload {
				dirs = append(dirs, usual...)
			}
			v.prefetch(dirs...)
		}
		views = append(views, v)
		im.Files = v
	}
	out := rule.Judge(s)
	for _, v := range views {
		if v.err != nil {
			return fmt.Errorf("looking at the image: %w", v.err)
		}
	}
	var warnings spec.Diagnostics
	for _, f := range out.Findings {
		text := f.Message
		if f.At != "" {
			text = f.At + ": " + text
		}
		if f.Platform != "" {
			text = f.Platform + ": " + text
		}
		// Publishing moves no entry, so that paths are the author's.
		place := spec.Diagnostic{Severity: spec.Warning, Path: f.At, Message: text + " [" + f.Statement + "]"}
		if key := topKey(f.At); k.isSet() {
			place.Line = k.lineOfKey("kits") // merging moved its entries
		} else if k.lineOfKey(key) > 0 && strings.HasPrefix(f.At, key) {
			place = k.doc.Place(place)
		} else {
			place.Line = k.lineOfKey(key)
		}
		if f.Outcome == tck.Fail {
			return k.faultAt(place.Line, place.Message, "kit-tck validate would refuse the image")
		}
		if !k.said(f) {
			place.Path = "" // the message has it
			warnings = append(warnings, place)
		}
	}
	k.warn(ctx, warnings)
	return nil
}

// said reports whether the author has been told, with the line, when the
// descriptor was read or its recipe looked at.
func (k *kit) said(f rule.Finding) bool {
	for _, d := range append(k.findings, k.surprises()...) {
		if d.Statement == f.Statement {
			return true
		}
	}
	return f.Statement == "SPEC-v3 §9.1/descriptor-valid"
}

// topKey returns the key of the descriptor that a finding is about, or the one
// that says what kind of image it is to be.
func topKey(at string) string {
	key := at[:len(at)-len(strings.TrimLeft(at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"))]
	switch key {
	case "", "config", annotation.Descriptor:
		return "kind"
	}
	return key
}
