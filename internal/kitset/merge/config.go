package merge

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/assemble"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/content"
)

// Config is the image config for p, which is one of [Set.Platforms], without the
// set's own layer: see [Set.Stage]. It states one time, that of SOURCE_DATE_EPOCH
// or else 1970.
func (s *Set) Config(p ocispec.Platform) (ocispec.Image, error) {
	created := s.created()
	cfg := ocispec.Image{Created: &created, Platform: p, RootFS: ocispec.RootFS{Type: "layers"}}
	var workload assemble.Part
	var mixins []assemble.Part
	for _, i := range s.Order() {
		m := s.members[i]
		of := m.Images[m.At(p)].Config
		part := assemble.Part{Kit: m.Ref, Config: of.Config}
		if m.Descriptor.Kind == spec.KindWorkload {
			workload = part
			if argv := slices.Concat(part.Config.Entrypoint, part.Config.Cmd); len(argv) == 0 || argv[0] == "" {
				return cfg, &Error{listed(i), fmt.Errorf("kit %s: its image states neither an entrypoint nor a command, so that the set has nothing to launch [SPEC-v3 §10]: %w", m.Ref, kiterr.ErrRefused)}
			}
		} else {
			mixins = append(mixins, part)
		}
		notes := stageNotes(of) // for whoever lists this set in another
		for n, diff := range of.RootFS.DiffIDs {
			s.add(&cfg, diff, cmp.Or(notes[n], fmt.Sprintf("kit: layer %d of %s@%s", n+1, m.Ref, m.Digest)))
		}
	}
	if n := len(cfg.RootFS.DiffIDs) + 1; n > maxLayers {
		return cfg, refuse("kits", "its Kits have %d layers with its own, the limit is %d: list fewer", n, maxLayers)
	}
	var err error
	if cfg.Config, err = assemble.Config(workload, mixins); err != nil {
		return cfg, err
	}
	for _, name := range slices.Sorted(maps.Keys(s.merged.Env)) {
		cfg.Config.Env = slices.DeleteFunc(cfg.Config.Env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
		cfg.Config.Env = append(cfg.Config.Env, name+"="+s.merged.Env[name])
	}
	return cfg, nil
}

// Stage adds the set's own layer to cfg.
func (s *Set) Stage(cfg *ocispec.Image, diff digest.Digest) {
	s.add(cfg, diff, content.StageNote+s.Stem)
}

func (s *Set) created() time.Time {
	if s.epoch == nil {
		return time.Unix(0, 0).UTC()
	}
	return time.Unix(*s.epoch, 0).UTC()
}

func (s *Set) add(cfg *ocispec.Image, diff digest.Digest, by string) {
	created := s.created()
	cfg.RootFS.DiffIDs = append(cfg.RootFS.DiffIDs, diff)
	cfg.History = append(cfg.History, ocispec.History{Created: &created, CreatedBy: by, Comment: "kitbox"})
}

// Encode is cfg as BuildKit's exporter writes it, its keys sorted.
func Encode(cfg ocispec.Image) ([]byte, error) {
	b, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	var keys map[string]json.RawMessage
	if err := json.NewDecoder(bytes.NewReader(b)).Decode(&keys); err != nil {
		return nil, err
	}
	return json.Marshal(keys)
}
