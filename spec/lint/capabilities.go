package lint

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/hostpattern"
	"github.com/kitbox-dev/kitbox/capability/networkpolicy"
	"github.com/kitbox-dev/kitbox/capability/wellknown"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/spelling"
)

// dispensable are words by which an author says that a Kit works without.
var dispensable = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b(optional(ly)?|nice to have|(if|when|where) (available|present|possible|bound|supported|offered|the host (has|offers|supports)))\b`)
})

// couldBeOptional speaks up only where the author, or the type's own page, has
// said that the Kit can do without.
func couldBeOptional(k *kit, report reporter) {
	for _, e := range k.entries {
		switch {
		case e.optional:
		case e.Type == capability.Namespace+"/acp@1":
			report(e.path+".type", "hosts that do not know acp@1 refuse the Kit: add optional: true, the agent runs without it")
		case dispensable().MatchString(e.Description):
			report(e.path+".description", fmt.Sprintf("the description reads as if the Kit could do without, but a host without %s refuses it: add optional: true", short(e.Type)))
		}
	}
}

func short(typ string) string { return strings.TrimPrefix(typ, capability.Namespace+"/") }

const formerNamespace = "com.docker.runtime/"

func renamedNamespace(k *kit, report reporter) {
	for _, e := range k.entries {
		if name, ok := strings.CutPrefix(e.Type, formerNamespace); ok {
			report(e.path+".type", fmt.Sprintf("no host knows the old namespace: write %s/%s", capability.Namespace, name))
		}
	}
}

// unknownType finds types close to a well-known one. A later version of a known
// type is for hosts of tomorrow, and other namespaces are their owners'.
func unknownType(k *kit, report reporter) {
	var known []string
	for _, d := range wellknown.Definitions() {
		known = append(known, d.Types...)
	}
	for _, e := range k.entries {
		name, ok := strings.CutPrefix(e.Type, capability.Namespace+"/")
		if _, found := wellknown.Find(e.Type); !ok || found {
			continue
		}
		base, _, _ := strings.Cut(name, "@")
		best, at := "", 3
		later := false
		for _, t := range known {
			b, _, _ := strings.Cut(short(t), "@")
			if b == base {
				later, best = true, t // the last is the newest
				continue
			}
			if n := spelling.Distance(squeeze(base), squeeze(b), at); !later && n < at && (n < len(b)/2 || swapped(base, b)) {
				best, at = t, n
			}
		}
		switch {
		case later && !e.optional:
			report(e.path+".type", fmt.Sprintf("a host that does not know %s refuses the Kit: add optional: true, or write %s", name, short(best)))
		case !later && best != "":
			report(e.path+".type", fmt.Sprintf("%s is not a well-known type: did you mean %s?", name, short(best)))
		case !later && !e.optional:
			report(e.path+".type", fmt.Sprintf("%s is not a well-known type, and a host that does not know it refuses the Kit: add optional: true", name))
		}
	}
}

// swapped reports whether b is a with two neighbouring letters exchanged, which is
// one slip and a distance of two: too far for a short word otherwise.
func swapped(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) - 1 {
		if a[i] != b[i] {
			return a[i] == b[i+1] && a[i+1] == b[i] && a[i+2:] == b[i+2:]
		}
	}
	return false
}

func squeeze(s string) string { return strings.NewReplacer("-", "", "_", "", ".", "").Replace(s) }

func privilegedWhy(k *kit, report reporter) {
	for _, e := range k.entries {
		if e.Type == capability.Namespace+"/privileged@1" && strings.TrimSpace(e.Description) == "" {
			report(e.path+".type", "a person decides about privileged@1 and is told nothing: add a description that says what for")
		}
	}
}

func resourcesInMixin(k *kit, report reporter) {
	if k.Kind != spec.KindMixin {
		return
	}
	for _, e := range k.entries {
		if e.Type == capability.Namespace+"/resources@1" {
			report(e.path+".type", "the workload owns the composition's resources: declare them there, or say in the mixin's description what it needs")
		}
	}
}

// unusableHosts finds patterns that the grammar lets pass for the sake of hosts
// that might understand them, and that a boundary refuses with the whole Kit.
func unusableHosts(k *kit, report reporter) {
	for _, e := range k.entries {
		if e.Type != typeNetwork && e.Type != typeNetworkV2 {
			continue
		}
		c, ok := networkpolicy.Peek(*e.Request)
		if !ok {
			continue
		}
		unusable(c.Install.Allow, true, e.path+".config.install.allow", report)
		unusable(c.Install.Deny, false, e.path+".config.install.deny", report)
		unusable(c.Runtime.Allow, true, e.path+".config.runtime.allow", report)
		unusable(c.Runtime.Deny, false, e.path+".config.runtime.deny", report)
	}
}

func unusable(entries []networkpolicy.Entry, allow bool, list string, report reporter) {
	for i, entry := range entries {
		for j, h := range entry.Hosts {
			if capability.HasReference(h) || hostpattern.Fault(h) != "" { // the latter is an error already
				continue
			}
			p, err := hostpattern.Parse(h)
			at := list + "[" + strconv.Itoa(i) + "]"
			if len(entry.Hosts) > 1 || entry.Bounded() {
				at += ".hosts[" + strconv.Itoa(j) + "]"
			}
			switch {
			case err != nil:
				report(at, fmt.Sprintf("a Kit with this rule does not start: %v", err))
			case allow && entry.Bounded() && p.Scope == hostpattern.Network && !p.Prefix.IsSingleIP():
				report(at, fmt.Sprintf("a Kit with this rule does not start: what allows particular requests names its host, and %s is a range of addresses", strconv.QuoteToASCII(h)))
			}
		}
	}
}
