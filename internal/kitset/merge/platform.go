package merge

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/kiterr"
)

// Normal is p as images state it: the first 64-bit ARM, and the seventh 32-bit
// one, are the variants that images of none are for.
func Normal(p ocispec.Platform) ocispec.Platform {
	p = ocispec.Platform{OS: p.OS, Architecture: p.Architecture, Variant: p.Variant}
	switch {
	case p.Architecture == "arm64" && p.Variant == "v8":
		p.Variant = ""
	case p.Architecture == "arm" && p.Variant == "":
		p.Variant = "v7"
	}
	return p
}

// Same compares what programs can tell apart.
func Same(a, b ocispec.Platform) bool { return name(Normal(a)) == name(Normal(b)) }

func name(p ocispec.Platform) string {
	if p.Variant != "" {
		return p.OS + "/" + p.Architecture + "/" + p.Variant
	}
	return p.OS + "/" + p.Architecture
}

// Stated refuses an image that an index lists for another platform than its config
// is for: one of the two would be what the set is made for, and who takes it goes by
// the other. Nil is no index, or one that does not say. A variant may be stated in
// one place only.
func Stated(index *ocispec.Platform, config ocispec.Platform) error {
	if index == nil || index.OS == "" || index.OS == config.OS && index.Architecture == config.Architecture {
		return nil
	}
	return fmt.Errorf("its index lists an image for %s whose config says %s [SPEC-v3 §10/platform-stated]: %w", name(*index), name(config), kiterr.ErrRefused)
}

// At returns the index of m's image for p, or -1.
func (m Member) At(p ocispec.Platform) int {
	return slices.IndexFunc(m.Images, func(im Image) bool { return Same(im.Platform, p) })
}

func (m Member) platforms() string {
	var names []string
	for _, im := range m.Images {
		names = append(names, name(im.Platform))
	}
	return strings.Join(names, ", ")
}

// Platforms returns those that the set is made for, by name: wanted, which every
// Kit has to have, or those that all have.
func (s *Set) Platforms(wanted []ocispec.Platform) ([]ocispec.Platform, error) {
	var out []ocispec.Platform
	for _, p := range wanted {
		for i, m := range s.members {
			if m.At(p) < 0 {
				return nil, &Error{listed(i), fmt.Errorf("kit %s has no image for %s, it has %s: %w", m.Ref, name(p), m.platforms(), kiterr.ErrRefused)}
			}
		}
		out = append(out, Normal(p))
	}
	if len(wanted) == 0 {
		for _, im := range s.members[0].Images {
			if !slices.ContainsFunc(s.members, func(m Member) bool { return m.At(im.Platform) < 0 }) {
				out = append(out, Normal(im.Platform))
			}
		}
	}
	if len(out) == 0 {
		var have []string
		for _, m := range s.members {
			have = append(have, m.Ref+" has "+m.platforms())
		}
		return nil, fmt.Errorf("its Kits have no platform in common: %s: %w", strings.Join(have, "; "), kiterr.ErrRefused)
	}
	slices.SortFunc(out, func(a, b ocispec.Platform) int { return cmp.Compare(name(a), name(b)) })
	return slices.CompactFunc(out, Same), nil
}

// Dropped says for which platforms of a Kit the set is not made, and why.
func (s *Set) Dropped(made []ocispec.Platform) []string {
	var lines []string
	for _, m := range s.members {
		for _, im := range m.Images {
			if slices.ContainsFunc(made, func(o ocispec.Platform) bool { return Same(o, im.Platform) }) {
				continue
			}
			for _, o := range s.members {
				if o.At(im.Platform) < 0 {
					if line := fmt.Sprintf("the set is not made for %s: %s has no image for it", name(im.Platform), o.Ref); !slices.Contains(lines, line) {
						lines = append(lines, line)
					}
					break
				}
			}
		}
	}
	return lines
}
