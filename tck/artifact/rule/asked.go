package rule

import (
	"cmp"
	"encoding/json"
	"path"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/agentcontext"
	"github.com/kitbox-dev/kitbox/capability/lifecycle"
	"github.com/kitbox-dev/kitbox/capability/networkpolicy"
	"github.com/kitbox-dev/kitbox/capability/wellknown"
	"github.com/kitbox-dev/kitbox/resolve"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/content"
	"github.com/kitbox-dev/kitbox/spec/surface"
)

// setCapabilities finds what the Kits ask for and the set does not, or not so
// much of: entries, what stands in them, hooks, files and guidance, and entries
// that became optional. The set's own declarations may add to all of that.
func (j *judge) setCapabilities() {
	j.eachMerging(func(im *Image, m *merging) {
		for _, f := range m.faults {
			if f.id == idMerged {
				j.fail(im, "kits", "%s", f.message)
			}
		}
		want, have := classes(ungrouped(m.want)), classes(ungrouped(j.doc.Descriptor))
		for _, c := range want {
			theirs := have.of(c.name)
			switch c.name {
			case networkpolicy.Type:
				j.setNetwork(im, c, theirs)
			case lifecycle.Type:
				j.setOptional(im, c, theirs)
				j.setInteractive(im, c, theirs)
			case agentcontext.Type:
				j.setOptional(im, c, theirs)
				j.setProfiles(im, c)
			default:
				j.setEntries(im, c, theirs)
			}
		}
		j.setHooks(im, m)
		j.setGuidance(im, m)
	})
}

// ungrouped returns the entries that stand in no group, and those that merging
// sets apart because only create can tell what they meet: each is in a group of
// its own then, and came from outside of one.
func ungrouped(d spec.Descriptor) (out []capability.Request) {
	for _, it := range d.Capabilities {
		if it.Group == nil {
			out = append(out, it.Request)
		} else if apart(it.Group) {
			r := it.Group.Capabilities[0]
			r.Optional = it.Group.Optional
			out = append(out, r)
		}
	}
	return out
}

func apart(g *spec.Group) bool {
	return len(g.Capabilities) == 1 && g.Name == "" && g.Description == "" &&
		g.Capabilities[0].Source != nil && !strings.Contains(g.Capabilities[0].Source.Path, ".group.")
}

// A class is the entries of types that merge with each other.
type class struct {
	name    string // the first of the types
	entries []capability.Request
}

type classList []class

func (l classList) of(name string) class {
	for _, c := range l {
		if c.name == name {
			return c
		}
	}
	return class{name: name}
}

// classes sorts entries by class, in the order of their first.
func classes(rs []capability.Request) (out classList) {
	at := map[string]int{}
	for _, r := range rs {
		name := className(r.Type)
		i, ok := at[name]
		if !ok {
			i = len(out)
			at[name] = i
			out = append(out, class{name: name})
		}
		out[i].entries = append(out[i].entries, r)
	}
	return out
}

func className(typ string) string {
	if def, known := wellknown.Find(typ); known {
		return def.Types[0]
	}
	return typ
}

// canonical is what entries that ask for the same share.
func canonical(r capability.Request) string {
	if r.Config == nil {
		return r.Type
	}
	return r.Type + " " + string(spec.CanonicalConfig(r.Config))
}

// setEntries holds entries against those of the set by merging the two again:
// what was in already changes nothing. An entry that is equal is known without,
// which also is the only way for types that never merge.
func (j *judge) setEntries(im *Image, want, have class) {
	contributions := func(kit string, rs []capability.Request) (out []capability.Contribution) {
		for _, r := range rs {
			out = append(out, capability.Contribution{Kit: kit, Request: r})
		}
		return out
	}
	base := contributions("the set", have.entries)
	if merged, err := resolve.Merge(capability.MergePublish, base); err == nil {
		base = merged
	}
	optional := map[string]bool{} // what the set asks for, and whether all of it is
	for _, c := range base {
		key := canonical(c.Request)
		before, seen := optional[key]
		optional[key] = c.Request.Optional && (!seen || before)
	}
	hold := func(r capability.Request) bool {
		was, ok := optional[canonical(r)]
		if ok && was && !r.Optional {
			j.fail(im, "capabilities", "%.200s is optional, and a Kit it lists requires it", canonical(r))
		}
		return ok
	}
	var rest []capability.Request
	for _, r := range want.entries {
		if !hold(r) {
			rest = append(rest, r)
		}
	}
	if len(rest) == 0 {
		return
	}
	merged, err := resolve.Merge(capability.MergePublish, append(slices.Clone(base), contributions("a Kit it lists", rest)...))
	if err != nil {
		for _, f := range explain(err) {
			j.fail(im, "capabilities", "does not ask for %s as a Kit it lists does: %s", want.name, f.message)
		}
		return
	}
	for _, c := range merged {
		if !hold(c.Request) {
			j.fail(im, "capabilities", "%.200s, which a Kit it lists asks for, is missing", canonical(c.Request))
		}
	}
}

// setOptional finds required entries that became optional, of types that are
// one entry.
func (j *judge) setOptional(im *Image, want, have class) {
	required := func(r capability.Request) bool { return !r.Optional }
	switch {
	case len(have.entries) == 0:
		j.fail(im, "capabilities", "%s, which a Kit it lists asks for, is missing", want.name)
	case slices.ContainsFunc(want.entries, required) && !slices.ContainsFunc(have.entries, required):
		j.fail(im, "capabilities", "%s is optional, and a Kit it lists requires it", want.name)
	}
}

