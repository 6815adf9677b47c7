// Package audit is the record of what the boundary decided: one [Decision] per
// line of a JSON Lines file that only grows.
//
// A sandbox can make the boundary refuse as often as it likes, so repeats are
// folded into one line with a count. Nothing is dropped without a count.
package audit

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/kitbox-dev/kitbox/internal/plan"
)

// Schema is the version of the JSON form of a [Decision].
const Schema = 1

// A Kind is what was decided about.
type Kind string

const (
	DNS      Kind = "dns"      // a question to the resolver
	Connect  Kind = "connect"  // a TCP connection
	Request  Kind = "request"  // an HTTP request on a connection that is looked into
	Packet   Kind = "packet"   // a packet that is neither
	Cut      Kind = "cut"      // a live connection that a change of phase or policy ended
	Overflow Kind = "overflow" // decisions that were too many to be written one by one
)

// Outcomes of a decision.
const (
	Allow  = "allow"
	Deny   = "deny"
	Failed = "failed" // allowed, but the destination could not be reached
)

// A Decision is one line of the log. Its JSON form is versioned by Schema.
type Decision struct {
	Schema   int        `json:"schema"`
	Time     time.Time  `json:"time"`
	Sandbox  string     `json:"sandbox"`
	Phase    plan.Phase `json:"phase"`
	Kind     Kind       `json:"kind"`
	Verdict  string     `json:"verdict"` // allow, deny or failed
	Host     string     `json:"host"`
	Port     uint16     `json:"port,omitempty"`
	Protocol string     `json:"protocol,omitempty"` // tcp, tls, http, https, udp, icmp, dns
	Method   string     `json:"method,omitempty"`   // of a request
	Path     string     `json:"path,omitempty"`     // as it was sent; never its query, which can hold secrets
	Rule     string     `json:"rule,omitempty"`     // the deciding pattern as declared
	Source   string     `json:"source,omitempty"`   // of the rule
	Why      string     `json:"why"`

	// Credential names the services whose proof was put into the request,
	// separated by commas; empty when there was none.
	Credential string `json:"credential,omitempty"`

	Dialled string `json:"dialled,omitempty"` // the address that was connected to
	Count   int    `json:"count"`             // how many decisions this line stands for; never 0
}

// Ample is the size in bytes from which a log grows slowly: at most some ten
// megabytes a day.
const Ample = 64 << 20

// maxField bounds each text of a line in bytes. The longest host name has 253.
const maxField = 300

// A Log writes decisions to W. Set its fields before the first call. Its
// methods can be called concurrently.
type Log struct {
	// W receives whole lines, one Write each; required. Open it with
	// O_APPEND so that lines of two processes do not mix.
	W io.Writer

	// Window is how long repeats of a decision are gathered before they are
	// written as one line with a count. Zero means 10 seconds.
	Window time.Duration

	// PerWindow is how many lines are written one by one within a Window;
	// what exceeds it is counted per kind and verdict. Zero means 1000.
	PerWindow int

	// Held is how many bytes W has already. From Ample on, only every
	// hundredth of PerWindow is written one by one: a sandbox must not be
	// able to fill the host's disk with what it was refused.
	Held int64

	file *os.File // of Open

	mu      sync.Mutex
	opened  time.Time         // of the current window; guarded by mu
	lines   int               // written in it; guarded by mu
	seen    map[key]*Decision // written in it, with the repeats in Count; guarded by mu
	timer   *time.Timer       // ends the window; guarded by mu
	closed  bool              // guarded by mu
	failure error             // the first of W; guarded by mu
}

// A key is what makes two decisions the same.
type key struct {
	sandbox              string
	phase                plan.Phase
	kind                 Kind
	verdict, host, proto string
	port                 uint16
	rule, source, why    string
	method, path         string
	credential           string
}

// freeAllows is how often an allowed connection to one destination is written
// in a window before repeats are folded: a busy client is worth a line each, a
// loop is not.
const freeAllows = 16

