// Package progress tells who waits for a fetch or a build what it does, as the
// events of the SDK.
package progress

import (
	"bytes"
	"io"
	"strings"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// Fetcher is the fetcher that configured makes, telling o what it does. If
// anybody is told, its Progress is a [*Lines].
func Fetcher(configured func() *fetch.Fetcher, o sandbox.CreateOptions) *fetch.Fetcher {
	f := configured()
	f.BuildNetwork, f.Policy = o.BuildNetwork, fetch.Policy(o.Pull)
	if o.Progress != nil {
		f.Progress = &Lines{step: "build", tell: o.Progress}
		f.Notice = func(line string) { o.Progress(sandbox.Event{Detail: line}) }
	}
	return f
}

// Lines tells every line written to it as an event.
type Lines struct {
	step string
	Of   string // what is worked on
	tell func(sandbox.Event)
	rest []byte
}

// Write implements [io.Writer].
func (w *Lines) Write(b []byte) (int, error) {
	w.rest = append(w.rest, b...)
	for {
		line, rest, ok := bytes.Cut(w.rest, []byte{'\n'})
		if !ok {
			return len(b), nil
		}
		if s := strings.TrimSpace(string(line)); s != "" {
			w.tell(sandbox.Event{Step: w.step, Of: w.Of, Detail: s})
		}
		w.rest = append(w.rest[:0], rest...)
	}
}

var _ io.Writer = (*Lines)(nil)
