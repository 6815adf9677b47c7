package frontend

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strconv"
	"sync"

	"github.com/distribution/reference"
	"github.com/moby/buildkit/client/llb"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerui"
	"github.com/moby/buildkit/frontend/gateway/client"
	"github.com/moby/buildkit/solver/errdefs"
	"github.com/moby/buildkit/solver/pb"

	"github.com/kitbox-dev/kitbox/internal/authoring"
)

// buildArgPrefix begins the options that carry build args.
const buildArgPrefix = "build-arg:"

var errNotExist = fs.ErrNotExist

// A recipe is a Dockerfile and where it was written.
type recipe struct {
	name   string // its file, as errors of the Dockerfile frontend name it
	data   []byte // handed over and staged verbatim
	ignore []byte // of "<name>.dockerignore"; nil: none

	// origin is the file that the recipe is a part of, starting behind line
	// offset. Nil: the recipe is a file of its own.
	origin *dockerui.Source
	offset int

	// foreign means that the recipe's syntax line names a frontend that is
	// neither this nor the Dockerfile frontend that is built in.
	foreign bool

	// wants is the line's minor version of Dockerfile 1 when the frontend that is
	// built in stands in for an older or newer one; 0: it states none.
	wants  int
	syntax int // the line, from 1
}

// dockerfileMinor is the version of Dockerfile 1 that is built in. They come out
// together: 1.14 with BuildKit 0.20, and each one since with the next.
const dockerfileMinor = 28

// release matches the tags of docker/dockerfile for which what is built in stands
// in: newer ones of a major version read what older ones do. Others, such as
// 1-labs and master, read another language.
var release = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(?:latest|1(?:\.([0-9]{1,4})(?:\.[0-9]+)?)?)$`) })

// classify reads the recipe's syntax line. A digest is for one frontend alone.
func (r *recipe) classify() {
	ref, _, at, ok := parser.DetectSyntax(r.data)
	if !ok {
		return
	}
	r.foreign, r.syntax = true, firstLine(at)
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return
	}
	_, pinned := named.(reference.Digested)
	switch reference.FamiliarName(named) {
	case authoring.Syntax:
		r.foreign = false
	case "docker/dockerfile":
		tagged, _ := reference.TagNameOnly(named).(reference.Tagged)
		if tagged == nil || pinned {
			return
		}
		if m := release().FindStringSubmatch(tagged.Tag()); m != nil {
			r.foreign = false
			r.wants, _ = strconv.Atoi(m[1]) // none is 0
		}
	}
}

// behind says what is older than the recipe asks for, or nothing.
func (r *recipe) behind() string {
	if r.wants <= dockerfileMinor {
		return ""
	}
	return fmt.Sprintf("the recipe asks for Dockerfile 1.%d, and 1.%d is built in, which may not know all of it", r.wants, dockerfileMinor)
}

// state holds the recipe as the Dockerfile frontend wants to read it.
func (r *recipe) state() llb.State {
	st := llb.Scratch()
	hide := llb.WithCustomName("[internal] load recipe " + r.name)
	if dir := path.Dir(r.name); dir != "." {
		st = st.File(llb.Mkdir(dir, 0o755, llb.WithParents(true)), hide)
	}
	st = st.File(llb.Mkfile(r.name, 0o644, r.data), hide)
	if r.ignore != nil {
		st = st.File(llb.Mkfile(r.name+".dockerignore", 0o644, r.ignore), hide)
	}
	return st
}

func inputs(def *llb.Definition) map[string]*pb.Definition {
	return map[string]*pb.Definition{dockerui.DefaultLocalNameDockerfile: def.ToPB()}
}

// relocate moves the places in err from the recipe to the file that it is
// written in.
func (r *recipe) relocate(err error) error {
	if r.origin == nil {
		return err
	}
	for e := err; e != nil; e = errors.Unwrap(e) {
		var se *errdefs.SourceError
		if !errors.As(e, &se) {
			break
		}
		if info := se.Source.Info; info != nil && info.Filename == r.name {
			info.Filename, info.Data, info.Definition = r.origin.Filename, r.origin.Data, nil
			for _, rg := range se.Source.Ranges {
				rg.Start.Line += int32(r.offset)
				rg.End.Line += int32(r.offset)
			}
		}
		e = se
	}
	return err
}

// place is that of a line of the recipe, for a warning.
func (r *recipe) place(line int) client.WarnOpts {
	if r.origin != nil {
		return client.WarnOpts{SourceInfo: sourceInfo(r.origin.SourceMap), Range: []*pb.Range{lineRange(line + r.offset)}}
	}
	return client.WarnOpts{SourceInfo: &pb.SourceInfo{Data: r.data, Filename: r.name, Language: "Dockerfile"}, Range: []*pb.Range{lineRange(line)}}
}

// A vicinity reads files beside the descriptor.
type vicinity struct {
	c   client.Client
	src *dockerui.Source
}

// read returns the files of names that there are, by name. Names are relative
// to the root that the descriptor's own name is relative to.
func (t vicinity) read(ctx context.Context, names ...string) (map[string][]byte, error) {
	opts := t.c.BuildOpts().Opts
	st := t.src.State
	if !remote(ctx, t.c) {
		// The state that the descriptor came from holds nothing but it.
		key := dockerui.DefaultLocalNameDockerfile
		if k := opts["dockerfilekey"]; k != "" {
			key = k
		}
		local := llb.Local(key,
			llb.FollowPaths(names),
			llb.SessionID(t.c.BuildOpts().SessionID),
			llb.SharedKeyHint(key+"-kit"),
			dockerui.WithInternalName("load recipe and content files"),
			llb.Differ(llb.DiffNone, false))
		st = &local
	}
	def, err := st.Marshal(ctx)
	if err != nil {
		return nil, err
	}
	res, err := t.c.Solve(ctx, client.SolveRequest{Definition: def.ToPB()})
	if err != nil {
		return nil, err
	}
	ref, err := res.SingleRef()
	if err != nil {
		return nil, err
	}
	found := map[string][]byte{}
	for _, name := range names {
		data, err := readFile(ctx, ref, name)
		if isNotExist(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		found[name] = data
	}
	return found, nil
}

// remote reports whether the descriptor comes from a state that holds its
// neighbours too: a git or http context, or an input of another frontend.
func remote(ctx context.Context, c client.Client) bool {
	context := c.BuildOpts().Opts["context"]
	if _, ok, _ := dockerui.DetectGitContext(context, nil); ok {
		return true
	}
	if _, _, ok := dockerui.DetectHTTPContext(context); ok {
		return true
	}
	in, err := c.Inputs(ctx)
	return err == nil && in[dockerui.DefaultLocalNameDockerfile].Output() != nil
}

// maxFile bounds what is read of one file into this process, in bytes.
const maxFile = 8 << 20

// readFile reads a whole file of ref. A nil ref is empty.
func readFile(ctx context.Context, ref client.Reference, name string) ([]byte, error) {
	if ref == nil {
		return nil, errNotExist
	}
	st, err := ref.StatFile(ctx, client.StatRequest{Path: name})
	if err != nil {
		return nil, err
	}
	if st.IsDir() {
		return nil, &Error{File: name, Message: "is a directory, not a file"}
	}
	if st.Size > maxFile {
		return nil, &Error{File: name, Message: "has more than 8 MiB"}
	}
	return ref.ReadFile(ctx, client.ReadRequest{Filename: name})
}
