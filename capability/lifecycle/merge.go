package lifecycle

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/guestpath"
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
		current   Config // of the last element of out, if joinable
		joinable  bool
	)
	for _, c := range cs {
		config, ok := Peek(c.Request)
		if !ok {
			out, joinable = append(out, c), false
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
			dest := guestpath.Clean(f.Path)
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
		if joinable && !waits {
			current.Install = append(current.Install, config.Install...)
			current.Startup = append(current.Startup, config.Startup...)
			current.Files = append(current.Files, config.Files...)
			if current.Interactive == nil {
				current.Interactive = config.Interactive
			}
			last := &out[len(out)-1]
			joined := merge.Join(*last, c)
			joined.Apart = last.Apart
			if r, err := capability.Encode(Type, current); err == nil {
				joined.Request.Config = r.Config
				*last = joined
			}
			continue
		}
		apart = apart || waits
		c.Apart = c.Apart || apart
		out = append(out, c)
		current, joinable = config.clone(), !waits
	}
	return slices.Clip(out), conflicts
}
