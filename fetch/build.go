package fetch

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec"
)

// recordVersion is the version of build records; others are built anew.
const recordVersion = 2

// A record says what the sources of a key were built into. It is stored as
// builds/<key>.json.
type record struct {
	Version   int           `json:"version"`
	Digest    digest.Digest `json:"digest"` // of the manifest or index
	MediaType string        `json:"mediaType"`
	Size      int64         `json:"size"`
	Context   string        `json:"context"` // for people; not part of the key
	File      string        `json:"file"`
	Bases     []Base        `json:"bases,omitzero"` // of registries
}

// build returns the Kit of a source directory, out of the records if its
// sources have been built before.
func (f *Fetcher) build(ctx context.Context, ref string, isDir bool, args map[string]string) (*Kit, error) {
	src, err := find(ref, isDir)
	if err != nil {
		return nil, err
	}
	images, err := f.images()
	if err != nil {
		return nil, err
	}
	doc := peek(src)
	args = buildArgs(doc, args)
	work, err := f.maker(ctx, images, src, doc, args)
	if err != nil {
		return nil, err
	}
	consumed := slices.Sorted(maps.Keys(args))
	key, err := f.key(ctx, images, src, args, work.identity)
	if err != nil {
		return nil, err
	}
	kit, err := f.recorded(ctx, images, key, work)
	if err != nil {
		return nil, err
	}
	if kit != nil {
		kit.BuildArgs = consumed
		return kit, nil
	}
	dir := filepath.Join(f.Home, "builds")
	if err := durable.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := f.lockBuild(ctx, dir, key, ref)
	if err != nil {
		return nil, err
	}
	defer lock.Unlock()
	if kit, err = f.recorded(ctx, images, key, work); kit != nil || err != nil { // by whoever had the lock
		if kit != nil {
			kit.BuildArgs = consumed
		}
		return kit, err
	}
	if work.set {
		f.note("assembling %s", ref)
	} else {
		f.say("building %s", ref)
	}
	desc, bases, err := work.run()
	if err != nil {
		return nil, err
	}
	kit, err = f.read(ctx, images, desc, ref, Directory)
	if err != nil {
		return nil, err
	}
	kit.Built, kit.BuildArgs = true, consumed
	// Sources that changed while they were built are recorded for neither
	// state: the builder saw a mixture.
	if again, err := f.key(ctx, images, src, args, work.identity); err != nil || again != key {
		return kit, err
	}
	rec := record{Version: recordVersion, Digest: desc.Digest, MediaType: desc.MediaType, Size: desc.Size, Context: src.dir, File: src.file, Bases: bases}
	data, err := json.Marshal(rec, jsontext.WithIndent("\t"))
	if err != nil {
		return nil, err
	}
	return kit, durable.WriteFile(filepath.Join(dir, key+".json"), append(data, '\n'), 0o600)
}

// A maker turns sources into an image.
type maker struct {
	identity string // another one may make something else of the same sources
	set      bool
	run      func() (ocispec.Descriptor, []Base, error)
}

// setsVersion is the identity of what assembles sets. Change it when that makes
// something else of the same Kits.
const setsVersion = "kitbox sets 2"

func (f *Fetcher) maker(ctx context.Context, images *layout.Store, src source, doc *spec.Document, args map[string]string) (maker, error) {
	if f.Sets != nil && doc != nil && (doc.Kind == spec.KindSet || len(doc.Kits) > 0) {
		return maker{f.platforms(setsVersion), true, func() (ocispec.Descriptor, []Base, error) {
			d, err := f.Sets(ctx, f, images, SetSource{Dir: src.dir, File: src.file, Args: args, Name: f.SetName})
			return d, nil, err
		}}, nil
	}
	builder, err := f.findBuilder()
	if err != nil {
		return maker{}, err
	}
	id, err := f.builderIdentity(builder)
	// What steps can reach decides what they make, and another BuildKit may make
	// something else of them.
	id += " network " + cmp.Or(f.BuildNetwork, "none") + " at " + f.Address
	if len(f.Platforms) > 1 {
		id = f.platforms(id) // one is part of the key
	}
	return maker{id, false, func() (ocispec.Descriptor, []Base, error) {
		res, err := f.runBuilder(ctx, builder, src, args)
		if err != nil {
			return ocispec.Descriptor{}, nil, err
		}
		return ocispec.Descriptor{MediaType: res.MediaType, Digest: res.Digest, Size: res.Size}, res.Bases, nil
	}}, err
}

// platforms is the identity of what makes something for several platforms.
func (f *Fetcher) platforms(maker string) string {
	for _, p := range f.Platforms {
		maker += " " + layout.PlatformName(p)
	}
	return maker
}

// A SetSource is a set as its author keeps it.
type SetSource struct {
	Dir  string            // of the descriptor, absolute
	File string            // the descriptor, relative to Dir
	Args map[string]string // of the build phase
	Name string            // what it will be called; empty: not known
}

