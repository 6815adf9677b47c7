// Package merge says what the Kits of a set come to (§3.4, §9.5): whether they can
// be listed together, the one descriptor and the annotations they make, the
// platforms that they share, the image config of each and what is staged.
//
// It is pure. Two programs get the documents and lay the layers in a row: package
// kitset, out of manifests and without a builder, and internal/frontend, through
// BuildKit. What they make is the same image.
package merge

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/resolve"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/annotation"
	"github.com/kitbox-dev/kitbox/spec/constraint"
	"github.com/kitbox-dev/kitbox/spec/content"
)

// A Member is one listed Kit, pinned.
type Member struct {
	Ref        string // as the set lists it
	Digest     string // of what the reference stands for: the index, where there is one
	Descriptor spec.Descriptor
	Images     []Image // one per platform

	// Stems are the directories below [content.StageRoot] that its layers are
	// known to hold, beside those that the history of its image tells of.
	Stems []string
}

// An Image is a Kit's for one platform.
type Image struct {
	Platform ocispec.Platform
	Config   ocispec.Image
}

// An Error is a finding about one place in the set's descriptor. It belongs to
// the refused family unless its cause belongs to another.
type Error struct {
	Path string // dotted, such as kits[1]
	Err  error
}

func (e *Error) Error() string { return e.Path + ": " + e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

func refuse(at, format string, args ...any) error {
	return &Error{at, fmt.Errorf(format+": %w", append(args, kiterr.ErrRefused)...)}
}

func listed(i int) string { return fmt.Sprintf("kits[%d]", i) }

// Pinned returns the reference to ask for a listed Kit by: with the digest, where
// one is stated.
func Pinned(k spec.KitRef) (string, error) {
	// A reference without a registry names one all the same (§3.4).
	img, err := constraint.ParseImage(k.Ref)
	if err != nil {
		return "", fmt.Errorf("%w: %w", err, kiterr.ErrRefused)
	}
	ref := img.Repository
	switch pin := img.Digest; {
	case k.Digest != "" && pin != "" && pin != k.Digest:
		return "", fmt.Errorf("%s and the digest %s are two different Kits: %w", k.Ref, k.Digest, kiterr.ErrRefused)
	case k.Digest != "" || pin != "":
		if pin == "" {
			pin = k.Digest
		}
		ref += "@" + pin
	case img.Tag != "":
		ref += ":" + img.Tag
	}
	return ref, nil
}

// A Source is a set before its Kits are known.
type Source struct {
	Stem string          // of its file
	Name string          // the reference it will be known by; empty: not known
	Set  spec.Descriptor // build arguments expanded, content files named by their place in the image
}

// Registries decide how many images and how large documents a name stands for.
// These bound what is in memory while a set is assembled, and what it comes to.
const (
	MaxMembers   = 256
	MaxDocuments = 128 << 20 // bytes of those of all members
	maxLayers    = 1000      // of one platform's image, as in a store
)

// Check refuses what is seen of a set before any Kit is asked for: one that lists
// itself, or too many.
func (s Source) Check() error {
	if n := len(s.Set.Kits); n > MaxMembers {
		return refuse("kits", "a set lists %d Kits at most, this one %d: make a set of sets", MaxMembers, n)
	}
	for i, k := range s.Set.Kits {
		if key(s.Name) != "" && key(k.Ref) == key(s.Name) {
			return refuse(listed(i), "the set lists itself, %s", k.Ref)
		}
	}
	return nil
}

// A Set is what the Kits of a set come to.
type Set struct {
	Stem        string
	Descriptor  spec.Descriptor   // in its published form
	Annotations map[string]string // of every manifest, and of the index if there is one

	merged  *resolve.Merged
	members []Member
	epoch   *int64
}

// Of merges members, which are the Kits that s lists in the order of the list. What
// does not go together is [kiterr.ErrRefused]. Whether sets are in each other is the
// caller's to ask, who can look at more than is listed here.
func Of(s Source, members []Member, o annotation.Options) (*Set, error) {
	first := map[string]int{}
	for i, m := range members {
		if j, again := first[m.Digest]; again {
			return nil, refuse(listed(i), "%s is the same Kit as %s of kits[%d], %s: list it once", m.Ref, members[j].Ref, j, m.Digest)
		}
		first[m.Digest] = i
	}
	if err := once(members); err != nil {
		return nil, err
	}
	if err := separateStems(s.Stem, members); err != nil {
		return nil, err
	}
	var kits []resolve.Kit
	for _, m := range members {
		kits = append(kits, resolve.Kit{Ref: m.Ref, Digest: m.Digest, Descriptor: m.Descriptor})
	}
	merged, err := resolve.MergeSet(s.Set, kits)
	if err != nil {
		return nil, err
	}
	annotations, err := annotation.Derive(merged.Descriptor, o)
	if err != nil {
		return nil, err
	}
	if _, err := spec.DecodePublished([]byte(annotations[annotation.Descriptor])); err != nil {
		return nil, fmt.Errorf("what its Kits come to is no descriptor that can be published: %w", err)
	}
	return &Set{Stem: s.Stem, Descriptor: merged.Descriptor, Annotations: annotations, merged: merged, members: members, epoch: o.SourceDateEpoch}, nil
}

// Order returns which member comes at which place in the row of layers.
func (s *Set) Order() []int {
	var order []int
	for _, k := range s.merged.Layers {
		order = append(order, slices.IndexFunc(s.members, func(m Member) bool { return m.Digest == k.Digest }))
	}
	return order
}

// StagedDescriptor is the set's own kit.yaml: what is published, since what the
// author wrote is no descriptor of the merged Kit.
func (s *Set) StagedDescriptor() ([]byte, error) {
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, []byte(s.Annotations[annotation.Descriptor]), "", "  "); err != nil {
		return nil, err
	}
	pretty.WriteByte('\n')
	return pretty.Bytes(), nil
}

