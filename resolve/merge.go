package resolve

import (
	"fmt"
	"strings"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/wellknown"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec"
)

// A MergeError holds everything that contributions of several Kits disagree
// on. It matches [kiterr.ErrRefused].
type MergeError struct{ Conflicts []capability.Conflict }

func (e *MergeError) Error() string {
	parts := make([]string, len(e.Conflicts))
	for i, c := range e.Conflicts {
		parts[i] = c.Message
	}
	return "the Kits cannot be combined: " + strings.Join(parts, "; ")
}

// Is matches the family.
func (e *MergeError) Is(target error) bool { return target == kiterr.ErrRefused }

// Merge makes one ask of contributions, which are in composition order. Each
// type merges by its own rule (§9.5); opaque types by type and whole config.
// Types keep the order in which they first came. What entries of different types
// claim, and what they must agree on, is compared afterwards; in publish mode
// only as far as it is literal. On error it returns a [MergeError] with every
// conflict.
func Merge(mode capability.MergeMode, cs []capability.Contribution) ([]capability.Contribution, error) {
	type class struct {
		def     capability.Definition
		known   bool
		members []capability.Contribution
	}
	var order []*class
	classes := make(map[string]*class)
	for _, c := range cs {
		def, known := wellknown.Find(c.Request.Type)
		key := c.Request.Type
		if known {
			key = def.Types[0]
		}
		cl := classes[key]
		if cl == nil {
			cl = &class{def: def, known: known}
			classes[key] = cl
			order = append(order, cl)
		}
		cl.members = append(cl.members, c)
	}
	var out []capability.Contribution
	var conflicts []capability.Conflict
	owners := claims{held: map[capability.Claim]holder{}}
	for _, cl := range order {
		merge := cl.def.Merge
		if !cl.known || merge == nil {
			merge = mergeOpaque
		}
		merged, bad := merge(mode, cl.members)
		conflicts = append(conflicts, bad...)
		if cl.known && len(order) > 1 {
			conflicts = append(conflicts, owners.compare(cl.def, merged)...)
		}
		out = append(out, merged...)
	}
	if len(conflicts) == 0 {
		conflicts = together(mode, out)
	}
	if len(conflicts) > 0 {
		return nil, &MergeError{conflicts}
	}
	return out, nil
}

// claims remembers who holds what across types.
type claims struct {
	held map[capability.Claim]holder
	in   capability.Inspection
}

type holder struct {
	typ string
	c   capability.Contribution
}

// compare reports claims that a type shares with one before it. Within a type
// its own rule has decided.
func (cl *claims) compare(def capability.Definition, cs []capability.Contribution) []capability.Conflict {
	var conflicts []capability.Conflict
	for _, c := range cs {
		cl.in.Problems, cl.in.Claims, cl.in.Lines = cl.in.Problems[:0], cl.in.Claims[:0], cl.in.Lines[:0]
		def.Inspect(c.Request, capability.Authored, &cl.in)
		for _, claim := range cl.in.Claims {
			key := capability.Claim{Space: claim.Space, Key: claim.Key}
			other, taken := cl.held[key]
			if !taken {
				cl.held[key] = holder{def.Types[0], c}
				continue
			}
			if other.typ == def.Types[0] {
				continue
			}
			kits := contributors(other.c, c)
			conflicts = append(conflicts, capability.Conflict{
				Kits: kits, Key: claim.Key,
				Message: fmt.Sprintf("%s: %s is asked for as %s and as %s", strings.Join(kits, " and "),
					strings.TrimSpace(claim.What+" "+claim.Key), other.c.Request.Type, c.Request.Type),
			})
		}
	}
	return conflicts
}

// contributors returns the Kits behind contributions, in order, once each.
func contributors(cs ...capability.Contribution) []string {
	var kits []string
	seen := map[string]bool{}
	add := func(k string) {
		if !seen[k] {
			seen[k] = true
			kits = append(kits, k)
		}
	}
	for _, c := range cs {
		if c.From == nil {
			add(c.Kit)
		}
		for _, p := range c.From {
			add(p.Kit)
		}
	}
	return kits
}

// mergeOpaque merges entries of a type nobody here knows: those with one and
// the same config are one, required if any was.
func mergeOpaque(_ capability.MergeMode, cs []capability.Contribution) ([]capability.Contribution, []capability.Conflict) {
	var out []capability.Contribution
	at := make(map[string]int, len(cs))
	for _, c := range cs {
		key := c.Request.Type + "\x00"
		if c.Request.Config != nil {
			key += "\x00" + string(spec.CanonicalConfig(c.Request.Config))
		}
		i, ok := at[key]
		if !ok {
			at[key] = len(out)
			out = append(out, c)
			continue
		}
		first := &out[i]
		if first.From == nil {
			first.From = []capability.Contribution{*first}
		}
		first.From = append(first.From, c)
		first.Request.Optional = first.Request.Optional && c.Request.Optional
		if first.Request.Name == "" {
			first.Request.Name = c.Request.Name
		}
		if first.Request.Description == "" {
			first.Request.Description = c.Request.Description
		}
		first.Workload = first.Workload || c.Workload
	}
	return out, nil
}

// together judges the rules between merged entries of different types.
func together(mode capability.MergeMode, cs []capability.Contribution) []capability.Conflict {
	return conflictsOf(cs, spec.Together(requestsOf(cs), mode == capability.MergeRuntime))
}

func requestsOf(cs []capability.Contribution) []capability.Request {
	requests := make([]capability.Request, len(cs))
	for i, c := range cs {
		requests[i] = c.Request
	}
	return requests
}

// conflictsOf says which Kits findings about cs concern.
func conflictsOf(cs []capability.Contribution, findings []spec.Finding) []capability.Conflict {
	var conflicts []capability.Conflict
	for _, f := range findings {
		c := cs[f.Index]
		kits := contributors(c)
		conflicts = append(conflicts, capability.Conflict{
			Kits: kits, Key: f.Path,
			Message: fmt.Sprintf("%s: %s: %s: %s", strings.Join(kits, " and "), c.Request.Type, f.Path, f.Message),
		})
	}
	return conflicts
}
