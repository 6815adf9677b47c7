package vectors

import (
	"reflect"
	"slices"
	"strings"
)

// compareKeys demands that every wanted key is there and equal. null, an empty
// string and an empty list are all "nothing".
func compareKeys(want, got map[string]any) bool {
	for k, w := range want {
		if !equal(w, got[k]) {
			return false
		}
	}
	return true
}

func equal(want, got any) bool {
	return nothing(want) && nothing(got) || reflect.DeepEqual(want, got)
}

func nothing(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case string:
		return v == ""
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return false
}

// compareErrors is compareKeys for results that may be an error instead: a
// wanted error is met by any, and no error may come where none is wanted.
func compareErrors(want, got map[string]any) bool {
	_, failed := got["error"]
	if w, ok := want["error"]; ok && w != false {
		if p, ok := want["path"]; ok && failed {
			return equal(p, got["path"])
		}
		return failed
	}
	if _, refused := want["refused"]; !refused && failed {
		return false
	}
	for k, w := range want {
		if k == "error" || k == "ok" && w == true && !failed {
			continue
		}
		if k == "ssh" {
			if !sameAgents(w, got[k]) {
				return false
			}
			continue
		}
		if !subset(w, got[k]) {
			return false
		}
	}
	return true
}

// subset is equal, except that an object may have more keys than wanted.
func subset(want, got any) bool {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return nothing(want) && nothing(got)
		}
		for k, v := range w {
			if !subset(v, g[k]) {
				return false
			}
		}
		return true
	case []any:
		g, _ := got.([]any)
		if len(w) != len(g) {
			return false
		}
		for i := range w {
			if !subset(w[i], g[i]) {
				return false
			}
		}
		return true
	}
	return equal(want, got)
}

func compareDescriptor(want, got map[string]any) bool {
	if want["ok"] != got["ok"] {
		return false
	}
	if s, ok := want["stage"]; ok && want["ok"] == false && s != got["stage"] {
		return false
	}
	if p, ok := want["path"]; ok && p != got["path"] {
		// The path is that of the first error, or of the only one that
		// matters.
		all, _ := got["paths"].([]any)
		if !slices.Contains(all, p) {
			return false
		}
	}
	if p, ok := want["paths"]; ok && !equal(p, got["paths"]) {
		return false
	}
	if n, ok := want["warnings"]; ok && n != got["warnings"] {
		return false
	}
	return true
}

// compareResolve treats the kinds of errors as a set, under our names.
func compareResolve(want, got map[string]any) bool {
	if want["ok"] != got["ok"] {
		return false
	}
	for _, k := range []string{"topological", "layers"} {
		if w, ok := want[k]; ok && !equal(w, got[k]) {
			return false
		}
	}
	if w, ok := want["errors"].([]any); ok {
		g, _ := got["errors"].([]any)
		return slices.Equal(kinds(w), kinds(g))
	}
	return true
}

