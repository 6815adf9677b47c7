package frontend

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"
	"github.com/moby/buildkit/solver/errdefs"
	"github.com/moby/buildkit/solver/pb"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// An Image is one that a recipe needs and does not make: a base, what it copies
// or mounts from, or the frontend of its syntax line.
type Image struct {
	Ref      string           // whole, with a tag or digest: docker.io/library/debian:12
	Platform ocispec.Platform // that is needed of it
}

// Name is what the Dockerfile frontend looks for among named contexts.
func (i Image) Name() string {
	named, err := reference.ParseNormalizedNamed(i.Ref)
	if err != nil {
		return i.Ref
	}
	return strings.TrimSuffix(reference.FamiliarString(named), ":latest")
}

// A need is an image with the line of the recipe that needs it.
type need struct {
	Image
	line int
}

// scan lists the images that the recipe needs for the targets, each once, and
// the steps that no builder of the runnable platforms can run. A recipe that
// cannot be read has none: the Dockerfile frontend has the diagnosis, and one in
// another frontend's language is that one's.
func (r *recipe) scan(opts map[string]string, build ocispec.Platform, targets, runnable []ocispec.Platform) ([]need, error) {
	var needs []need
	add := func(name string, p ocispec.Platform, line int) {
		named, err := reference.ParseNormalizedNamed(name)
		if err != nil {
			return
		}
		im := Image{reference.TagNameOnly(named).String(), platforms.Normalize(p)}
		if !slices.ContainsFunc(needs, func(n need) bool {
			return n.Ref == im.Ref && platforms.Format(n.Platform) == platforms.Format(im.Platform)
		}) {
			needs = append(needs, need{im, line})
		}
	}
	if r.foreign {
		ref, _, _, _ := parser.DetectSyntax(r.data)
		add(ref, build, 1)
	}
	stages, meta, escape := r.stages()
	if len(stages) == 0 {
		return needs, nil
	}
	for _, target := range targets {
		s := stageScan{recipe: r, lex: shell.NewLex(escape), stages: stages, target: target, runnable: runnable, add: add, seen: map[int]bool{}}
		s.env = s.globals(opts, build, meta)
		last := len(stages) - 1
		if t := opts["target"]; t != "" {
			if last = s.find(t, len(stages)); last < 0 {
				return needs, nil
			}
		}
		if err := s.visit(last); err != nil {
			return nil, err
		}
	}
	return needs, nil
}

// stages parses the recipe; one that cannot be parsed has none.
func (r *recipe) stages() (stages []instructions.Stage, meta []instructions.ArgCommand, escape rune) {
	parsed, err := parser.Parse(bytes.NewReader(r.data))
	if err != nil {
		return nil, nil, 0
	}
	stages, meta, err = instructions.Parse(parsed.AST, nil)
	if err != nil {
		return nil, nil, 0
	}
	return stages, meta, parsed.EscapeToken
}

// A stageScan walks the stages of a recipe that one target needs.
type stageScan struct {
	recipe   *recipe
	lex      *shell.Lex
	stages   []instructions.Stage
	target   ocispec.Platform
	runnable []ocispec.Platform
	env      shell.EnvGetter
	add      func(name string, p ocispec.Platform, line int)
	seen     map[int]bool
}

// globals are the variables that FROM lines can use.
func (s *stageScan) globals(opts map[string]string, build ocispec.Platform, meta []instructions.ArgCommand) shell.EnvGetter {
	t := s.target
	vars := map[string]string{
		"BUILDPLATFORM": platforms.Format(build), "BUILDOS": build.OS, "BUILDARCH": build.Architecture, "BUILDVARIANT": build.Variant,
		"TARGETPLATFORM": platforms.Format(t), "TARGETOS": t.OS, "TARGETARCH": t.Architecture, "TARGETVARIANT": t.Variant,
	}
	for name := range maps.Keys(vars) {
		if v, ok := opts[buildArgPrefix+name]; ok {
			vars[name] = v
		}
	}
	env := func() shell.EnvGetter {
		list := make([]string, 0, len(vars))
		for k, v := range vars {
			list = append(list, k+"="+v)
		}
		return shell.EnvsFromSlice(list)
	}
	for _, a := range meta {
		for _, kv := range a.Args {
			if v, ok := opts[buildArgPrefix+kv.Key]; ok {
				vars[kv.Key] = v
			} else if kv.Value != nil {
				if v, _, err := s.lex.ProcessWord(*kv.Value, env()); err == nil {
					vars[kv.Key] = v
				}
			}
		}
	}
	return env()
}

