package agentcontext

import (
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/merge"
)

// A Body is what one Kit contributes.
type Body struct {
	Kit         string
	Content     string // the text, or
	ContentFile string // where it is in the image
}

// Bodies returns the bodies that the parts of cs contribute, in order.
func Bodies(cs ...capability.Contribution) []Body {
	var bodies []Body
	for _, c := range cs {
		for _, p := range merge.Parts(c) {
			if config, ok := Peek(p.Request); ok && config.HasBody() {
				bodies = append(bodies, Body{p.Kit, config.Content, config.ContentFile})
			}
		}
	}
	return bodies
}

func mergeAll(mode capability.MergeMode, cs []capability.Contribution) ([]capability.Contribution, []capability.Conflict) {
	if mode == capability.MergeRuntime {
		return forSandbox(cs)
	}
	return Publish(cs, inline)
}

// inline joins bodies without a place to stage them: text that is in a file of
// the image is pointed at.
func inline(bodies []Body) Config {
	var parts []string
	for _, b := range bodies {
		if b.ContentFile != "" {
			parts = append(parts, "Read "+b.ContentFile+".")
			continue
		}
		parts = append(parts, strings.TrimRight(b.Content, "\n"))
	}
	return Config{Content: strings.Join(parts, "\n\n") + "\n"}
}

// classes is contributions by what they do.
type classes struct {
	explicit []capability.Contribution // profiles by directory and name
	legacy   []capability.Contribution // profiles by name alone
	bodies   []capability.Contribution // no profile
	opaque   []capability.Contribution // of another shape
}

func classify(cs []capability.Contribution) classes {
	var s classes
	for _, c := range cs {
		switch config, ok := Peek(c.Request); {
		case !ok:
			s.opaque = append(s.opaque, c)
		case config.Explicit():
			s.explicit = append(s.explicit, c)
		case config.Legacy():
			s.legacy = append(s.legacy, c)
		default:
			s.bodies = append(s.bodies, c)
		}
	}
	return s
}

// owners says that two Kits name the legacy profile.
func (s classes) owners() []capability.Conflict {
	if len(s.legacy) < 2 {
		return nil
	}
	return []capability.Conflict{merge.Conflict("filename", "name the agent's context file without a directory, and only one Kit can own it", s.legacy...)}
}

// forSandbox keeps every body apart, because the index of the profile lists
// Kits one by one. Every distinct explicit profile stays; one is enough for a
// legacy file name to lose its meaning.
func forSandbox(cs []capability.Contribution) ([]capability.Contribution, []capability.Conflict) {
	s := classify(cs)
	if len(s.explicit) == 0 {
		return cs, s.owners()
	}
	var out []capability.Contribution
	profiles := map[string]int{} // index in out
	for _, c := range cs {
		config, ok := Peek(c.Request)
		switch {
		case !ok:
		case config.Legacy() && !config.HasBody():
			continue
		case config.Legacy():
			c = withConfig(c, Config{Content: config.Content, ContentFile: config.ContentFile})
		case config.Explicit():
			if i, seen := profiles[config.Profile()]; seen && !config.HasBody() {
				out[i] = merge.Join(out[i], c)
				continue
			} else if !seen {
				profiles[config.Profile()] = len(out)
			}
		}
		out = append(out, c)
	}
	return out, nil
}

// Publish merges contributions for a set (§9.5). Each distinct explicit profile
// survives. If one of them is required, the bodies of all Kits become one body,
// which rides the first required profile. If all are optional, which of them
// will exist is known at create: each stands apart with the bodies of its own,
// and what remains forms one entry without a directory. Several bodies become
// one through stage, which returns a Config with a body and nothing else.
func Publish(cs []capability.Contribution, stage func([]Body) Config) ([]capability.Contribution, []capability.Conflict) {
	s := classify(cs)
	profiles := gather(s.explicit)
	required := slices.IndexFunc(profiles, func(c capability.Contribution) bool { return !c.Request.Optional })
	var conflicts []capability.Conflict
	var out []capability.Contribution

	if required >= 0 {
		for i, c := range profiles {
			config, _ := Peek(c.Request)
			config.Content, config.ContentFile = "", ""
			if i == required {
				for _, other := range cs {
					if !contains(c, other) && len(Bodies(other)) > 0 {
						c.From = append(slices.Clone(merge.Parts(c)), other)
					}
				}
				config = config.with(Bodies(cs...), stage)
			}
			out = append(out, withConfig(c, config))
		}
		return append(out, s.opaque...), nil
	}

	for _, c := range profiles {
		config, _ := Peek(c.Request)
		config.Content, config.ContentFile = "", ""
		c.Apart = true
		out = append(out, withConfig(c, config.with(Bodies(c), stage)))
	}
	var rest []capability.Contribution
	for _, c := range cs {
		if config, ok := Peek(c.Request); ok && !config.Explicit() {
			rest = append(rest, c)
		}
	}
	conflicts = s.owners()
	if len(rest) > 0 {
		joined := rest[0]
		for _, c := range rest[1:] {
			joined = merge.Join(joined, c)
		}
		config := Config{}
		if len(s.legacy) > 0 {
			legacy, _ := Peek(s.legacy[0].Request)
			config.Filename = legacy.Filename
		}
		out = append(out, withConfig(joined, config.with(Bodies(rest...), stage)))
	}
	return append(out, s.opaque...), conflicts
}

// gather joins the explicit profiles that name one file.
func gather(cs []capability.Contribution) []capability.Contribution {
	out, _ := merge.Keyed(cs, func(c capability.Contribution) (string, bool) {
		config, ok := Peek(c.Request)
		return config.Profile(), ok
	}, merge.Restated)
	return out
}

// contains reports whether part is one of those that c was joined from.
func contains(c, part capability.Contribution) bool {
	return slices.ContainsFunc(merge.Parts(c), func(p capability.Contribution) bool {
		return p.Kit == part.Kit && merge.SameConfig(p.Request, part.Request)
	})
}

// with returns c with bodies: as it is if there is one, staged if there are
// several.
func (c Config) with(bodies []Body, stage func([]Body) Config) Config {
	switch len(bodies) {
	case 0:
	case 1:
		c.Content, c.ContentFile = bodies[0].Content, bodies[0].ContentFile
	default:
		body := stage(bodies)
		c.Content, c.ContentFile = body.Content, body.ContentFile
	}
	return c
}

// withConfig returns c asking for config instead, and remembering what it was.
func withConfig(c capability.Contribution, config Config) capability.Contribution {
	r, err := capability.Encode(Type, config)
	if err != nil || merge.SameConfig(r, c.Request) {
		return c
	}
	c.From = merge.Parts(c)
	c.Request.Config = r.Config
	return c
}
