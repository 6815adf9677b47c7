package lifecycle

import (
	"fmt"
	"strings"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/merge"
)

// mergeAll concatenates hooks and files in composition order; repeated hooks
// stay, because each Kit relies on its own. One file written by two Kits
// conflicts even if they agree on it, and so do two stated interactive tails.
//
// In a set being published, a file path may still wait for the environment of
// the sandbox. Whether it meets another is known only at create, so that Kit's
// entry stands apart, and so do all behind it: hooks keep their order.
func mergeAll(mode capability.MergeMode, cs []capability.Contribution) ([]capability.Contribution, []capability.Conflict) {
	var (
		out       []capability.Contribution
		conflicts []capability.Conflict
		tail      *capability.Contribution
		files     = map[string]capability.Contribution{}
		apart     bool
		run       []capability.Contribution // neighbours that become one entry
		joined    Config
	)
	flush := func() {
		if len(run) == 0 {
			return
		}
		c := merge.All(run)
		if len(run) > 1 {
			r, err := capability.Encode(Type, joined)
			if err != nil { // not reached: what was decoded can be encoded
				out, run, joined = append(out, run...), nil, Config{}
				return
			}
			c.Request.Config = r.Config
		}
		out, run, joined = append(out, c), nil, Config{}
	}
	for _, c := range cs {
		config, ok := Peek(c.Request)
		if !ok {
			flush()
			out = append(out, c)
			continue
		}
		waits := false
		for _, f := range config.Files {
			if mode == capability.MergePublish && capability.HasReference(f.Path) {
				if strings.Contains(strings.ReplaceAll(f.Path, " ", ""), "${{kit.args.") {
					conflicts = append(conflicts, merge.Conflict(f.Path, fmt.Sprintf("leaves the file path %s open: a set can only publish a path that is known, or that the environment of the sandbox completes", f.Path), c))
				}
				waits = true
				continue
			}
			dest := f.Dest()
			if first, taken := files[dest]; taken {
				conflicts = append(conflicts, merge.Conflict(dest, "write one file, "+dest, first, c))
				continue
			}
			files[dest] = c
		}
		if config.Interactive != nil {
			if tail != nil {
				conflicts = append(conflicts, merge.Conflict("interactive", "state two interactive tails, and only one launch can be meant", *tail, c))
			} else {
				tail = &c
			}
		}
		if waits {
			flush()
			apart = true
		}
		c.Apart = c.Apart || apart
		run = append(run, c)
		joined.Install = append(joined.Install, config.Install...)
		joined.Startup = append(joined.Startup, config.Startup...)
		joined.Files = append(joined.Files, config.Files...)
		if joined.Interactive == nil {
			joined.Interactive = config.Interactive
		}
		if waits {
			flush()
		}
	}
	flush()
	return out, conflicts
}
