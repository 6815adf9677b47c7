package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// A line is one measurement in words.
type line struct {
	what, peer   string
	ours, theirs string // figures
	ratio, cpu   string // empty: none
	bar, aim     string // empty: none
	ok           string // of verdict; empty: nothing to judge
}

const pass, fail = "pass", "MISSED"

func verdict(ok bool) string {
	if ok {
		return pass
	}
	return fail
}

// compared makes a line of two series. bar and aim are ratios; 0 is none.
func compared(what, peer string, ours, theirs series, bar, aim float64) line {
	r := ratio(ours.walls(), theirs.walls())
	l := line{what: what, peer: peer, ours: times(ours), theirs: times(theirs), ratio: factor(r)}
	if c := ratio(ours.cpus(), theirs.cpus()); c > 0 {
		l.cpu = factor(c)
	}
	if bar > 0 {
		l.bar, l.ok = fmt.Sprintf("≤ %g×", bar), verdict(r <= bar)
	}
	if aim > 0 {
		l.aim = fmt.Sprintf("%g×", aim)
	}
	return l
}

// factor writes a ratio with two figures that say something.
func factor(r float64) string {
	if r < 0.1 {
		return fmt.Sprintf("%.2g", r)
	}
	return fmt.Sprintf("%.2f", r)
}

func times(s series) string {
	return fmt.Sprintf("%s (%s)", show(median(s.walls())), show(quantile(s.walls(), 0.99)))
}

// show writes d with three figures or fewer.
func show(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
	case d < 10*time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.0f s", d.Seconds())
}

// A report is what one run has measured.
type report struct {
	machine         string
	rounds          int
	load, loadAfter string
	lines           []line
}

func (r *report) add(l line) { r.lines = append(r.lines, l) }

func (r *report) missed() (n int) {
	for _, l := range r.lines {
		if l.ok == fail {
			n++
		}
	}
	return n
}

// conditions says where the figures come from.
func (r *report) conditions() string {
	return fmt.Sprintf("%s; %d rounds, in turns; load average %s before and %s after.", r.machine, r.rounds, r.load, r.loadAfter)
}

func (r *report) text() string {
	var b strings.Builder
	fmt.Fprintln(&b, r.conditions())
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "what\tours\tpeer\tratio\tcpu\tbar\taim\tverdict")
	for _, l := range r.lines {
		fmt.Fprintf(w, "%s\t%s\t%s: %s\t%s\t%s\t%s\t%s\t%s\n", l.what, l.ours, l.peer, l.theirs, l.ratio, l.cpu, l.bar, l.aim, l.ok)
	}
	w.Flush()
	return b.String()
}

func (r *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Written by `make bench`. %s\n\n", r.conditions())
	b.WriteString("Times are the median and, in parentheses, the 99th percentile. The ratio is taken within each round and is the\n" +
		"median of all rounds; \"processor\" is the same ratio of processor time, with that of every process that was started.\n" +
		"crun runs the same layers with the same seccomp profile and limits, without a user namespace, a network or hooks.\n\n")
	b.WriteString("| What | Ours | Peer | Ratio | Processor | Bar | Aim | Verdict |\n|---|---|---|---|---|---|---|---|\n")
	for _, l := range r.lines {
		fmt.Fprintf(&b, "| %s | %s | %s: %s | %s | %s | %s | %s | %s |\n", l.what, l.ours, l.peer, l.theirs, l.ratio, l.cpu, l.bar, l.aim, l.ok)
	}
	return b.String()
}

// The measured part of the document stands between these.
const begin, end = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"

// write replaces the measured part of the document at path and keeps the rest.
func (r *report) write(path string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	b, err := replace(old, r.markdown())
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, b, 0o644)
}

func replace(doc []byte, measured string) ([]byte, error) {
	before, rest, ok := bytes.Cut(doc, []byte(begin))
	_, after, ok2 := bytes.Cut(rest, []byte(end))
	if !ok || !ok2 {
		return nil, fmt.Errorf("there is no part between %q and %q", strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return fmt.Appendf(nil, "%s%s\n%s\n\n%s%s", before, begin, strings.TrimSpace(measured), end, after), nil
}

// machine is the shape of this one, and nothing that names it.
func machine() string {
	kernel := "an unknown kernel"
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		release := unix.ByteSliceToString(u.Release[:])
		if v := strings.SplitN(release, ".", 3); len(v) > 1 {
			release = v[0] + "." + v[1]
		}
		kernel = "Linux " + release
	}
	return fmt.Sprintf("%s, %d cores, %s, %s", kernel, runtime.NumCPU(), runtime.GOARCH, runtime.Version())
}

// load is the load average of the last minute.
func load() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(b), " ")
	return first
}
