package credential

import (
	"fmt"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/merge"
)

// mergeAll splits entries per phase and lets one Kit own a service in a phase.
// Even two identical entries conflict: whose credential it is decides which
// Kit's hooks and files see its sentinel.
func mergeAll(mode capability.MergeMode, cs []capability.Contribution) ([]capability.Contribution, []capability.Conflict) {
	var split []capability.Contribution
	for _, c := range cs {
		config, ok := Peek(c.Request)
		if !ok || config.Phase.Fault(capability.Effective) != "" || len(config.Phase) < 2 {
			split = append(split, c)
			continue
		}
		for _, p := range config.Phase {
			part := c
			part.From = merge.Parts(c)
			part.Request.Config = merge.With(c.Request.Config, "phase", jsontext.Value(`"`+p+`"`))
			split = append(split, part)
		}
	}
	key := func(c capability.Contribution) (string, bool) {
		config, ok := Peek(c.Request)
		if !ok || len(config.Phase) != 1 || config.Phase.Open() || capability.HasReference(config.Service) {
			return "", false
		}
		return config.Service + " " + string(config.Phase[0]), true
	}
	return merge.Instances(mode, split, key, func(a, b capability.Contribution, k string) (capability.Contribution, *capability.Conflict) {
		config, _ := Peek(a.Request)
		conflict := merge.Conflict(k, fmt.Sprintf("declare the credential %s in the %s phase, which only one Kit can own", config.Service, config.Phase[0]), a, b)
		return a, &conflict
	})
}
