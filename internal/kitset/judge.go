package kitset

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
	"github.com/kitbox-dev/kitbox/internal/store/untar"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/tck"
	"github.com/kitbox-dev/kitbox/tck/artifact/rule"
	"github.com/kitbox-dev/kitbox/tck/artifact/tree"
)

// maxJudged bounds the layers that are read to judge files, in bytes as they are
// stored, and maxUnpacked what they unpack to: assembling a set is to be a matter of
// a moment. kit-tck validate judges any.
const (
	maxJudged   = 32 << 20
	maxUnpacked = 1 << 30
)

// judge holds what is about to be stored against the rules that a published Kit is
// judged by: documents always, with the layers that the Kits have, and files where
// all layers are in the store and small. What should only be is told to notice.
func judge(ctx context.Context, images *layout.Store, index *ocispec.Index, halves []half, own layerBlob, artifacts []*fetch.Artifact, notice func(string)) error {
	s := rule.Subject{Index: index, Listed: map[string]rule.Lookup{}}
	for _, a := range artifacts {
		known := rule.Lookup{Descriptor: string(a.Descriptor)}
		for _, im := range a.Images {
			l := rule.Listed{}
			if a.Root.Digest != im.Descriptor.Digest {
				l.Platform = layout.PlatformName(platformOf(im))
			}
			for _, b := range im.Manifest.Layers {
				l.Layers = append(l.Layers, b.Digest)
			}
			known.Images = append(known.Images, l)
		}
		s.Listed[a.Root.Digest.String()] = known
	}
	var readable []*rule.Image
	left := int64(maxJudged)
	for _, h := range halves {
		im := &rule.Image{Platform: layout.PlatformName(h.config.Platform), Descriptor: h.descriptor, Manifest: h.manifest, Config: h.config}
		s.Images = append(s.Images, im)
		files, err := read(ctx, images, own, h.manifest, &left)
		if err != nil {
			return err
		}
		if files != nil {
			seen := *im
			seen.Files, seen.Layers = files, files
			readable = append(readable, &seen)
		}
	}
	findings := rule.Judge(&s).Findings
	if len(readable) > 0 {
		s.Partial, s.Images = len(readable) < len(halves), readable
		findings = append(findings, rule.Judge(&s).Findings...)
	}
	told := map[string]bool{}
	for _, f := range findings {
		text := f.Message + " [" + f.Statement + "]"
		if f.At != "" {
			text = f.At + ": " + text
		}
		if f.Outcome == tck.Fail {
			return fmt.Errorf("%s; kit-tck validate would refuse the image: %w", text, kiterr.ErrRefused)
		}
		if !told[text] && notice != nil {
			told[text] = true
			notice("warning: " + text)
		}
	}
	return nil
}

// errTooMuch ends reading layers that unpack to too much.
var errTooMuch = errors.New("the layers unpack to too much")

// A layerBlob is a layer that is not stored yet.
type layerBlob struct {
	data []byte
	diff digest.Digest // of it, unpacked
}

// read returns the files of m, or nil if not all of its layers are in the store, or
// they take more than is left.
func read(ctx context.Context, images *layout.Store, own layerBlob, m ocispec.Manifest, left *int64) (*tree.Tree, error) {
	stored := m.Layers[:len(m.Layers)-1]
	var total int64
	for _, l := range stored {
		total += l.Size
		if ok, err := images.Exists(ctx, l); err != nil || !ok || total > *left {
			return nil, err
		}
	}
	*left -= total
	files, budget := &tree.Tree{Keep: rule.Keep, Hash: true}, int64(maxUnpacked)
	for _, l := range stored {
		rc, err := images.Fetch(ctx, l)
		if err != nil {
			return nil, err
		}
		err = add(ctx, files, rc, &budget)
		if err = errors.Join(err, rc.Close()); errors.Is(err, errTooMuch) || errors.Is(err, tree.ErrTooLarge) {
			return nil, nil
		} else if err != nil {
			return nil, fmt.Errorf("layer %s: %w", l.Digest, err)
		}
	}
	return files, add(ctx, files, bytes.NewReader(own.data), &budget)
}

// add lays the tar in blob over files.
func add(ctx context.Context, files *tree.Tree, blob io.Reader, budget *int64) error {
	tar, done, err := untar.Decompress(blob)
	if err != nil {
		return err
	}
	defer done()
	if err := files.Add(ctx, &bounded{tar, budget}); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, blob) // what is behind it counts for the digest
	return err
}

// A bounded reader ends after what all of them may read together.
type bounded struct {
	r    io.Reader
	left *int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if *b.left < 0 {
		return 0, errTooMuch
	}
	n, err := b.r.Read(p)
	*b.left -= int64(n)
	return n, err
}
