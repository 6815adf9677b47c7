package merge

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/kitbox-dev/kitbox/spec/content"
)

// Layer is the set's own layer, compressed, and the digest of its tar. Files are
// those of its directory of sources, by name. The bytes depend on nothing else, and
// are those that BuildKit has for the files.
func (s *Set) Layer(files map[string][]byte) (blob []byte, diff digest.Digest, err error) {
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.DefaultCompression)
	if err != nil {
		return nil, "", err
	}
	sum := digest.Canonical.Digester()
	w := tar.NewWriter(io.MultiWriter(z, sum.Hash()))
	head := tar.Header{ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
	dir := strings.TrimPrefix(path.Join(content.StageRoot, s.Stem), "/") + "/"
	for i, r := range dir {
		if r != '/' {
			continue
		}
		head.Name, head.Typeflag, head.Mode = dir[:i+1], tar.TypeDir, 0o755
		if err := w.WriteHeader(&head); err != nil {
			return nil, "", err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		head.Name, head.Typeflag, head.Mode, head.Size = dir+name, tar.TypeReg, 0o644, int64(len(files[name]))
		if err := w.WriteHeader(&head); err != nil {
			return nil, "", err
		}
		if _, err := w.Write(files[name]); err != nil {
			return nil, "", err
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil { // they write the ends
		return nil, "", err
	}
	return packed.Bytes(), sum.Digest(), nil
}
