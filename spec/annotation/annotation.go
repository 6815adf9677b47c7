// Package annotation is what a Kit's image says about itself in manifest
// annotations (§9.3): which keys there are, what a descriptor puts in them,
// whether an artifact's agree with its descriptor, and where a reader looks.
//
// It builds no manifest and reads no registry.
package annotation

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/constraint"
)

// The keys of a Kit.
const (
	Descriptor    = "vnd.docker.sandbox.kit.descriptor"     // compact JSON; what makes an image a Kit
	SchemaVersion = "vnd.docker.sandbox.kit.schema-version" // equals the field
	Capabilities  = "vnd.docker.sandbox.kit.capabilities"   // distinct sorted types; absent when none
	BuiltBy       = "vnd.docker.sandbox.kit.built-by"       // compact JSON of a Builder
)

// The keys of OCI that a Kit fills from its display fields.
const (
	Title       = "org.opencontainers.image.title"
	Description = "org.opencontainers.image.description"
	Authors     = "org.opencontainers.image.authors"
	Source      = "org.opencontainers.image.source"
	Licenses    = "org.opencontainers.image.licenses"
	Version     = "org.opencontainers.image.version"
	Created     = "org.opencontainers.image.created" // only from SOURCE_DATE_EPOCH
)

// derived lists the keys whose value follows from the descriptor.
var derived = []string{SchemaVersion, Capabilities, Title, Description, Authors, Source, Licenses, Version}

// A Builder is the program that published a Kit.
type Builder struct {
	Name     string `json:"name"`
	Version  string `json:"version"` // "dev" if the program is not stamped
	Revision string `json:"revision,omitzero"`
}

// Options are the parts that no descriptor knows.
type Options struct {
	Builder *Builder // nil leaves the annotation out

	// SourceDateEpoch is the time of SOURCE_DATE_EPOCH in seconds; nil leaves
	// created out. The clock never supplies it.
	SourceDateEpoch *int64
}

// maxEpoch is the last second that RFC 3339 can state.
const maxEpoch = 253402300799

// ParseEpoch reads the value of SOURCE_DATE_EPOCH, seconds since 1970. Empty is
// nil; what is no such number is [kiterr.ErrRefused].
func ParseEpoch(v string) (*int64, error) {
	if v == "" {
		return nil, nil
	}
	s, err := strconv.ParseInt(v, 10, 64)
	if err != nil || s < 0 || s > maxEpoch {
		return nil, fmt.Errorf("SOURCE_DATE_EPOCH=%q is no number of seconds since 1970: give one, or unset it: %w", v, kiterr.ErrRefused)
	}
	return &s, nil
}

// Derive returns the annotations of a published descriptor: all of its platform
// manifests carry them, and the index if there is one. Empty fields emit
// nothing. It fails only if d cannot be encoded.
func Derive(d spec.Descriptor, o Options) (map[string]string, error) {
	descriptor, err := d.AppendJSON(nil)
	if err != nil {
		return nil, err
	}
	out := fromFields(d)
	out[Descriptor] = string(descriptor)
	if o.Builder != nil {
		b := *o.Builder
		if b.Version == "" {
			b.Version = "dev"
		}
		v, err := json.Marshal(b)
		if err != nil {
			return nil, err
		}
		out[BuiltBy] = string(v)
	}
	if o.SourceDateEpoch != nil {
		out[Created] = time.Unix(*o.SourceDateEpoch, 0).UTC().Format(time.RFC3339)
	}
	return out, nil
}

// fromFields returns the derived annotations of d.
func fromFields(d spec.Descriptor) map[string]string {
	out := make(map[string]string)
	for _, a := range []struct{ key, value string }{
		{SchemaVersion, d.SchemaVersion},
		{Capabilities, Index(d.Requests())},
		{Title, d.DisplayName},
		{Description, d.Description},
		{Authors, d.Author},
		{Source, d.SourceURL},
		{Licenses, strings.Join(d.Licenses, ",")},
		{Version, imageVersion(d)},
	} {
		if a.value != "" {
			out[a.key] = a.value
		}
	}
	return out
}