// kinds sorts error kinds into families, whatever they are called.
func kinds(list []any) []string {
	var out []string
	for _, v := range list {
		s, _ := v.(string)
		for _, f := range []struct{ word, family string }{
			{"integrat", "integrates"}, {"require", "requires"}, {"cycle", "cycle"}, {"duplicate-provider", "duplicate"},
			{"many", "many"}, {"multiple", "many"}, {"workload", "none"}, {"conflict", "conflict"},
		} {
			if strings.Contains(s, f.word) {
				s = f.family
				break
			}
		}
		out = append(out, s)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func compareSurface(want, got map[string]any) bool {
	for k, w := range want {
		switch k {
		case "widenings":
			if !samePairs(w, got[k]) && !(categoriesOnly(w) && sameSet(w, got["categories"])) {
				return false
			}
		case "categories", "fields":
			if !sameSet(w, got[k]) {
				return false
			}
		default:
			if !equal(w, got[k]) {
				return false
			}
		}
	}
	return true
}

// categoriesOnly reports whether a list of widenings leaves the details out.
func categoriesOnly(want any) bool {
	list, _ := want.([]any)
	return len(list) > 0 && !slices.ContainsFunc(list, func(e any) bool { _, ok := e.(string); return !ok })
}

func sameSet(want, got any) bool { return slices.Equal(sorted(want), sorted(got)) }

func sorted(v any) []string {
	list, _ := v.([]any)
	var out []string
	for _, e := range list {
		s, _ := e.(string)
		out = append(out, s)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// samePairs compares sets of [category, detail]; a wanted detail "*" is any.
func samePairs(want, got any) bool {
	w, _ := want.([]any)
	g, _ := got.([]any)
	if len(w) != len(g) {
		return false
	}
	left := slices.Clone(g)
	take := func(e any, anyDetail bool) bool {
		i := slices.IndexFunc(left, func(o any) bool {
			a, _ := e.([]any)
			b, _ := o.([]any)
			return len(a) == 2 && len(b) == 2 && a[0] == b[0] && (anyDetail || a[1] == b[1])
		})
		if i >= 0 {
			left = slices.Delete(left, i, i+1)
		}
		return i >= 0
	}
	open := func(e any) bool {
		a, _ := e.([]any)
		return len(a) == 2 && a[1] == "*"
	}
	for _, wildcards := range []bool{false, true} { // what is exact chooses first
		for _, e := range w {
			if open(e) == wildcards && !take(e, wildcards) {
				return false
			}
		}
	}
	return true
}

func comparePackages(want, got map[string]any) bool {
	if s, ok := want["skip"]; ok && s != false {
		return got["skip"] == true
	}
	return compareKeys(want, got)
}

func compareAnnotations(want, got map[string]any) bool {
	for k, w := range want {
		switch k {
		case "annotations":
			have, _ := got["annotations"].(map[string]any)
			m, _ := w.(map[string]any)
			for key, v := range m {
				if have[key] != v {
					return false
				}
			}
		case "absent":
			have, _ := got["annotations"].(map[string]any)
			list, ok := w.([]any)
			if !ok && w == true && !nothing(got["value"]) {
				return false
			}
			for _, key := range list {
				if s, _ := key.(string); have[s] != nil {
					return false
				}
			}
		case "fail":
			if !sameSet(w, got[k]) {
				return false
			}
		default:
			if g, ok := got[k]; ok {
				if !equal(w, g) {
					return false
				}
			} else if w == false {
				return nothing(got["value"])
			} else if !equal(w, got["value"]) {
				return false
			}
		}
	}
	return true
}

func compareFrontend(want, got map[string]any) bool {
	_, failed := got["error"]
	if w, ok := want["error"]; ok && w != false {
		return failed
	}
	if failed {
		return false
	}
	for k, w := range want {
		g, ok := got[k]
		switch {
		case k == "collisions":
			if !sameCollisions(w, g) {
				return false
			}
		case k == "fail":
			if !sameSet(w, g) {
				return false
			}
		case k == "Env" || k == "delta":
			if !equal(dropEmpty(w), dropEmpty(g)) {
				return false
			}
		case !ok && !nothing(w):
			return false
		case !subset(w, g):
			return false
		}
	}
	return true
}

func dropEmpty(v any) any {
	m, ok := v.(map[string]any)
	if !ok {
		return v
	}
	out := map[string]any{}
	for k, e := range m {
		if !nothing(e) && e != false {
			out[k] = e
		}
	}
	return out
}

// sameCollisions accepts paths, with or without a leading slash, or objects
// with a path.
func sameCollisions(want, got any) bool {
	norm := func(v any) []string {
		list, _ := v.([]any)
		var out []string
		for _, e := range list {
			s, ok := e.(string)
			if m, isMap := e.(map[string]any); isMap && !ok {
				s, _ = m["path"].(string)
			}
			out = append(out, strings.TrimPrefix(s, "/"))
		}
		slices.Sort(out)
		return slices.Compact(out)
	}
	return slices.Equal(norm(want), norm(got))
}