// setNetwork compares what is allowed and denied. How hosts are spread over
// entries is the set's own affair.
func (j *judge) setNetwork(im *Image, want, have class) {
	j.setOptional(im, want, have)
	for _, c := range surface.Diff(surface.Project(have.entries), surface.Project(want.entries)).Widenings {
		if !strings.HasSuffix(c.Category, "-removed") { // a denial of the set's own
			j.fail(im, "capabilities", "%s %s, which a Kit it lists asks for, is missing", c.Category, c.Detail)
		}
	}
	for _, c := range surface.Diff(surface.Project(want.entries), surface.Project(have.entries)).Widenings {
		if strings.HasSuffix(c.Category, "-removed") { // the same hosts would be reached all the same
			j.fail(im, "capabilities", "%s %s, which a Kit it lists denies, is missing", strings.TrimSuffix(c.Category, "-removed"), c.Detail)
		}
	}
}

// setInteractive finds a launch that is another. An empty tail is stated too.
func (j *judge) setInteractive(im *Image, want, have class) {
	for _, w := range want.entries {
		tail, stated := lifecycle.Interactive(w)
		if !stated {
			continue
		}
		if !slices.ContainsFunc(have.entries, func(h capability.Request) bool {
			got, ok := lifecycle.Interactive(h)
			return ok && slices.Equal(got, tail)
		}) {
			j.fail(im, "capabilities", "lifecycle: interactive %q of a Kit it lists is missing or changed", []string(tail))
		}
	}
}

// setHooks finds hooks and files that are missing, or hooks in another order.
func (j *judge) setHooks(im *Image, m *merging) {
	want, got := hooksOf(m.want.Requests()), hooksOf(j.doc.Requests())
	for _, list := range []string{"install", "startup", "files"} {
		rest := got[list]
		for _, h := range want[list] {
			i := slices.Index(rest, h)
			switch {
			case i >= 0 && list != "files": // files have no order
				rest = rest[i+1:]
			case slices.Contains(got[list], h) && list != "files":
				j.fail(im, "capabilities", "lifecycle: a hook of %s is not in composition order: %.80s", list, h)
			case i < 0:
				j.fail(im, "capabilities", "lifecycle: one of %s of a Kit it lists is missing: %.80s", list, h)
			}
		}
	}
}

// hooksOf returns hooks and files of all lifecycle entries as they are encoded.
func hooksOf(rs []capability.Request) map[string][]string {
	out := map[string][]string{}
	for _, r := range rs {
		if r.Type != lifecycle.Type {
			continue
		}
		var c map[string]json.RawMessage
		if json.Unmarshal(r.Config, &c) != nil {
			continue
		}
		for list, raw := range c {
			var hooks []json.RawMessage
			if json.Unmarshal(raw, &hooks) != nil {
				continue
			}
			for _, h := range hooks {
				// The order of keys is the publisher's own.
				out[list] = append(out[list], string(spec.CanonicalConfig(jsontext.Value(h))))
			}
		}
	}
	return out
}

// setProfiles finds guidance files that agents look for and that the set does
// not name. A profile with a directory stays whatever there is beside it; one
// without gives way to those.
func (j *judge) setProfiles(im *Image, want class) {
	var profiles []agentcontext.Config
	for _, r := range j.requests(agentcontext.Type) {
		if c, ok := agentcontext.Peek(r); ok {
			profiles = append(profiles, c)
		}
	}
	explicit := slices.ContainsFunc(profiles, agentcontext.Config.Explicit)
	for _, r := range want.entries {
		w, ok := agentcontext.Peek(r)
		if !ok || !w.Explicit() && (!w.Legacy() || explicit) {
			continue
		}
		if !slices.ContainsFunc(profiles, func(h agentcontext.Config) bool {
			return h.Filename == w.Filename && path.Clean(h.Directory) == path.Clean(w.Directory)
		}) {
			j.fail(im, "capabilities", "agent-context: the file %s that a Kit it lists names is missing", cmp.Or(path.Join(w.Directory, w.Filename), "?"))
		}
	}
}

// setGuidance finds guidance of Kits that the set does not carry. Bodies of
// several Kits become one, inline or in a file that the set stages, which is not
// read.
func (j *judge) setGuidance(im *Image, m *merging) {
	if len(m.faults) > 0 {
		return
	}
	var texts, staged []string
	for _, r := range j.requests(agentcontext.Type) {
		if c, ok := agentcontext.Peek(r); ok {
			texts = append(texts, c.Content)
			staged = append(staged, c.ContentFile)
		}
	}
	own := path.Join(content.StageRoot, j.own(im))
	if slices.ContainsFunc(staged, func(file string) bool { return file != "" && under(path.Clean(file), own) }) {
		return
	}
	carried := func(text string) bool {
		return slices.ContainsFunc(texts, func(t string) bool { return strings.Contains(t, text) })
	}
	for _, k := range j.doc.Kits {
		for _, r := range ungrouped(m.kits[k.Ref].Descriptor) {
			c, ok := agentcontext.Peek(r)
			switch body := strings.TrimRight(c.Content, "\n"); {
			case r.Type != agentcontext.Type || !ok || capability.HasReference(string(r.Config)):
			case c.ContentFile != "" && !slices.Contains(staged, c.ContentFile) && !carried(c.ContentFile):
				j.fail(im, "capabilities", "agent-context: %s, the guidance of %s, is missing", c.ContentFile, k.Ref)
			case body != "" && !carried(body):
				j.fail(im, "capabilities", "agent-context: the guidance of %s is missing: %.60q", k.Ref, body)
			}
		}
	}
}
