package authoring

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"github.com/kitbox-dev/kitbox/kiterr"
)

// workload is how a descriptor of kind workload shows itself, in a YAML file or
// in the comments of a recipe.
var workload = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^(?:#[ \t]+)?["']?kind["']?[ \t]*:[ \t]*["']?workload\b`)
})

// ambiguous refuses a directory with the descriptors found. A directory of two
// workloads is not merely unclear: no choice among them composes them both.
func ambiguous(dir string, found []string) error {
	var workloads []string
	for _, name := range found {
		if data, err := Read(filepath.Join(dir, name)); err == nil && workload().Match(data) {
			workloads = append(workloads, name)
		}
	}
	if len(workloads) == 2 && len(found) == 2 {
		return fmt.Errorf("%s holds two workloads, %s and %s; a composition has exactly one: name the file: %w", dir, workloads[0], workloads[1], kiterr.ErrRefused)
	}
	last := len(found) - 1
	return fmt.Errorf("%s holds several Kit descriptors, %s and %s: name the file: %w", dir, strings.Join(found[:last], ", "), found[last], kiterr.ErrRefused)
}
