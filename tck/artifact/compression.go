package artifact

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	// maxUnpacked bounds what all layers may unpack to, in bytes: a small blob
	// can hold any number of zeros.
	maxUnpacked = 64 << 30

	// maxRatio bounds how many times more than they are stored as they may unpack
	// to, beyond what is a matter of seconds. Files that people keep are packed to a
	// fiftieth at best; gzip can pack zeros to a thousandth, and the judge would read
	// them for minutes.
	maxRatio = 256
	harmless = 2 << 30 // bytes

	// maxWindow bounds the memory of a zstd frame, in bytes.
	maxWindow = 128 << 20
)

var errBudget = errors.New("the layers unpack to more than 64 GiB, which is not judged")

var errRatio = fmt.Errorf("the layers unpack to more than %d times what is stored, which is not judged", maxRatio)

// A budget ends reading when all layers together have unpacked to too much.
type budget struct {
	r      io.Reader
	used   *int64
	stored *int64 // bytes read for it
}

func (b *budget) Read(p []byte) (int, error) {
	if *b.used > maxUnpacked {
		return 0, errBudget
	}
	if *b.used > harmless && *b.used/maxRatio > *b.stored {
		return 0, errRatio
	}
	n, err := b.r.Read(p)
	*b.used += int64(n)
	return n, err
}

// A packing is how the bytes of a layer are compressed, as OCI names it behind the
// plus sign of a media type; empty: not at all.
type packing string

// of reports whether p is what a media type says. Programs take the names of docker
// for those of any compression; a name that no layer has is judged by another rule.
func (p packing) of(mediaType string) bool {
	switch mediaType {
	case ocispec.MediaTypeImageLayer:
		return p == ""
	case ocispec.MediaTypeImageLayerGzip:
		return p == "gzip"
	case ocispec.MediaTypeImageLayerZstd:
		return p == "zstd"
	}
	return true
}

// decompress goes by the bytes.
func decompress(blob io.Reader) (io.Reader, packing, func(), error) {
	br := bufio.NewReaderSize(blob, 64<<10)
	magic, _ := br.Peek(4) // a short blob has no magic
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(br)
		if err != nil {
			return nil, "", nil, err
		}
		return z, "gzip", func() { z.Close() }, nil
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(br, zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, "", nil, err
		}
		return z, "zstd", z.Close, nil
	}
	return br, "", func() {}, nil
}