// Index returns the distinct types of requests, sorted and joined with commas;
// "" if there are none.
func Index(rs []capability.Request) string {
	types := make([]string, 0, len(rs))
	for _, r := range rs {
		types = append(types, r.Type)
	}
	slices.Sort(types)
	return strings.Join(slices.Compact(types), ",")
}

// imageVersion returns the descriptor's version, or the one that all authored
// provides state. Derived ones have no vote.
func imageVersion(d spec.Descriptor) string {
	if d.Version != "" {
		return d.Version
	}
	version := ""
	for _, entry := range d.Provides {
		p, err := constraint.ParseProvide(entry)
		switch {
		case err != nil:
			return ""
		case p.Name.Derived():
		case p.Version == "", version != "" && version != p.Version:
			return ""
		default:
			version = p.Version
		}
	}
	return version
}

// A Fault is an annotation that does not agree with its descriptor.
type Fault struct {
	Key       string
	Message   string
	Statement string
}

// Check holds the annotations of an artifact against its descriptor. A key that
// should be there and is missing, one that differs, and one that is there though
// nothing supplies it are faults alike. built-by and created may be absent. The
// descriptor annotation itself is not judged: it is where d comes from. Faults
// come in the order of the keys.
func Check(annotations map[string]string, d spec.Descriptor) []Fault {
	want := fromFields(d)
	var faults []Fault
	for _, key := range derived {
		got, present := annotations[key]
		value, supplied := want[key]
		switch {
		case present && !supplied:
			faults = append(faults, Fault{key, "is present though the descriptor supplies nothing for it", ""})
		case supplied && !present:
			faults = append(faults, Fault{key, "is missing; it should be " + strconv.Quote(value), ""})
		case got != value:
			faults = append(faults, Fault{key, fmt.Sprintf("is %q; it should be %q", got, value), ""})
		}
	}
	if v, ok := annotations[BuiltBy]; ok {
		if msg := checkBuilder(v); msg != "" {
			faults = append(faults, Fault{BuiltBy, msg, ""})
		}
	}
	if v, ok := annotations[Created]; ok {
		// The letters may be small (§5.6 of the RFC); a comma, which is read too, is
		// of another standard.
		if _, err := time.Parse(time.RFC3339, strings.ToUpper(v)); err != nil || strings.Contains(v, ",") {
			faults = append(faults, Fault{Created, "is not a time as RFC 3339 writes it", "SPEC-v3 §9.3/created-rfc3339"})
		}
	}
	slices.SortFunc(faults, func(a, b Fault) int { return strings.Compare(a.Key, b.Key) })
	return faults
}

func checkBuilder(v string) string {
	var b Builder
	if err := json.Unmarshal([]byte(v), &b); err != nil {
		return "is not JSON of the form {\"name\":…,\"version\":…}"
	}
	switch {
	case !compact(v):
		return "is not compact JSON"
	case b.Name == "":
		return "names no program"
	case b.Version == "":
		return `states no version; an unstamped program says "dev"`
	}
	return ""
}

// compact reports whether v, which is JSON, has no blanks outside its strings.
func compact(v string) bool {
	c := jsontext.Value(v)
	return c.Compact() == nil && string(c) == v
}

// A Place is where a reader found the descriptor.
type Place string

// The places, in the order in which they are tried.
const (
	OnIndex    Place = "index"
	OnManifest Place = "manifest"
	Nowhere    Place = ""
)

// Discover returns the descriptor annotation of an index, else of one of its
// manifests (§9.3/manifest-fallback). Either map may be nil. Nowhere means that
// the image is not a Kit.
func Discover(index, manifest map[string]string) (descriptor string, where Place) {
	if d := index[Descriptor]; d != "" {
		return d, OnIndex
	}
	if d := manifest[Descriptor]; d != "" {
		return d, OnManifest
	}
	return "", Nowhere
}

// Keys returns the keys that Derive can fill, sorted.
func Keys() []string {
	return slices.Sorted(maps.Keys(map[string]bool{
		Descriptor: true, SchemaVersion: true, Capabilities: true, BuiltBy: true, Title: true, Description: true,
		Authors: true, Source: true, Licenses: true, Version: true, Created: true,
	}))
}