// recorded returns the Kit that was built for key, or nil if there is none or
// not all of it is left. What a set was assembled from, or a recipe built on, may
// have moved since, which [Always] asks about; that nobody answers is an error.
func (f *Fetcher) recorded(ctx context.Context, images *layout.Store, key string, work maker) (*Kit, error) {
	if f.NoCache || work.set && f.Policy == Always {
		return nil, nil
	}
	path := filepath.Join(f.Home, "builds", key+".json")
	kit, bases := f.remembered(ctx, images, path, work.set)
	if kit == nil {
		return nil, nil
	}
	if f.Policy == Always {
		if moved, err := f.moved(ctx, images, bases); moved || err != nil {
			return nil, err
		}
	}
	now := time.Now()
	os.Chtimes(path, now, now) // in use, for a sweep
	return kit, nil
}

// remembered returns the Kit of the record at path, and what it was built on, or
// nil: whatever is wrong with either, it can be built again.
func (f *Fetcher) remembered(ctx context.Context, images *layout.Store, path string, set bool) (*Kit, []Base) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, nil
	}
	var rec record
	if json.Unmarshal(data, &rec, json.RejectUnknownMembers(true)) != nil || rec.Version != recordVersion {
		return nil, nil
	}
	root := ocispec.Descriptor{MediaType: rec.MediaType, Digest: rec.Digest, Size: rec.Size}
	kit, err := f.read(ctx, images, root, rec.Context, Directory)
	if err != nil {
		return nil, nil
	}
	all, err := layout.ReadAll(ctx, images, root)
	if err != nil || !set && len(all) < len(f.Platforms) {
		return nil, nil
	}
	for _, im := range all {
		for i, l := range im.Manifest.Layers {
			// Those of a set's Kits stay where these came from until they are
			// needed. The last is the set's own.
			if ok, err := images.Exists(ctx, l); err != nil || !ok && (!set || i == len(im.Manifest.Layers)-1) {
				return nil, nil
			}
		}
	}
	return kit, rec.Bases
}

// lockBuild makes builds of one key follow each other, and says so when it has
// to wait.
func (f *Fetcher) lockBuild(ctx context.Context, dir, key, ref string) (*durable.Lock, error) {
	var slot [8]byte
	copy(slot[:], key)
	path, n := filepath.Join(dir, ".lock"), binary.BigEndian.Uint64(slot[:])>>2
	now, cancel := context.WithCancel(ctx)
	cancel()
	l, err := durable.AcquireSlot(now, path, n, durable.Exclusive)
	if busy := (*durable.BusyError)(nil); errors.As(err, &busy) && ctx.Err() == nil {
		f.say("waiting for another kitbox that builds %s", ref)
		return durable.AcquireSlot(ctx, path, n, durable.Exclusive)
	}
	return l, err
}

// peek decodes the descriptor of src. One that cannot be is nil: the builder has
// the diagnosis.
func peek(src source) *spec.Document {
	text, err := src.text()
	if err != nil {
		return nil
	}
	doc, _ := spec.Decode(text, spec.Options{File: src.file})
	return doc
}

// buildArgs returns those of args that doc declares for the build.
func buildArgs(doc *spec.Document, args map[string]string) map[string]string {
	if len(args) == 0 || doc == nil {
		return nil
	}
	out := map[string]string{}
	for name, v := range args {
		if doc.Descriptor.Args[name].BuildArg != "" {
			out[name] = v
		}
	}
	return out
}

