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
const recordVersion = 1

// A record says what the sources of a key were built into. It is stored as
// builds/<key>.json.
type record struct {
	Version   int           `json:"version"`
	Digest    digest.Digest `json:"digest"` // of the manifest or index
	MediaType string        `json:"mediaType"`
	Size      int64         `json:"size"`
	Context   string        `json:"context"` // for people; not part of the key
	File      string        `json:"file"`
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
	args = buildArgs(src, args)
	consumed := slices.Sorted(maps.Keys(args))
	builder, err := f.findBuilder()
	if err != nil {
		return nil, err
	}
	key, err := f.key(ctx, images, src, args, builder)
	if err != nil {
		return nil, err
	}
	if kit := f.recorded(ctx, images, key); kit != nil && !f.NoCache {
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
	if kit := f.recorded(ctx, images, key); kit != nil && !f.NoCache { // by whoever had the lock
		kit.BuildArgs = consumed
		return kit, nil
	}
	f.say("building %s", ref)
	res, err := f.runBuilder(ctx, builder, src, args)
	if err != nil {
		return nil, err
	}
	desc := ocispec.Descriptor{MediaType: res.MediaType, Digest: res.Digest, Size: res.Size}
	kit, err := f.read(ctx, images, desc, ref, Directory)
	if err != nil {
		return nil, err
	}
	kit.Built, kit.BuildArgs = true, consumed
	// Sources that changed while they were built are recorded for neither
	// state: the builder saw a mixture.
	if again, err := f.key(ctx, images, src, args, builder); err != nil || again != key {
		return kit, err
	}
	rec := record{Version: recordVersion, Digest: res.Digest, MediaType: res.MediaType, Size: res.Size, Context: src.dir, File: src.file}
	data, err := json.Marshal(rec, jsontext.WithIndent("\t"))
	if err != nil {
		return nil, err
	}
	return kit, durable.WriteFile(filepath.Join(dir, key+".json"), append(data, '\n'), 0o600)
}

// recorded returns the Kit that was built for key, or nil if there is none or
// not all of it is left.
func (f *Fetcher) recorded(ctx context.Context, images *layout.Store, key string) *Kit {
	path := filepath.Join(f.Home, "builds", key+".json")
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	var rec record
	if json.Unmarshal(data, &rec, json.RejectUnknownMembers(true)) != nil || rec.Version != recordVersion {
		return nil
	}
	kit, err := f.read(ctx, images, ocispec.Descriptor{MediaType: rec.MediaType, Digest: rec.Digest, Size: rec.Size}, rec.Context, Directory)
	if err != nil {
		return nil
	}
	for _, l := range kit.Layers {
		if ok, err := images.Exists(ctx, l.Blob); err != nil || !ok {
			return nil
		}
	}
	now := time.Now()
	os.Chtimes(path, now, now) // in use, for a sweep
	return kit
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

// buildArgs returns those of args that the descriptor of src declares for the
// build. A descriptor that cannot be decoded is left to the builder, which has
// the diagnosis.
func buildArgs(src source, args map[string]string) map[string]string {
	if len(args) == 0 {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(src.dir, src.file))
	if err != nil {
		return nil
	}
	doc, _ := spec.Decode(text, spec.Options{File: src.file})
	if doc == nil {
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
}

// A buildResult is what it prints when it is done, as far as it matters here.
type buildResult struct {
	Digest    digest.Digest `json:"digest"`
	MediaType string        `json:"mediaType"`
	Size      int64         `json:"size"`
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
	p := f.platform()
	req := buildRequest{Home: f.Home, Context: src.dir, Descriptor: src.file, Args: args, Network: f.BuildNetwork, Builder: f.Address, NoCache: f.NoCache, Platform: p.OS + "/" + p.Architecture}
	if p.Variant != "" {
		req.Platform += "/" + p.Variant
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
