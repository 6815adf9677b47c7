package builder

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/moby/buildkit/client"
	"github.com/moby/buildkit/util/progress/progressui"
	"github.com/opencontainers/go-digest"
)

// A Progress says how a build is shown while it runs. Its zero value shows
// nothing.
type Progress struct {
	// Mode is auto (tty on a terminal, else plain), tty, plain, json (one
	// BuildKit status per line) or quiet. Empty is quiet.
	Mode string

	// Out is written to. Required unless Mode is quiet.
	Out io.Writer
}

// Check reports a mode that does not exist or does not fit Out.
func (p Progress) Check() error {
	_, err := p.display()
	return err
}

func (p Progress) display() (progressui.Display, error) {
	mode := progressui.DisplayMode(p.Mode)
	switch p.Mode {
	case "", "quiet":
		return progressui.NewDisplay(io.Discard, progressui.QuietMode)
	case "json":
		mode = progressui.RawJSONMode
	case "auto", "tty", "plain":
	default:
		return progressui.Display{}, fmt.Errorf("progress %q: there are auto, tty, plain, json and quiet", p.Mode)
	}
	return progressui.NewDisplay(p.Out, mode, progressui.WithPhase("building"))
}

// run shows what comes from ch until it is closed. It always drains ch: the
// build waits for its reader.
func (p Progress) run(ch chan *client.SolveStatus) {
	d, err := p.display()
	if err == nil {
		// Not the build's context: what a cancelled build says last is
		// worth showing, and its channel is closed soon.
		_, _ = d.UpdateFrom(context.Background(), ch)
	}
	for range ch {
	}
}

// keepLines is how much of a step's output a failure quotes. The progress
// display has shown the rest.
const keepLines = 12

// An observer remembers of a build what its result tells.
type observer struct {
	mu    sync.Mutex
	steps map[digest.Digest]*step // guarded by mu
	warns []Warning               // guarded by mu

	extra chan *client.SolveStatus // what this process does for the build
}

type step struct {
	name   string
	err    string
	cached bool
	done   bool
	tail   []string // last complete lines
	rest   string   // of a line not yet complete
}

func newObserver() *observer {
	return &observer{steps: map[digest.Digest]*step{}, extra: make(chan *client.SolveStatus)}
}

// tee passes on what comes from in, until it is closed, and from o.extra, and
// notes it.
func (o *observer) tee(in chan *client.SolveStatus) chan *client.SolveStatus {
	out := make(chan *client.SolveStatus)
	go func() {
		defer close(out)
		for {
			var s *client.SolveStatus
			ok := true
			select {
			case s, ok = <-in:
			case s = <-o.extra:
			}
			if !ok {
				return
			}
			o.note(s)
			out <- s
		}
	}()
	return out
}

func (o *observer) note(s *client.SolveStatus) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, v := range s.Vertexes {
		st := o.step(v.Digest)
		st.name, st.err = v.Name, v.Error
		st.cached = st.cached || v.Cached
		st.done = st.done || v.Completed != nil
	}
	for _, l := range s.Logs {
		st := o.step(l.Vertex)
		lines := strings.Split(st.rest+string(l.Data), "\n")
		st.rest = lines[len(lines)-1]
		st.tail = append(st.tail, lines[:len(lines)-1]...)
		if n := len(st.tail) - keepLines; n > 0 {
			st.tail = slices.Delete(st.tail, 0, n)
		}
	}
	for _, w := range s.Warnings {
		warn := Warning{Message: string(w.Short)}
		if w.SourceInfo != nil {
			warn.File = w.SourceInfo.Filename
		}
		if len(w.Range) > 0 {
			warn.Line = int(w.Range[0].Start.Line)
		}
		if !slices.Contains(o.warns, warn) {
			o.warns = append(o.warns, warn)
		}
	}
}

func (o *observer) step(d digest.Digest) *step {
	st := o.steps[d]
	if st == nil {
		st = &step{}
		o.steps[d] = st
	}
	return st
}

func (o *observer) warnings() []Warning {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]Warning{}, o.warns...)
}

// recipeStep matches the names of a recipe's steps, "[2/3] RUN make" or
// "[build 2/3] RUN make", and gives the instruction.
var recipeStep = regexp.MustCompile(`^\[(?:[^\]]+ )?\d+/\d+\] (.*)$`)

// ran reports whether a step of the recipe was run rather than remembered.
// Getting the base is not one.
func (o *observer) ran() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, st := range o.steps {
		m := recipeStep.FindStringSubmatch(st.name)
		if m != nil && st.done && !st.cached && !strings.HasPrefix(m[1], "FROM ") {
			return true
		}
	}
	return false
}

// failed returns the step that made the build fail, if one did: cancelled
// neighbours have an error too.
func (o *observer) failed() *step {
	o.mu.Lock()
	defer o.mu.Unlock()
	var found *step
	for _, st := range o.steps {
		if st.err == "" || strings.Contains(st.err, "context canceled") {
			continue
		}
		if found == nil || recipeStep.MatchString(st.name) {
			found = st
		}
	}
	return found
}

// output returns the last lines that the step wrote, without blank ones.
func (s *step) output() []string {
	var out []string
	for _, l := range append(slices.Clone(s.tail), s.rest) {
		// A progress bar writes many states into one line.
		l = l[strings.LastIndexByte(strings.TrimRight(l, "\r"), '\r')+1:]
		if l = strings.TrimRight(l, "\r \t"); l != "" {
			out = append(out, l)
		}
	}
	return out[max(0, len(out)-keepLines):]
}
