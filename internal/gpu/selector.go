package gpu

import (
	"fmt"
	"strconv"
	"strings"
)

// accepted is what a selector can be, for messages.
const accepted = "a count such as 1, all, or names joined by commas: of CDI (nvidia.com/gpu=0), of a node (nvidia0, renderD128), or index=N, from 0 on"

// maxSelector bounds a selector, in bytes.
const maxSelector = 1024

// A selector is a choice among GPUs: the first count, all, or those of names.
type selector struct {
	count int
	all   bool
	names []string
}

func parse(s string) (selector, error) {
	bad := func() (selector, error) {
		if len(s) > 60 {
			s = s[:60] + "…"
		}
		return selector{}, fmt.Errorf("%q is no selector; it can be %s", s, accepted)
	}
	if s == "all" {
		return selector{all: true}, nil
	}
	if s == "" || len(s) > maxSelector {
		return bad()
	}
	if strings.Trim(s, "0123456789") == "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || s[0] == '0' {
			return bad()
		}
		return selector{count: n}, nil
	}
	names := strings.Split(s, ",")
	for _, name := range names {
		if name == "" || name == "all" || strings.ContainsRune("0123456789.-_:=", rune(name[0])) || strings.ContainsFunc(name, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._:/=-", r))
		}) {
			return bad()
		}
		if index, ok := strings.CutPrefix(name, "index="); ok {
			if _, err := strconv.ParseUint(index, 10, 31); err != nil {
				return bad()
			}
		}
	}
	return selector{names: names}, nil
}

// Select returns the GPUs that a selector chooses. The error says what selectors can
// be, what there is, or what is in the way, in words that go on from "asks for GPU
// S, and".
func (f Found) Select(s string) ([]GPU, error) {
	sel, err := parse(s)
	if err != nil {
		return nil, err
	}
	if len(f.GPUs) == 0 {
		return nil, f.none()
	}
	countable := f.countable()
	switch {
	case sel.all:
		return sound(countable)
	case sel.count > 0:
		var out []GPU
		var faults string
		for _, g := range countable {
			if g.Fault != nil {
				faults += fmt.Sprintf("; %s cannot be had: %v", g.Name, g.Fault)
			} else if len(out) < sel.count {
				out = append(out, g)
			}
		}
		if len(out) < sel.count {
			return nil, fmt.Errorf("this machine has %d (%s)%s", len(countable), f.list(), faults)
		}
		return out, nil
	}
	var out []GPU
	for _, name := range sel.names {
		g := f.find(name, countable)
		if g == nil {
			return nil, fmt.Errorf("this machine has no %s, but %s", name, f.list())
		}
		twice := false
		for _, have := range out {
			twice = twice || have.Name == g.Name
		}
		if !twice {
			out = append(out, *g)
		}
	}
	return sound(out)
}

func (f Found) find(name string, countable []GPU) *GPU {
	if index, ok := strings.CutPrefix(name, "index="); ok {
		if n, err := strconv.ParseUint(index, 10, 31); err == nil && n < uint64(len(countable)) {
			return &countable[n]
		}
		return nil
	}
	for i := range f.GPUs {
		if f.GPUs[i].answersTo(name) {
			return &f.GPUs[i]
		}
	}
	return nil
}

// countable is the single ones.
func (f Found) countable() (out []GPU) {
	for _, g := range f.GPUs {
		if !g.several {
			out = append(out, g)
		}
	}
	return out
}

// list names what there is.
func (f Found) list() string {
	var names []string
	for i, g := range f.GPUs {
		if i == 16 {
			names = append(names, "…")
			break
		}
		names = append(names, g.Name)
	}
	return strings.Join(names, ", ")
}

// sound returns gs unless one of them cannot be had.
func sound(gs []GPU) ([]GPU, error) {
	for _, g := range gs {
		if g.Fault != nil {
			return nil, fmt.Errorf("%s cannot be had: %w", g.Name, g.Fault)
		}
	}
	return gs, nil
}