// findBuilder returns the path of kit-builder.
func (f *Fetcher) findBuilder() (string, error) {
	const name = "kit-builder"
	if f.Builder != "" {
		return f.Builder, nil
	}
	var dirs []string
	if d := os.Getenv("KITBOX_LIBEXEC"); d != "" {
		dirs = append(dirs, d)
	}
	if exe, err := os.Executable(); err == nil {
		dirs = append(dirs, filepath.Dir(exe))
	}
	for _, d := range dirs {
		p := filepath.Join(d, name)
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	if p, err := exec.LookPath(name); err == nil {
		return p, nil
	}
	return "", fmt.Errorf("%s is not installed beside kitbox (%s) or in PATH: install it, or name its directory in KITBOX_LIBEXEC: %w", name, strings.Join(dirs, ", "), kiterr.ErrUnavailable)
}

// builderIdentity is a digest of the builder program: another builder may make
// something else of the same sources. It is remembered like any file's.
func (f *Fetcher) builderIdentity(builder string) (string, error) {
	real, err := filepath.EvalSymlinks(builder)
	if err != nil {
		return "", fmt.Errorf("builder %s: %w: %w", builder, err, kiterr.ErrUnavailable)
	}
	info, err := os.Stat(real)
	if err != nil {
		return "", durable.Explain(builder, err)
	}
	h, err := openHashes(filepath.Join(f.Home, "builds", "files"), real)
	if err != nil {
		return "", err
	}
	h.dir = filepath.Dir(real)
	e, err := h.hash(filepath.Base(real), info)
	if err != nil {
		return "", err
	}
	h.save()
	return e.Sum, nil
}

// A buildRequest is what kit-builder reads; see internal/builder.Request.
type buildRequest struct {
	Home       string            `json:"home"`
	Context    string            `json:"context"`
	Descriptor string            `json:"descriptor"`
	Args       map[string]string `json:"args,omitzero"`
	Platform   string            `json:"platform"`
	Network    string            `json:"network,omitzero"`
	Builder    string            `json:"builder,omitzero"`
	NoCache    bool              `json:"noCache,omitzero"`
	Pull       Policy            `json:"pull"`
}

// A buildResult is what it prints when it is done, as far as it matters here.
type buildResult struct {
	Digest    digest.Digest `json:"digest"`
	MediaType string        `json:"mediaType"`
	Size      int64         `json:"size"`
	Bases     []Base        `json:"bases"`
	Warnings  []struct {
		Message string `json:"message"`
		File    string `json:"file"` // may be empty
		Line    int    `json:"line"` // from 1; 0: unknown
	} `json:"warnings"`
}

// A BuildError is a build that did not work out. The builder has told the
// details on Progress; this is the line that sums them up. Its family says
// whether the Kit is at fault ([kiterr.ErrRefused]).
type BuildError struct {
	File    string   `json:"file"`    // descriptor or recipe; may be empty
	Line    int      `json:"line"`    // from 1; 0: unknown
	Message string   `json:"message"` // what failed
	Next    string   `json:"next"`    // what to do about it; may be empty
	Output  []string `json:"output"`  // the last lines of the step that failed
	Excerpt string   `json:"excerpt"` // the lines around Line

	dir    string
	family error
}

func (e *BuildError) Error() string {
	var b strings.Builder
	if e.File != "" {
		b.WriteString(filepath.Join(e.dir, e.File))
		if e.Line > 0 {
			fmt.Fprintf(&b, ":%d", e.Line)
		}
		b.WriteString(": ")
	} else {
		fmt.Fprintf(&b, "building %s: ", e.dir)
	}
	b.WriteString(e.Message)
	if e.Next != "" {
		b.WriteString(": " + e.Next)
	}
	return b.String()
}

func (e *BuildError) Unwrap() error { return e.family }

const (
	// maxAnswer bounds what the builder may print, in bytes.
	maxAnswer = 4 << 20

	// builderGrace is how long a builder has to end its steps after it was
	// interrupted.
	builderGrace = 15 * time.Second
)

// runBuilder runs kit-builder once.
func (f *Fetcher) runBuilder(ctx context.Context, builder string, src source, args map[string]string) (*buildResult, error) {
	req := buildRequest{Home: f.Home, Context: src.dir, Descriptor: src.file, Args: args, Network: f.BuildNetwork, Builder: f.Address, NoCache: f.NoCache,
		Platform: layout.PlatformName(f.platform()), Pull: cmp.Or(f.Policy, Missing)}
	if len(f.Platforms) > 1 {
		var names []string
		for _, p := range f.Platforms {
			names = append(names, layout.PlatformName(p))
		}
		req.Platform = strings.Join(names, ",")
	}
	in, err := json.Marshal(req)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, builder, "build", "--request", "-", "--progress", cmp.Or(f.ProgressMode, "auto"))
	cmd.Stdin = bytes.NewReader(in)
	out := &bounded{}
	cmd.Stdout = out
	cmd.Stderr = f.Progress // an *os.File goes through as it is, so that the builder sees a terminal
	if f.Progress == nil {
		cmd.Stderr = io.Discard
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = builderGrace
	runErr := cmd.Run()
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("building %s: %w", src.dir, context.Cause(ctx))
	}
	var exit *exec.ExitError
	if runErr != nil && !errors.As(runErr, &exit) {
		return nil, fmt.Errorf("running %s: %w: %w", builder, runErr, kiterr.ErrUnavailable)
	}
	var doc struct {
		Result *buildResult `json:"result"`
		Error  *BuildError  `json:"error"`
	}
	if err := json.Unmarshal(out.Bytes(), &doc); err != nil || doc.Result == nil && doc.Error == nil {
		return nil, fmt.Errorf("building %s: %s ended with %s and without an answer: its log is in %s", src.dir, builder, cmd.ProcessState, filepath.Join(f.Home, "builder"))
	}
	if e := doc.Error; e != nil {
		e.dir = src.dir
		if cmd.ProcessState.ExitCode() == kiterr.StatusRefused {
			e.family = kiterr.ErrRefused
		}
		return nil, e
	}
	if runErr != nil || doc.Result.Digest.Validate() != nil {
		return nil, fmt.Errorf("building %s: %s ended with %s and an answer that makes no sense", src.dir, builder, cmd.ProcessState)
	}
	// BuildKit's displays show progress and leave warnings to their callers.
	for _, w := range doc.Result.Warnings {
		place := ""
		if w.File != "" {
			place = filepath.Join(src.dir, w.File) + ": "
			if w.Line > 0 {
				place = fmt.Sprintf("%s:%d: ", filepath.Join(src.dir, w.File), w.Line)
			}
		}
		f.say("warning: %s%s", place, w.Message)
	}
	return doc.Result, nil
}

// bounded keeps the first maxAnswer bytes and drops the rest.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	if room := maxAnswer - b.Len(); room > 0 {
		b.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
