// Package identity says who a Kit is, for all its versions: what directories
// that its sandboxes share, and secrets for it alone, are kept under.
//
// It believes where a Kit came from and nothing that a descriptor says.
package identity

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/checkout"
)

// Of is who a Kit is, for all its versions: the repository of an image, or
// the place of a local one. What a descriptor says of itself is no evidence. The
// first word keeps the kinds apart, so that no repository can claim a place.
func Of(k *fetch.Kit) (string, error) {
	switch k.Source {
	case fetch.Directory, fetch.Layout:
		place, err := filepath.Abs(k.Ref)
		if err != nil {
			return "", err
		}
		if k.Source == fetch.Layout {
			// A tag or digest may follow the directory.
			for place != "/" {
				if st, err := os.Stat(place); err == nil && st.IsDir() {
					break
				}
				cut := strings.LastIndexAny(place, ":@")
				if cut <= 0 {
					break
				}
				place = place[:cut]
			}
		}
		if real, err := filepath.EvalSymlinks(place); err == nil {
			place = real
		}
		return string(k.Source) + " " + place, nil
	}
	if k.Source == fetch.Git {
		// The repository and the place in it; the commit is the version.
		s, err := checkout.Parse(k.Ref)
		s.Ref = ""
		return "git " + s.String(), err
	}
	ref, _, _ := strings.Cut(k.Ref, "@")
	if algorithm, _, ok := strings.Cut(ref, ":"); ok && algorithm == "sha256" {
		return "image " + k.Digest.String(), nil // named by nothing but itself
	}
	if at := strings.LastIndexByte(ref, ':'); at > strings.LastIndexByte(ref, '/') {
		ref = ref[:at]
	}
	return "repository " + ref, nil
}

// OfReference is [Of] of a reference that is not fetched: who says what a
// secret is kept under must not have to build the Kit.
func OfReference(ref string) (string, error) {
	k := &fetch.Kit{Ref: ref, Source: fetch.Store}
	if checkout.Is(ref) {
		k.Source = fetch.Git
	} else if strings.HasPrefix(ref, "sha256:") {
		k.Digest = digest.Digest(ref)
	} else if fetch.IsPath(ref) {
		k.Source = fetch.Directory
		_, err := os.Stat(filepath.Join(ref, ocispec.ImageLayoutFile))
		if err == nil {
			k.Source = fetch.Layout
		} else if _, err := os.Stat(ref); err != nil {
			// A tag or a digest may follow the directory of a layout.
			place := ref
			if at := strings.IndexAny(ref[strings.LastIndexByte(ref, '/')+1:], ":@"); at >= 0 {
				place = ref[:strings.LastIndexByte(ref, '/')+1+at]
			}
			if _, lerr := os.Stat(filepath.Join(place, ocispec.ImageLayoutFile)); lerr != nil {
				return "", fmt.Errorf("kit %w", err)
			}
			k.Source = fetch.Layout
		}
	}
	return Of(k)
}
