package artifact

import (
	"bufio"
	"bytes"
	"errors"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

const (
	// maxUnpacked bounds what all layers may unpack to, in bytes: a small blob
	// can hold any number of zeros.
	maxUnpacked = 64 << 30

	// maxWindow bounds the memory of a zstd frame, in bytes.
	maxWindow = 128 << 20
)

var errBudget = errors.New("the layers unpack to more than 64 GiB, which is not judged")

// A budget ends reading when all layers together have unpacked to too much.
type budget struct {
	r    io.Reader
	used *int64
}

func (b *budget) Read(p []byte) (int, error) {
	if *b.used > maxUnpacked {
		return 0, errBudget
	}
	n, err := b.r.Read(p)
	*b.used += int64(n)
	return n, err
}

// decompress goes by the bytes: what the media type says is judged elsewhere.
func decompress(blob io.Reader) (io.Reader, func(), error) {
	br := bufio.NewReaderSize(blob, 64<<10)
	magic, _ := br.Peek(4) // a short blob has no magic
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(br)
		if err != nil {
			return nil, nil, err
		}
		return z, func() { z.Close() }, nil
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(br, zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, nil, err
		}
		return z, z.Close, nil
	}
	return br, func() {}, nil
}