// Open returns a Log that appends to the file at path, which only its owner may
// read: it says where a sandbox went. A last line that a killed process left
// unfinished is ended first. Close closes the file too.
func Open(path string) (*Log, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("decision log: %w", err)
	}
	if fi, err := f.Stat(); err == nil && fi.Size() > 0 {
		last := make([]byte, 1)
		if _, err := f.ReadAt(last, fi.Size()-1); err == nil && last[0] != '\n' {
			_, _ = f.Write([]byte{'\n'})
		}
	}
	l := &Log{W: f, file: f}
	if fi, err := f.Stat(); err == nil {
		l.Held = fi.Size()
	}
	return l, nil
}

// Write adds d. It sets the schema, fills in a missing time and a count of 1,
// and cuts texts that are too long.
func (l *Log) Write(d Decision) {
	d.Schema = Schema
	if d.Count < 1 {
		d.Count = 1
	}
	for _, s := range []*string{&d.Host, &d.Rule, &d.Source, &d.Why, &d.Dialled, &d.Sandbox, &d.Method, &d.Path, &d.Credential} {
		*s = clean(*s)
	}
	k := key{d.Sandbox, d.Phase, d.Kind, d.Verdict, d.Host, d.Protocol, d.Port, d.Rule, d.Source, d.Why, d.Method, d.Path, d.Credential}

	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	if d.Time.IsZero() {
		d.Time = time.Now()
	}
	d.Time = d.Time.UTC()
	if l.timer == nil {
		l.opened, l.lines, l.seen = d.Time, 0, map[key]*Decision{}
		l.timer = time.AfterFunc(l.window(), l.endWindow)
	}
	again := l.seen[k]
	if again == nil && l.lines >= l.perWindow() {
		d = Decision{Schema: Schema, Time: d.Time, Sandbox: d.Sandbox, Phase: d.Phase, Kind: Overflow,
			Verdict: d.Verdict, Host: "*", Protocol: string(d.Kind), Count: d.Count,
			Why: fmt.Sprintf("more than %d different decisions in %v", l.perWindow(), l.window())}
		k = key{sandbox: d.Sandbox, phase: d.Phase, kind: d.Kind, verdict: d.Verdict, proto: d.Protocol}
		if again = l.seen[k]; again == nil {
			again = &Decision{}
			*again = d
			again.Count = 0
			l.seen[k] = again
		}
	}
	if again == nil {
		l.line(d)
		d.Count = 0
		if d.Verdict == Allow {
			d.Count = -freeAllows + 1
		}
		l.seen[k] = &d
		return
	}
	if again.Count < 0 && l.lines >= l.perWindow() {
		again.Count = 0
	}
	if again.Count < 0 {
		again.Count++
		l.line(d)
		return
	}
	again.Time = d.Time
	again.Count += d.Count
}

// Flush writes the counts that are being gathered.
func (l *Log) Flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flush()
}

// Close flushes and discards what is written afterwards. It closes the file of
// [Open] and leaves any other W alone. The error is the first of writing.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return l.failure
	}
	l.flush()
	l.closed = true
	if l.file != nil {
		if err := l.file.Close(); err != nil && l.failure == nil {
			l.failure = err
		}
	}
	return l.failure
}

func (l *Log) endWindow() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil && time.Since(l.opened) >= l.window() {
		l.flush()
	}
}

// flush ends the window; l.mu is held.
func (l *Log) flush() {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	for _, d := range l.seen {
		if d.Count > 0 {
			l.line(*d)
		}
	}
	l.seen = nil
}

// line writes one line; l.mu is held.
func (l *Log) line(d Decision) {
	b, err := json.Marshal(d)
	if err == nil {
		var n int
		n, err = l.W.Write(append(b, '\n'))
		l.Held += int64(n)
	}
	if err != nil && l.failure == nil {
		l.failure = err
	}
	l.lines++
}

func (l *Log) window() time.Duration {
	if l.Window > 0 {
		return l.Window
	}
	return 10 * time.Second
}

func (l *Log) perWindow() int {
	n := 1000
	if l.PerWindow > 0 {
		n = l.PerWindow
	}
	if l.Held >= Ample {
		n = max(n/100, 1)
	}
	return n
}

// clean bounds s and makes it valid UTF-8; JSON escapes the rest.
func clean(s string) string {
	if len(s) > maxField {
		s = s[:maxField] + "..."
	}
	return strings.ToValidUTF8(s, "?")
}
