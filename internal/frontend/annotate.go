package frontend

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/buildkit/exporter/containerimage/exptypes"
	"github.com/moby/buildkit/frontend/gateway/client"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/spec"
)

// The annotations of a Kit's manifest (§9.3).
const (
	AnnotationPrefix        = "vnd.docker.sandbox.kit."
	AnnotationDescriptor    = AnnotationPrefix + "descriptor"
	AnnotationSchemaVersion = AnnotationPrefix + "schema-version"
	AnnotationCapabilities  = AnnotationPrefix + "capabilities"
	AnnotationBuiltBy       = AnnotationPrefix + "built-by"
)

// annotations returns what is stated on the manifest of a published Kit.
func (b Builder) annotations(d spec.Descriptor, descriptor []byte, opts map[string]string) map[string]string {
	a := map[string]string{
		AnnotationDescriptor:          string(descriptor),
		AnnotationSchemaVersion:       d.SchemaVersion,
		AnnotationCapabilities:        capabilityTypes(d),
		AnnotationBuiltBy:             b.builtBy(),
		ocispec.AnnotationTitle:       d.DisplayName,
		ocispec.AnnotationDescription: d.Description,
		ocispec.AnnotationAuthors:     d.Author,
		ocispec.AnnotationSource:      d.SourceURL,
		ocispec.AnnotationLicenses:    strings.Join(d.Licenses, " AND "),
		ocispec.AnnotationVersion:     imageVersion(d),
		ocispec.AnnotationCreated:     created(opts),
	}
	for k, v := range a {
		if v == "" {
			delete(a, k)
		}
	}
	return a
}

// annotate states the annotations on every manifest and, if the export makes
// one, on the index.
func (b Builder) annotate(res *client.Result, d spec.Descriptor, descriptor []byte, opts map[string]string) {
	index := len(res.Refs) > 0
	for k := range opts {
		// An attestation makes an index of any image.
		index = index || strings.HasPrefix(k, "attest:") || strings.HasPrefix(k, buildArgPrefix+"BUILDKIT_ATTEST_")
	}
	for k, v := range b.annotations(d, descriptor, opts) {
		// Never for one platform: with a single ref BuildKit drops such keys
		// without a word, and the descriptor is equal on all of them.
		res.AddMeta(exptypes.AnnotationManifestKey(nil, k), []byte(v))
		if index {
			res.AddMeta(exptypes.AnnotationIndexKey(k), []byte(v))
		}
	}
}

func capabilityTypes(d spec.Descriptor) string {
	var types []string
	for _, r := range d.Requests() {
		types = append(types, r.Type)
	}
	slices.Sort(types)
	return strings.Join(slices.Compact(types), ",")
}

func (b Builder) builtBy() string {
	by := struct {
		Name     string `json:"name"`
		Version  string `json:"version"`
		Revision string `json:"revision,omitempty"`
	}{"kitbox", b.Version, b.Revision}
	if by.Version == "" {
		by.Version = "dev"
	}
	return string(mustJSON(by))
}

// imageVersion is the stated version, or the one that all authored provides
// share. Derived ones have no vote.
func imageVersion(d spec.Descriptor) string {
	if d.Version != "" {
		return d.Version
	}
	version := ""
	for _, p := range d.Provides {
		if derived(p) {
			continue
		}
		_, v, _ := strings.Cut(p, "@")
		if v == "" || version != "" && v != version {
			return ""
		}
		version = v
	}
	return version
}

// created is the time that the builder was told to say, never the clock's.
func created(opts map[string]string) string {
	s, err := strconv.ParseInt(opts[buildArgPrefix+"SOURCE_DATE_EPOCH"], 10, 64)
	if err != nil {
		return ""
	}
	return time.Unix(s, 0).UTC().Format(time.RFC3339)
}
