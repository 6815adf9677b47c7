package frontend

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"strings"

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
	// neither this nor the Dockerfile frontend.
	foreign bool
}

// classify reads the recipe's syntax line.
func (r *recipe) classify() {
	ref, _, _, ok := parser.DetectSyntax(r.data)
	if !ok {
		return
	}
	name, _, _ := strings.Cut(strings.TrimPrefix(ref, "docker.io/"), "@")
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name = name[:i]
	}
	switch name {
	case "docker/dockerfile", "docker/dockerfile-upstream", authoring.Syntax:
	default:
		r.foreign = true
	}
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
