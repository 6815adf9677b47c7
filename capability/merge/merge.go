// Package merge holds what the merge rules of the types have in common: which
// labels stay when requests become one, and the shapes that most rules have.
// The rules themselves are in the packages of the types (§9.5).
package merge

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/kitbox-dev/kitbox/capability"
)

// Join returns a with b folded into it: a required ask wins over an optional
// one, the first nonempty name and description stay, and From names both. The
// config is a's.
func Join(a, b capability.Contribution) capability.Contribution {
	return All([]capability.Contribution{a, b})
}

// All joins cs, of which there must be one at least, in order.
func All(cs []capability.Contribution) capability.Contribution {
	out := cs[0]
	if len(cs) == 1 {
		return out
	}
	n := 0
	for i := range cs {
		n += max(1, len(cs[i].From))
	}
	out.From = make([]capability.Contribution, 0, n)
	for i := range cs {
		c := &cs[i]
		out.Request.Optional = out.Request.Optional && c.Request.Optional
		if out.Request.Name == "" {
			out.Request.Name = c.Request.Name
		}
		if out.Request.Description == "" {
			out.Request.Description = c.Request.Description
		}
		out.Workload = out.Workload || c.Workload
		if c.From == nil {
			out.From = append(out.From, *c)
		} else {
			out.From = append(out.From, c.From...)
		}
	}
	return out
}

// Parts returns the contributions that c was merged from; c itself if none.
func Parts(c capability.Contribution) []capability.Contribution {
	if c.From != nil {
		return c.From
	}
	return []capability.Contribution{c}
}

// Kits returns the Kits of cs in order, without repeats.
func Kits(cs ...capability.Contribution) []string {
	var kits []string
	for _, c := range cs {
		for _, p := range Parts(c) {
			if !slices.Contains(kits, p.Kit) {
				kits = append(kits, p.Kit)
			}
		}
	}
	return kits
}

// Conflict says that cs cannot stand together on key. Clause is what follows
// the names of the Kits, e.g. "ask for different volumes at /data".
func Conflict(key, clause string, cs ...capability.Contribution) capability.Conflict {
	kits := Kits(cs...)
	return capability.Conflict{Kits: kits, Key: key, Message: strings.Join(kits, " and ") + " " + clause}
}

// SameConfig reports whether two requests state one config, whatever the order
// of its fields.
func SameConfig(a, b capability.Request) bool {
	return bytes.Equal(canonical(a.Config), canonical(b.Config))
}

func canonical(v jsontext.Value) []byte {
	c := v.Clone()
	if c.Canonicalize(jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false)) != nil {
		return v
	}
	return c
}

// Keyed merges contributions that meet on a key. Combine is given the first of
// that key with all that was folded into it, and the next; it returns their
// merger, or false and the conflict. A contribution without a key stays as it
// is, unless an earlier one states the very same config.
func Keyed(
	cs []capability.Contribution,
	key func(capability.Contribution) (string, bool),
	combine func(a, b capability.Contribution, key string) (capability.Contribution, *capability.Conflict),
) ([]capability.Contribution, []capability.Conflict) {
	var out []capability.Contribution
	var conflicts []capability.Conflict
	place := make(map[string]int, len(cs)) // of a key in out
	for _, c := range cs {
		k, ok := key(c)
		if !ok {
			k = "\x00" + string(canonical(c.Request.Config)) // which no type spells as a key
		}
		i, seen := place[k]
		switch {
		case !seen:
			place[k] = len(out)
			out = append(out, c)
		case !ok:
			out[i] = Join(out[i], c)
		default:
			merged, conflict := combine(out[i], c, k)
			if conflict != nil {
				conflicts = append(conflicts, *conflict)
				continue
			}
			out[i] = merged
		}
	}
	return out, conflicts
}

// Instances is [Keyed] for types of which several entries may stand in a block.
// In a set being published, an entry whose key is not known yet stands apart as
// soon as there is another that it may turn out to meet.
func Instances(
	mode capability.MergeMode,
	cs []capability.Contribution,
	key func(capability.Contribution) (string, bool),
	combine func(a, b capability.Contribution, key string) (capability.Contribution, *capability.Conflict),
) ([]capability.Contribution, []capability.Conflict) {
	out, conflicts := Keyed(cs, key, combine)
	for i := range out {
		if _, ok := key(out[i]); mode == capability.MergePublish && !ok && len(out) > 1 && capability.HasReference(string(out[i].Request.Config)) {
			out[i].Apart = true
		}
	}
	return out, conflicts
}

// Restated folds b into a, for types where meeting on a key is asking for the
// same thing.
func Restated(a, b capability.Contribution, _ string) (capability.Contribution, *capability.Conflict) {
	return Join(a, b), nil
}

// With returns config, a JSON object, with the field name set to value. Other
// fields keep their text; config is returned unchanged if it is no object.
func With(config jsontext.Value, name string, value jsontext.Value) jsontext.Value {
	fields := map[string]jsontext.Value{}
	if json.Unmarshal(config, &fields) != nil {
		return config
	}
	fields[name] = value
	b, err := json.Marshal(fields, json.Deterministic(true))
	if err != nil {
		return config
	}
	return b
}

// One merges contributions of which only one may declare something: a
// restatement that same approves of is folded in, anything else conflicts.
func One(cs []capability.Contribution, what string, same func(a, b capability.Request) bool) ([]capability.Contribution, []capability.Conflict) {
	return Keyed(cs, func(capability.Contribution) (string, bool) { return what, true },
		func(a, b capability.Contribution, _ string) (capability.Contribution, *capability.Conflict) {
			if same(a.Request, b.Request) {
				return Join(a, b), nil
			}
			c := Conflict(what, fmt.Sprintf("declare %s differently, and only one declaration can hold", what), a, b)
			return a, &c
		})
}
