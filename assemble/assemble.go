// Package assemble turns the parts of resolved Kits into one image: its config,
// the conflicts between their files, and what an overlay must not bring (§10).
//
// It decides; it copies nothing and opens no image. Layers are handled where
// they are stored, and package passwd below resolves users.
package assemble

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/kiterr"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// pathVariable is the one variable that composes element by element.
const pathVariable = "PATH"

// Delta returns what the recipe of a mixin stated over its base: new and changed
// variables, PATH reduced to the elements it added, new and changed labels, new
// ports and volumes, and the contract fields (user, entrypoint, command, working
// directory, stop signal) that it moved.
func Delta(base, result ocispec.ImageConfig) ocispec.ImageConfig {
	var d ocispec.ImageConfig
	before := environment(base.Env)
	for _, kv := range result.Env {
		k, v, _ := strings.Cut(kv, "=")
		old, had := before[k]
		switch {
		case had && old == v:
		case k == pathVariable:
			if added := newElements(old, v); added != "" {
				d.Env = append(d.Env, k+"="+added)
			}
		default:
			d.Env = append(d.Env, kv)
		}
	}
	for k, v := range result.Labels {
		if old, had := base.Labels[k]; !had || old != v {
			if d.Labels == nil {
				d.Labels = map[string]string{}
			}
			d.Labels[k] = v
		}
	}
	d.ExposedPorts = without(result.ExposedPorts, base.ExposedPorts)
	d.Volumes = without(result.Volumes, base.Volumes)
	if !slices.Equal(base.Entrypoint, result.Entrypoint) {
		d.Entrypoint = result.Entrypoint
	}
	if !slices.Equal(base.Cmd, result.Cmd) {
		d.Cmd = result.Cmd
	}
	if base.User != result.User {
		d.User = result.User
	}
	if base.WorkingDir != result.WorkingDir {
		d.WorkingDir = result.WorkingDir
	}
	if base.StopSignal != result.StopSignal {
		d.StopSignal = result.StopSignal
	}
	return d
}

func environment(env []string) map[string]string {
	m := make(map[string]string, len(env))
	for _, kv := range env {
		k, v, _ := strings.Cut(kv, "=")
		m[k] = v
	}
	return m
}

// newElements returns the elements of list that have does not hold, once each.
func newElements(have, list string) string {
	seen := strings.Split(have, ":")
	var out []string
	for e := range strings.SplitSeq(list, ":") {
		if e != "" && !slices.Contains(seen, e) {
			seen = append(seen, e)
			out = append(out, e)
		}
	}
	return strings.Join(out, ":")
}

func without(set, base map[string]struct{}) map[string]struct{} {
	var out map[string]struct{}
	for k := range set {
		if _, had := base[k]; !had {
			if out == nil {
				out = map[string]struct{}{}
			}
			out[k] = struct{}{}
		}
	}
	return out
}

// A Part is the image config of one Kit.
type Part struct {
	Kit    string // how messages name it
	Config ocispec.ImageConfig
}

// An EnvConflictError says that two Kits set a variable to different values. It
// matches [kiterr.ErrRefused]. It does not show the values.
type EnvConflictError struct {
	Variable string
	Kits     [2]string
}

func (e *EnvConflictError) Error() string {
	return fmt.Sprintf("%s and %s set %s to different values", e.Kits[0], e.Kits[1], e.Variable)
}

// Is matches the family.
func (e *EnvConflictError) Is(target error) bool { return target == kiterr.ErrRefused }

