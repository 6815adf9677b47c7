// Package content says what a Kit's layers are made from (§3) and which files
// are staged in its image beside them (§10).
//
// It decides and copies nothing; the caller says which files there are.
package content

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/agentcontext"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/source"
)

// Where a Kit stages its sources in its own image (§10): StageRoot/<stem>/.
const (
	StageRoot        = "/usr/share/sandbox/kit"
	StagedDescriptor = "kit.yaml"
	StagedRecipe     = "kit.dockerfile"
)

// StageNote begins the history entry of the layer that holds a Kit's staged
// sources; the stem follows. It tells a reader of documents alone where they
// are. Other publishers need not write it.
const StageNote = "kit: stage " + StageRoot + "/"

// A Source is what a Kit's layers are made from. At most one of Recipe,
// RecipeFile and Kits is set; with none the Kit only declares.
type Source struct {
	Recipe     string // Dockerfile text: the inline build or a comment descriptor's rest
	RecipeFile string // path of a Dockerfile beside the descriptor, clean
	Kits       bool   // the content of the listed Kits
}

// Declares reports whether the Kit has no content of its own.
func (s Source) Declares() bool { return s == Source{} }

// The reasons for which content is refused. They belong to [kiterr.ErrRefused].
var (
	ErrNoContent     = refusal("a workload has content: state build, dockerfile or kits, or add the companion recipe")
	ErrNoRecipe      = refusal("the named recipe does not exist")
	ErrReservedStage = refusal("a staged file may not take the name of the staged descriptor or recipe")
	ErrStagedTwice   = refusal("two content files have the same base name and would be staged over each other")
	ErrOutside       = refusal("a content file stays inside the descriptor's directory")
)

func refusal(text string) error { return &refusedError{text} }

type refusedError struct{ text string }

func (e *refusedError) Error() string { return e.text }

func (e *refusedError) Is(target error) bool { return target == kiterr.ErrRefused }

// Find finds the content of d, which is authored and valid. Stem is the
// descriptor's file name without its extension, and exists reports whether the
// descriptor's directory holds a file.
func Find(d *spec.Document, stem string, exists func(name string) bool) (Source, error) {
	var c Source
	companion := stem + ".dockerfile"
	switch recipe, comment := d.Recipe(); {
	case comment:
		c.Recipe = recipe
	case d.Build != "":
		c.Recipe = d.Build
	case d.Kits != nil:
		c.Kits = true
	case d.Dockerfile != "":
		c.RecipeFile = path.Clean(d.Dockerfile)
		if !exists(c.RecipeFile) {
			return c, fmt.Errorf("dockerfile %s: %w", d.Dockerfile, ErrNoRecipe)
		}
	case exists(companion):
		c.RecipeFile = companion
	}
	if c.Declares() && d.Kind == spec.KindWorkload {
		return c, ErrNoContent
	}
	return c, nil
}

// A Staged file is copied into the image when publishing.
type Staged struct {
	From string // clean path relative to the descriptor's directory
	To   string // absolute path in the image
	At   string // dotted path of the field that names it
}

// Stage returns d with every content file named by its place in the image, and
// the files to copy there: StageRoot/<stem>/<base name>.
func Stage(d spec.Descriptor, stem string) (spec.Descriptor, []Staged, error) {
	var files []Staged
	var errs []error
	taken := map[string]string{}
	stage := func(at string, r *capability.Request) {
		if r.Type != agentcontext.Type || r.Config == nil {
			return
		}
		var cfg map[string]jsontext.Value
		var from string
		if json.Unmarshal(r.Config, &cfg) != nil || json.Unmarshal(cfg["contentFile"], &from) != nil || from == "" || capability.HasReference(from) {
			return
		}
		at += ".config.contentFile"
		if path.IsAbs(from) {
			if strings.HasPrefix(path.Clean(from), StageRoot+"/") {
				return // already in the image
			}
			errs = append(errs, fmt.Errorf("%s: %w", at, ErrOutside))
			return
		}
		clean := path.Clean(from)
		base := path.Base(clean)
		first, again := taken[base]
		switch {
		case clean == ".." || strings.HasPrefix(clean, "../") || clean == ".":
			errs = append(errs, fmt.Errorf("%s: %w", at, ErrOutside))
			return
		case base == StagedDescriptor || base == StagedRecipe:
			errs = append(errs, fmt.Errorf("%s: %s: %w", at, base, ErrReservedStage))
			return
		case again && first != clean:
			errs = append(errs, fmt.Errorf("%s: %s: %w", at, base, ErrStagedTwice))
			return
		}
		to := StageRoot + "/" + stem + "/" + base
		if !again {
			taken[base] = clean
			files = append(files, Staged{clean, to, at})
		}
		cfg["contentFile"] = source.AppendString(nil, to)
		b, err := json.Marshal(cfg, json.Deterministic(true))
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", at, err))
			return
		}
		r.Config = b
	}
	d.Capabilities = slices.Clone(d.Capabilities)
	for i := range d.Capabilities {
		it := &d.Capabilities[i]
		at := "capabilities[" + strconv.Itoa(i) + "]"
		if it.Group == nil {
			stage(at, &it.Request)
			continue
		}
		g := *it.Group
		g.Capabilities = slices.Clone(g.Capabilities)
		for j := range g.Capabilities {
			stage(at+".group.capabilities["+strconv.Itoa(j)+"]", &g.Capabilities[j])
		}
		it.Group = &g
	}
	return d, files, errors.Join(errs...)
}
