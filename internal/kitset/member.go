package kitset

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/constraint"
	"github.com/kitbox-dev/kitbox/spec/content"
)

const (
	// lookups is how many Kits are asked for at once.
	lookups = 8

	// maxMembers and maxDocuments, in bytes, bound what is in memory while a set
	// is assembled: registries decide how large the documents of their Kits are.
	maxMembers   = 256
	maxDocuments = 128 << 20
)

// A member is one listed Kit, pinned.
type member struct {
	*fetch.Artifact
	ref        string // as the set lists it
	descriptor spec.Descriptor
}

// fetchMembers resolves every listed Kit, in the order of the list. What is
// pinned is what the reference stands for: the index, where there is one.
func fetchMembers(ctx context.Context, f *fetch.Fetcher, list []spec.KitRef) ([]*member, error) {
	if len(list) > maxMembers {
		return nil, fmt.Errorf("kits: a set lists %d Kits at most, this one %d: make a set of sets: %w", maxMembers, len(list), kiterr.ErrRefused)
	}
	var size atomic.Int64
	members := make([]*member, len(list))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(lookups)
	for i, k := range list {
		g.Go(func() error {
			m, err := fetchMember(gctx, f, k)
			if err != nil {
				return fmt.Errorf("kits[%d]: %w", i, err)
			}
			for _, im := range m.Images {
				if size.Add(im.Descriptor.Size+im.Manifest.Config.Size) > maxDocuments {
					return fmt.Errorf("kits[%d]: with those of %s the documents of the listed Kits have more than %d bytes: %w", i, m.ref, maxDocuments, kiterr.ErrRefused)
				}
			}
			members[i] = m
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	first := map[string]int{}
	for i, m := range members {
		d := m.Root.Digest.String()
		if j, again := first[d]; again {
			return nil, fmt.Errorf("kits[%d]: %s is the same Kit as %s of kits[%d], %s: list it once: %w", i, m.ref, members[j].ref, j, d, kiterr.ErrRefused)
		}
		first[d] = i
	}
	return members, nil
}

func fetchMember(ctx context.Context, f *fetch.Fetcher, k spec.KitRef) (*member, error) {
	// A reference without a registry names one all the same (§3.4).
	img, err := constraint.ParseImage(k.Ref)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, kiterr.ErrRefused)
	}
	ref := img.Repository
	switch pin := img.Digest; {
	case k.Digest != "" && pin != "" && pin != k.Digest:
		return nil, fmt.Errorf("%s and the digest %s are two different Kits: %w", k.Ref, k.Digest, kiterr.ErrRefused)
	case k.Digest != "" || pin != "":
		if pin == "" {
			pin = k.Digest
		}
		ref += "@" + pin
	case img.Tag != "":
		ref += ":" + img.Tag
	}
	a, err := f.Artifact(ctx, ref)
	if err != nil {
		return nil, err
	}
	doc, err := spec.DecodePublished(a.Descriptor)
	if err != nil {
		return nil, fmt.Errorf("kit %s: %w", k.Ref, err)
	}
	return &member{a, k.Ref, doc.Descriptor}, nil
}

// image returns the one for p, or nil.
func (m *member) image(p ocispec.Platform) *layout.Image {
	for i := range m.Images {
		if same(platformOf(m.Images[i]), p) {
			return &m.Images[i]
		}
	}
	return nil
}

// stems are the directories of staged sources that the documents tell of.
func (m *member) stems() []string {
	var out []string
	for _, note := range stageNotes(m.Images[0]) {
		if stem := strings.TrimPrefix(note, content.StageNote); stem != "" && !strings.Contains(stem, "/") {
			out = append(out, stem)
		}
	}
	return out
}

// stageNotes says of every layer what its history states about staged sources,
// or nothing.
func stageNotes(im layout.Image) []string {
	notes := make([]string, len(im.Manifest.Layers))
	n := 0
	for _, h := range im.Config.History {
		if h.EmptyLayer {
			continue
		}
		if n < len(notes) && strings.HasPrefix(h.CreatedBy, content.StageNote) {
			notes[n] = h.CreatedBy
		}
		n++
	}
	if n != len(notes) {
		return make([]string, len(notes)) // it tells of other layers
	}
	return notes
}

func platformOf(im layout.Image) ocispec.Platform {
	if p := im.Descriptor.Platform; p != nil && p.OS != "" {
		return *p
	}
	return im.Config.Platform
}

// same compares what programs can tell apart. The first 64-bit ARM is the
// variant that images of none are for.
func same(a, b ocispec.Platform) bool {
	variant := func(p ocispec.Platform) string {
		if p.Architecture == "arm64" && p.Variant == "v8" {
			return ""
		}
		return p.Variant
	}
	return a.OS == b.OS && a.Architecture == b.Architecture && variant(a) == variant(b)
}

// platforms returns those that the set is made for: wanted, which every Kit has
// to have, or those that all have, in the order of the first.
func platforms(members []*member, wanted []ocispec.Platform) ([]ocispec.Platform, error) {
	if len(wanted) > 0 {
		for _, p := range wanted {
			for _, m := range members {
				if m.image(p) == nil {
					return nil, fmt.Errorf("kit %s has no image for %s, it has %s: %w", m.ref, layout.PlatformName(p), m.platformNames(), kiterr.ErrRefused)
				}
			}
		}
		return wanted, nil
	}
	var common []ocispec.Platform
	for _, im := range members[0].Images {
		p := platformOf(im)
		everywhere := true
		for _, m := range members[1:] {
			everywhere = everywhere && m.image(p) != nil
		}
		if everywhere {
			common = append(common, ocispec.Platform{OS: p.OS, Architecture: p.Architecture, Variant: p.Variant})
		}
	}
	if len(common) == 0 {
		var have []string
		for _, m := range members {
			have = append(have, m.ref+" has "+m.platformNames())
		}
		return nil, fmt.Errorf("its Kits have no platform in common: %s: %w", strings.Join(have, "; "), kiterr.ErrRefused)
	}
	return common, nil
}

func (m *member) platformNames() string {
	var names []string
	for _, im := range m.Images {
		names = append(names, im.Platform())
	}
	return strings.Join(names, ", ")
}

// dropped says for which platforms of a Kit the set is not made, and why.
func dropped(members []*member, made []ocispec.Platform) []string {
	var lines []string
	for _, m := range members {
		for _, im := range m.Images {
			p := platformOf(im)
			if slices.ContainsFunc(made, func(o ocispec.Platform) bool { return same(o, p) }) {
				continue
			}
			for _, o := range members {
				if o.image(p) == nil {
					if line := fmt.Sprintf("the set is not made for %s: %s has no image for it", im.Platform(), o.ref); !slices.Contains(lines, line) {
						lines = append(lines, line)
					}
					break
				}
			}
		}
	}
	return lines
}