// Config composes the config of a workload with those of mixins, in composition
// order. Variables are added; PATH gets the elements it lacks at its end;
// another variable with two values is an [EnvConflictError]. The first writer of
// a label wins. Ports and volumes are united. What else a mixin states is
// ignored: the workload owns the contract. The inputs are not changed.
func Config(workload Part, mixins []Part) (ocispec.ImageConfig, error) {
	out := workload.Config
	out.Env = slices.Clone(out.Env)
	out.Labels = maps.Clone(out.Labels)
	out.ExposedPorts = maps.Clone(out.ExposedPorts)
	out.Volumes = maps.Clone(out.Volumes)
	at := make(map[string]int, len(out.Env))
	owner := make(map[string]string, len(out.Env))
	for i, kv := range out.Env {
		k, _, _ := strings.Cut(kv, "=")
		at[k], owner[k] = i, workload.Kit
	}
	for _, m := range mixins {
		for _, kv := range m.Config.Env {
			k, v, _ := strings.Cut(kv, "=")
			i, had := at[k]
			if !had {
				if k == pathVariable {
					kv = k + "=" + newElements("", v)
				}
				at[k], owner[k] = len(out.Env), m.Kit
				out.Env = append(out.Env, kv)
				continue
			}
			_, old, _ := strings.Cut(out.Env[i], "=")
			switch {
			case old == v:
			case k != pathVariable:
				return ocispec.ImageConfig{}, &EnvConflictError{k, [2]string{owner[k], m.Kit}}
			default:
				if added := newElements(old, v); added != "" {
					out.Env[i] = k + "=" + strings.TrimPrefix(old+":"+added, ":")
				}
			}
		}
		for k, v := range m.Config.Labels {
			if _, had := out.Labels[k]; !had {
				out.Labels = put(out.Labels, k, v)
			}
		}
		for p := range m.Config.ExposedPorts {
			out.ExposedPorts = put(out.ExposedPorts, p, struct{}{})
		}
		for v := range m.Config.Volumes {
			out.Volumes = put(out.Volumes, v, struct{}{})
		}
	}
	return out, nil
}

func put[V any](m map[string]V, k string, v V) map[string]V {
	if m == nil {
		m = map[string]V{}
	}
	m[k] = v
	return m
}

// A File is one entry of what a Kit's layers bring.
type File struct {
	Path   string // a trailing slash marks a directory
	Digest string // of a file's content and metadata; "" if unknown
}

// An Inventory is what one Kit's layers bring.
type Inventory struct {
	Kit   string
	Files []File
}

// A Collision is a file that several Kits bring.
type Collision struct {
	Path string   // absolute and clean
	Kits []string // in the order given
}

// Collisions returns the files that more than one Kit brings, sorted by path.
// Directories do not collide, nor do files whose known digests are equal, nor
// does a Kit with itself. A runtime that composes Kits at create refuses what is
// returned; in a published set the later layer has won, and it is reported.
func Collisions(kits []Inventory) []Collision {
	type holder struct {
		kits   []string
		digest string
		differ bool
	}
	files := make(map[string]*holder)
	for _, k := range kits {
		final := make(map[string]string, len(k.Files)) // the Kit's own last word
		for _, f := range k.Files {
			if !strings.HasSuffix(f.Path, "/") {
				final[path.Clean("/"+f.Path)] = f.Digest
			}
		}
		for p, digest := range final {
			h := files[p]
			if h == nil {
				files[p] = &holder{kits: []string{k.Kit}, digest: digest}
				continue
			}
			h.kits = append(h.kits, k.Kit)
			if digest == "" || digest != h.digest {
				h.differ = true
			}
		}
	}
	var out []Collision
	for _, p := range slices.Sorted(maps.Keys(files)) {
		if h := files[p]; h.differ {
			out = append(out, Collision{p, h.kits})
		}
	}
	return out
}

// The owners of the directories that a mixin shares with every base.
const (
	homeDir  = "/home"
	homeUID  = 0
	agentDir = "/home/agent"
	agentUID = 1000
)

// SharedDirs returns the directories that [OverlayHome] judges.
func SharedDirs() []string { return []string{homeDir, agentDir} }

// OverlayHome returns the directories that a mixin's layers would give another
// owner on every base they land on (§10/overlay-home-ownership). owners maps
// the directories it ships to their user ids.
func OverlayHome(owners map[string]int) []string {
	var bad []string
	for _, p := range slices.Sorted(maps.Keys(owners)) {
		uid := owners[p]
		switch path.Clean("/" + p) {
		case homeDir:
			if uid != homeUID {
				bad = append(bad, homeDir)
			}
		case agentDir:
			if uid != agentUID {
				bad = append(bad, agentDir)
			}
		}
	}
	return bad
}