// find returns the stage called name among those before limit, or -1.
func (s *stageScan) find(name string, limit int) int {
	for i := limit - 1; i >= 0; i-- {
		if strings.EqualFold(s.stages[i].Name, name) {
			return i
		}
	}
	if n, err := strconv.Atoi(name); err == nil && n >= 0 && n < limit {
		return n
	}
	return -1
}

// visit adds what stage i needs. Platforms of stages that build on another are
// those of their base.
func (s *stageScan) visit(i int) error {
	if s.seen[i] {
		return nil
	}
	s.seen[i] = true
	st := s.stages[i]
	p, ok := s.platform(i)
	if !ok {
		return nil
	}
	base := s.expand(st.BaseName)
	if base == "" {
		return nil // the Dockerfile frontend says what is wrong
	}
	if b := s.find(base, i); b >= 0 && !isNumber(base) {
		if err := s.visit(b); err != nil {
			return err
		}
	} else if base != "scratch" {
		s.add(base, p, firstLine(st.Location))
	}
	for _, c := range st.Commands {
		switch c := c.(type) {
		case *instructions.CopyCommand:
			if err := s.from(c.From, i, firstLine(c.Location())); err != nil {
				return err
			}
		case *instructions.RunCommand:
			if !s.runs(p) {
				return s.recipe.faultAt(firstLine(c.Location()), fmt.Sprintf("this step is to run on %s, which the builder cannot, as it has no emulator", platforms.Format(p)),
					"run it in a stage FROM --platform=$BUILDPLATFORM and COPY what it makes, or build for "+s.names())
			}
			for _, m := range instructions.GetMounts(c) {
				if err := s.from(m.From, i, firstLine(c.Location())); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// expand returns word with its variables, or nothing if they cannot be.
func (s *stageScan) expand(word string) string {
	out, _, err := s.lex.ProcessWord(word, s.env)
	if err != nil {
		return ""
	}
	return out
}

func (s *stageScan) from(name string, i, line int) error {
	if name == "" || strings.ContainsRune(name, '$') {
		return nil
	}
	if b := s.find(name, i); b >= 0 {
		return s.visit(b)
	}
	if name != "scratch" {
		s.add(name, s.target, line)
	}
	return nil
}

// platform is that of stage i.
func (s *stageScan) platform(i int) (ocispec.Platform, bool) {
	st := s.stages[i]
	if st.Platform != "" {
		p, err := platforms.Parse(s.expand(st.Platform))
		return platforms.Normalize(p), err == nil
	}
	if base := s.expand(st.BaseName); base != "" && !isNumber(base) {
		if b := s.find(base, i); b >= 0 {
			return s.platform(b)
		}
	}
	return s.target, true
}

func (s *stageScan) runs(p ocispec.Platform) bool {
	return len(s.runnable) == 0 || slices.ContainsFunc(s.runnable, func(w ocispec.Platform) bool { return platforms.Only(w).Match(p) })
}

func (s *stageScan) names() string {
	var names []string
	for _, p := range s.runnable {
		names = append(names, platforms.Format(p))
	}
	return strings.Join(names, " or ")
}

func isNumber(s string) bool {
	_, err := strconv.Atoi(s)
	return err == nil
}

func firstLine(at []parser.Range) int {
	if len(at) == 0 {
		return 0
	}
	return at[0].Start.Line
}

// faultAt is a finding about a line of the recipe, in the file that has it.
func (r *recipe) faultAt(line int, message, next string) error {
	e := &Error{File: r.name, Line: line, Message: message, Next: next}
	src := &errdefs.Source{Info: &pb.SourceInfo{Data: r.data, Filename: r.name, Language: "Dockerfile"}, Ranges: []*pb.Range{lineRange(line)}}
	if r.origin != nil {
		e.File, e.Line = r.origin.Filename, line+r.offset
	}
	return r.relocate(errdefs.WithSource(e, src))
}

// provide asks for the images that the recipe needs and returns them as options
// of the Dockerfile frontend.
func (b Builder) provide(ctx context.Context, r *recipe, needs []need) (map[string]string, error) {
	opts := map[string]string{}
	if b.Images == nil {
		return opts, nil
	}
	for _, n := range needs {
		in, err := b.Images(ctx, n.Image)
		if err != nil {
			return nil, r.blame(n.line, err)
		}
		if in != "" {
			opts["context:"+n.Name()+"::"+platforms.FormatAll(platforms.Normalize(n.Platform))] = in
		}
	}
	return opts, nil
}

// blame is err with the place in the recipe that it is due to.
func (r *recipe) blame(line int, err error) error {
	src := &errdefs.Source{Info: &pb.SourceInfo{Data: r.data, Filename: r.name, Language: "Dockerfile"}, Ranges: []*pb.Range{lineRange(line)}}
	return r.relocate(errdefs.WithSource(err, src))
}
