// Package audit is the record of what the boundary decided: one [Decision] per
// line of a JSON Lines file whose lines never change.
//
// A sandbox can make the boundary decide as often as it likes, so repeats are
// folded into one line with a count, and nothing is dropped without one. What a
// sandbox was refused has a budget of its own: however much of that it causes, each
// destination that it reached, and each use of a credential, keeps a line that names
// it.
//
// A file that has grown large is put aside (rotate.go), and the oldest of these are
// folded into one that says how often each destination was decided about (fold.go).
// [Read] reads through all of them.
package audit

import (
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
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

// Sizes of a log that [Open] made.
const (
	// Size is how many bytes a file has when it is put aside. A half of it is
	// what each of the two budgets has in a day for lines one by one, so that
	// no sandbox can push the lines of yesterday out.
	Size = 32 << 20

	// Kept is how many files that were put aside stay as they are.
	Kept = 4
)

// maxField bounds each text of a line in bytes. The longest host name has 253.
const maxField = 300

// maxSeen bounds how many different decisions are remembered at a time, for which
// a sandbox could take some ten megabytes.
const maxSeen = 8192

// A Log writes decisions to W. Set its fields before the first call. Its
// methods can be called concurrently.
type Log struct {
	// W receives whole lines, in one Write those of what was decided together;
	// required. Open it with O_APPEND so that lines of two processes do not mix.
	W io.Writer

	// Window is how long repeats of a decision are gathered before they are
	// written as one line with a count. Zero means 10 seconds.
	Window time.Duration

	// PerWindow is how many refusals are written one by one within a Window.
	// A tenth as many more destinations are counted each on a line of its own,
	// and the rest per kind. Four times as many decisions that let something
	// out, or cut it, are written one by one; what exceeds them is counted for
	// each destination and credential, however many there are. A day in which
	// lines have taken half of a file has a thousandth of these. Zero means
	// 1000.
	PerWindow int

	// Bytes stands in for [Size]. Zero means that.
	Bytes int64

	path string   // of Open; empty: nothing is put aside
	file *os.File // of Open

	failing atomic.Pointer[error] // of the last line; nil if that was written
	folding sync.WaitGroup
	busy    atomic.Bool // folding
	ending  atomic.Bool

	mu      sync.Mutex
	opened  time.Time         // of the current window; guarded by mu
	day     time.Time         // when the bytes that were spent began to count; guarded by mu
	spent   [2]budget         // by class; guarded by mu
	seen    map[key]*Decision // written in the window, with the repeats in Count; guarded by mu
	timer   *time.Timer       // ends the window; guarded by mu
	held    int64             // bytes in the file; guarded by mu
	aside   int64             // the least size at which it is put aside; guarded by mu
	closed  bool              // guarded by mu
	failure error             // the first of W; guarded by mu
	batch   batch             // lines that are about to be written; guarded by mu
	torn    bool              // W ends within a line; guarded by mu
	lost    int               // decisions that could not be written; guarded by mu
}

// A class is a kind of decision that has a budget of its own.
type class int

const (
	evidence class = iota // what left the sandbox, or was about to and was cut
	refusal               // what did not; a sandbox makes as many as it likes
)

// budget is what one class has had.
type budget struct {
	lines  int   // one by one, in the window
	places int   // lines about a destination as a whole, in the window
	bytes  int64 // in the day
}

func classOf(d Decision) class {
	if d.Verdict == Deny && d.Kind != Cut && d.Credential == "" {
		return refusal
	}
	return evidence
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

func keyOf(d *Decision) key {
	return key{d.Sandbox, d.Phase, d.Kind, d.Verdict, d.Host, d.Protocol, d.Port, d.Rule, d.Source, d.Why, d.Method, d.Path, d.Credential}
}

// freeAllows is how often an allowed connection to one destination is written
// in a window before repeats are folded: a busy client is worth a line each, a
// loop is not.
const freeAllows = 16

// Open returns a Log that appends to the file at path, which only its owner may
// read: it says where a sandbox went. A last line that a killed process left
// unfinished is ended first. Close closes the file too.
func Open(path string) (*Log, error) {
	f, err := openPart(path, os.O_RDWR|os.O_APPEND|os.O_CREATE)
	if err != nil {
		return nil, fmt.Errorf("decision log: %w", err)
	}
	l := &Log{W: f, file: f, path: path}
	if fi, err := f.Stat(); err == nil && fi.Size() > 0 {
		l.held = fi.Size()
		last := make([]byte, 1)
		_, err := f.ReadAt(last, fi.Size()-1)
		l.torn = err == nil && last[0] != '\n'
	}
	l.foldOld() // what a process that was killed had begun
	return l, nil
}

// Write adds ds, which were decided together. It sets their schema, fills in a missing
// time and a count of 1, and cuts texts that are too long.
func (l *Log) Write(ds ...Decision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	now := time.Now()
	for _, d := range ds {
		if d.Time.IsZero() {
			d.Time = now
		}
		l.add(d)
	}
	l.commit()
}

// add is Write without the writing; l.mu is held.
func (l *Log) add(d Decision) {
	d.Schema = Schema
	if d.Count < 1 {
		d.Count = 1
	}
	for _, s := range []*string{&d.Host, &d.Rule, &d.Source, &d.Why, &d.Dialled, &d.Sandbox, &d.Method, &d.Path, &d.Credential} {
		*s = clean(*s)
	}
	d.Time = d.Time.UTC()
	if l.timer == nil {
		l.begin(d.Time)
	}
	if l.failing.Load() != nil {
		l.line(d)
		l.commit() // every decision is an attempt to go on
		return
	}
	k := keyOf(&d)
	c := classOf(d)
	again, whole := l.seen[k], true
	if again == nil && !l.room(c) {
		again = l.merge(&d, c)
		whole = false
	}
	switch {
	case again == nil:
		if len(l.seen) >= maxSeen {
			l.counts()
			l.seen = map[key]*Decision{}
		}
		k = keyOf(&d)
		l.line(d)
		d.Count = 0
		if whole && d.Verdict == Allow {
			d.Count = -freeAllows + 1
		}
		l.seen[k] = &d
		if whole {
			l.spent[c].lines++
		} else {
			l.spent[c].places++
		}
	case again.Count < 0 && l.room(c):
		again.Count++
		l.line(d)
		l.spent[c].lines++
	default:
		again.Time = d.Time
		again.Count = max(again.Count, 0) + d.Count
	}
}

// begin begins a window; l.mu is held.
func (l *Log) begin(now time.Time) {
	l.opened, l.seen = now, map[key]*Decision{}
	if now.Sub(l.day) >= 24*time.Hour {
		l.day, l.spent = now, [2]budget{}
	}
	for c := range l.spent {
		l.spent[c].lines, l.spent[c].places = 0, 0
	}
	l.timer = time.AfterFunc(l.window(), l.endWindow)
}

// room reports whether the budget of c has a line for one decision; l.mu is held.
func (l *Log) room(c class) bool {
	n := l.perWindow()
	if c == evidence {
		n *= 4
	}
	if l.exhausted(c) {
		n = max(n/1000, 1)
	}
	return l.spent[c].lines < n
}

func (l *Log) exhausted(c class) bool { return l.spent[c].bytes >= l.size()/2 }

// merge makes d one about its destination as a whole, or, if it is a refusal and
// there are too many destinations, one about its kind. It returns what has been
// remembered of that; l.mu is held.
func (l *Log) merge(d *Decision, c class) *Decision {
	whole := *d
	whole.Method, whole.Path, whole.Dialled = "", "", ""
	whole.Why = "too many different decisions to be written one by one; these are counted together"
	if again := l.seen[keyOf(&whole)]; again != nil {
		return again
	}
	places := max(l.perWindow()/10, 1)
	if l.exhausted(c) {
		places = max(places/10, 1)
	}
	if c == evidence || l.spent[c].places < places {
		*d = whole
		return nil
	}
	over := Decision{Schema: Schema, Time: d.Time, Sandbox: d.Sandbox, Phase: d.Phase, Kind: Overflow, Verdict: d.Verdict, Host: "*",
		Protocol: string(d.Kind), Why: fmt.Sprintf("more than %d different decisions in %v", l.perWindow(), l.window())}
	k := keyOf(&over)
	again := l.seen[k]
	if again == nil {
		again = &over
		l.seen[k] = again
	}
	return again
}

// Flush writes the counts that are being gathered.
func (l *Log) Flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flush()
}

// Failing returns why decisions cannot be written now, and nil if the last one was.
// Each that comes is tried again; those that are lost meanwhile are counted on the
// first line that can be written. It waits for nothing.
func (l *Log) Failing() error {
	if err := l.failing.Load(); err != nil {
		return *err
	}
	return nil
}

// Close flushes and discards what is written afterwards. It closes the file of
// [Open] and leaves any other W alone. The error is the first of writing.
func (l *Log) Close() error {
	l.ending.Store(true)
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
	l.folding.Wait() // it has been told, and takes no lock
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
	l.counts()
	l.commit()
	l.seen = nil
}

// counts adds lines for what has been gathered; l.mu is held.
func (l *Log) counts() {
	for _, d := range l.seen {
		if d.Count > 0 {
			l.line(*d)
			d.Count = 0
		}
	}
}

func (l *Log) window() time.Duration {
	if l.Window > 0 {
		return l.Window
	}
	return 10 * time.Second
}

func (l *Log) perWindow() int {
	if l.PerWindow > 0 {
		return l.PerWindow
	}
	return 1000
}

func (l *Log) size() int64 {
	if l.Bytes > 0 {
		return l.Bytes
	}
	return Size
}
