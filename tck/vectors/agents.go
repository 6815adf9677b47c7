package vectors

import (
	"fmt"
	"slices"
	"strings"
)

// sameAgents compares what merged ssh-agent entries allow. Vector files project
// it in several ways: a list of configs, a list of tuples that begin with the
// phase, or an object by phase.
func sameAgents(want, got any) bool {
	w, g := agents(want), agents(got)
	return len(w) > 0 == (len(g) > 0) && slices.Equal(w, g)
}

// agents spells every entry of a projection, sorted.
func agents(v any) []string {
	var out []string
	switch v := v.(type) {
	case map[string]any:
		for phase, rest := range v {
			out = append(out, agent(phase, rest))
		}
	case []any:
		for _, e := range v {
			switch e := e.(type) {
			case map[string]any:
				out = append(out, agent(fmt.Sprint(e["phase"]), e))
			case []any:
				if len(e) > 0 {
					out = append(out, agent(fmt.Sprint(e[0]), e[1:]...))
				}
			default:
				out = append(out, agent(fmt.Sprint(e)))
			}
		}
	}
	slices.Sort(out)
	return out
}

// agent spells one entry: a config, or a flag and the two lists in a row.
func agent(phase string, parts ...any) string {
	var lists [][]string
	for _, p := range parts {
		switch p := p.(type) {
		case map[string]any:
			lists = append(lists, texts(p["sign"]), texts(p["authenticate"]))
		case []any:
			lists = append(lists, texts(p))
		}
	}
	var names []string
	for i, l := range lists {
		for _, s := range l {
			names = append(names, fmt.Sprintf("%d %s", i, s))
		}
	}
	if len(names) == 0 {
		names = []string{"unrestricted"}
	}
	return phase + ": " + strings.Join(names, ", ")
}

func texts(v any) []string {
	list, _ := v.([]any)
	out := make([]string, 0, len(list))
	for _, e := range list {
		out = append(out, fmt.Sprint(e))
	}
	return out
}