// Fault returns the place in the set's descriptor that err is about, and err
// without it; "kits" if it is about the list as a whole.
func Fault(err error) (at string, rest error) {
	var own *Error
	if errors.As(err, &own) {
		return own.Path, own.Err
	}
	var merged *resolve.SetError
	if errors.As(err, &merged) && (strings.HasPrefix(merged.Path, "kits[") || merged.Path == "kind") {
		return merged.Path, err
	}
	return "kits", err
}

// once refuses a Kit that another listed one, which is a set, has brought already.
func once(members []Member) error {
	for i, m := range members {
		for _, inner := range m.Descriptor.Kits {
			for j, o := range members {
				if j != i && (key(o.Ref) == key(inner.Ref) || o.Digest == inner.Digest) {
					return refuse(listed(j), "%s is in the set %s of kits[%d] already: list one of them", o.Ref, m.Ref, i)
				}
			}
		}
	}
	return nil
}

// key is what references to one image share; empty for what is none.
func key(ref string) string {
	img, err := constraint.ParseImage(ref)
	if err != nil {
		return ""
	}
	return img.Key()
}

// separateStems refuses sources that would be staged over each other, as far as
// it is known where they are: a merged Kit carries those of every Kit it lists
// (§10).
func separateStems(own string, members []Member) error {
	owner := map[string]string{own: "the set itself"}
	for i, m := range members {
		for _, stem := range m.stems() {
			if first, taken := owner[stem]; taken && first != m.Ref {
				return refuse(listed(i), "%s and %s both keep their sources in %s, and the set carries both [SPEC-v3 §10/merged-set-carries-sources]: name one descriptor's file otherwise and publish it again",
					first, m.Ref, path.Join(content.StageRoot, stem))
			}
			owner[stem] = m.Ref
		}
	}
	return nil
}

// Told reports whether the documents of m say where its sources are staged.
func (m Member) Told() bool { return len(m.stems()) > 0 }

// stems are the directories of staged sources that are known.
func (m Member) stems() []string {
	out := slices.Clone(m.Stems)
	for _, im := range m.Images[:min(len(m.Images), 1)] {
		for _, note := range stageNotes(im.Config) {
			if stem := strings.TrimPrefix(note, content.StageNote); stem != "" && !strings.Contains(stem, "/") && !slices.Contains(out, stem) {
				out = append(out, stem)
			}
		}
	}
	return out
}

// stageNotes says of every layer what its history states about staged sources,
// or nothing.
func stageNotes(c ocispec.Image) []string {
	notes := make([]string, len(c.RootFS.DiffIDs))
	n := 0
	for _, h := range c.History {
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
