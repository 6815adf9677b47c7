package networkpolicy

import (
	"fmt"
	"slices"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/merge"
)

// mergeAll makes one policy of all: entries unite per phase, and a host that
// one Kit is granted outright stays so however narrowly another bounds it. The
// result is of version 2 as soon as one contribution is.
func mergeAll(_ capability.MergeMode, cs []capability.Contribution) ([]capability.Contribution, []capability.Conflict) {
	if len(cs) < 2 {
		return cs, nil
	}
	var union Config
	var members, undecoded []capability.Contribution
	typ := Type
	for _, c := range cs {
		config, ok := Peek(c.Request)
		if !ok {
			undecoded = append(undecoded, c) // its problem is reported where it is checked
			continue
		}
		members = append(members, c)
		if c.Request.Type == TypeV2 {
			typ = TypeV2
		}
		union.Install = union.Install.and(config.Install)
		union.Runtime = union.Runtime.and(config.Runtime)
	}
	if len(members) < 2 {
		return cs, nil
	}
	union.Install = Rules{withoutCovered(union.Install.Allow), distinct(union.Install.Deny)}
	union.Runtime = Rules{withoutCovered(union.Runtime.Allow), distinct(union.Runtime.Deny)}
	r, err := capability.Encode(typ, union)
	if err != nil {
		return cs, nil
	}
	merged := merge.All(members)
	merged.Request.Type, merged.Request.Config = r.Type, r.Config
	return append([]capability.Contribution{merged}, undecoded...), nil
}

// and appends the entries of s. Its receiver owns its lists, as a result of and.
func (r Rules) and(s Rules) Rules {
	return Rules{Allow: append(r.Allow, s.Allow...), Deny: append(r.Deny, s.Deny...)}
}

// distinct returns entries without repetitions.
func distinct(entries []Entry) []Entry {
	seen := make(map[string]bool, len(entries))
	var out []Entry
	for _, e := range entries {
		if id := e.id(); !seen[id] {
			seen[id] = true
			out = append(out, e)
		}
	}
	return out
}

// id spells e so that no two entries are spelled alike. Every text is quoted,
// because a path may hold any character that could otherwise separate it.
func (e Entry) id() string {
	if e.bare() {
		return "=" + e.Hosts[0]
	}
	return fmt.Sprintf("%q %q %t %q %t", e.Hosts, e.Methods, e.Methods == nil, e.Paths, e.Paths == nil)
}

// withoutCovered removes from the bounded entries exactly the hosts that are
// also granted unbounded, and entries of which nothing remains. A wildcard
// swallows nothing but itself: what it matches is not known here.
func withoutCovered(entries []Entry) []Entry {
	granted := map[string]bool{}
	for _, e := range entries {
		if !e.Bounded() {
			for _, h := range e.Hosts {
				granted[h] = true
			}
		}
	}
	var out []Entry
	for _, e := range entries {
		if e.Bounded() {
			e.Hosts = slices.DeleteFunc(slices.Clone(e.Hosts), func(h string) bool { return granted[h] })
			if len(e.Hosts) == 0 {
				continue
			}
		}
		out = append(out, e)
	}
	return distinct(out) // two may have become the same by losing different hosts
}
