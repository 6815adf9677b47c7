package cover

import (
	"fmt"
	"path"
	"strings"

	"github.com/kitbox-dev/kitbox/internal/plan"
)

// maxPattern bounds a pattern, in bytes.
const maxPattern = 1024

// Check says what is wrong with a rule.
func Check(c plan.Cover) error {
	switch c.Kind {
	case plan.CoverHide, plan.CoverKeep, plan.CoverPin, plan.CoverForbid:
	default:
		return fmt.Errorf("cover %q: there is no kind %q", c.Pattern, c.Kind)
	}
	p := strings.Trim(c.Pattern, "/")
	if p == "" || len(p) > maxPattern || strings.ContainsRune(p, 0) {
		return fmt.Errorf("%q is no pattern of files", c.Pattern)
	}
	for _, e := range strings.Split(p, "/") {
		if e == "" || e == "." || e == ".." {
			return fmt.Errorf("pattern %q has an empty element, \".\" or \"..\"; write a path below the directory", c.Pattern)
		}
		if _, err := path.Match(e, ""); err != nil {
			return fmt.Errorf("pattern %q: %q is no pattern; '[' begins a class that ']' ends", c.Pattern, e)
		}
	}
	if c.Make != "" && (c.Make != plan.MakeDir && c.Make != plan.MakeFile || strings.Contains(c.Pattern, "**") || !strings.HasPrefix(c.Pattern, "/")) {
		return fmt.Errorf("cover %q: %q cannot be made there", c.Pattern, c.Make)
	}
	return nil
}

// A rule is a pattern taken apart.
type rule struct {
	kind     plan.CoverKind
	anywhere bool     // a name at any depth
	elements []string // otherwise, of a path below the root
	dirs     bool     // matches directories only
	once     bool
}

func parse(cs []plan.Cover) ([]rule, error) {
	var rs []rule
	for _, c := range cs {
		if err := Check(c); err != nil {
			return nil, err
		}
		p := strings.TrimSuffix(c.Pattern, "/")
		r := rule{kind: c.Kind, dirs: p != c.Pattern, anywhere: !strings.Contains(p, "/"), once: c.Once}
		r.elements = strings.Split(strings.TrimPrefix(p, "/"), "/")
		rs = append(rs, r)
	}
	return rs, nil
}

// matches reports whether r is about rel, a path below the root.
func (r rule) matches(rel string, dir bool) bool {
	if r.dirs && !dir {
		return false
	}
	if r.anywhere {
		ok, _ := path.Match(r.elements[0], path.Base(rel))
		return ok
	}
	return matchPath(r.elements, strings.Split(rel, "/"))
}

func matchPath(pattern, names []string) bool {
	for len(pattern) > 0 {
		if pattern[0] == "**" {
			for i := range len(names) + 1 {
				if matchPath(pattern[1:], names[i:]) {
					return true
				}
			}
			return false
		}
		if len(names) == 0 {
			return false
		}
		if ok, _ := path.Match(pattern[0], names[0]); !ok {
			return false
		}
		pattern, names = pattern[1:], names[1:]
	}
	return len(names) == 0
}

// below reports whether r may be about something in the directory rel.
func (r rule) below(rel string) bool {
	if r.anywhere || rel == "." {
		return true
	}
	names := strings.Split(rel, "/")
	for i, e := range r.elements {
		if e == "**" {
			return true
		}
		if i == len(names) {
			return true
		}
		if ok, _ := path.Match(e, names[i]); !ok {
			return false
		}
	}
	return false
}
