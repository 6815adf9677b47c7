package artifact

import (
	"bufio"
	"bytes"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

const (
	// maxTar bounds what one layer may unpack to, in bytes: a small blob can
	// hold any number of zeros.
	maxTar = 64 << 30

	// maxWindow bounds the memory of a zstd frame, in bytes.
	maxWindow = 128 << 20
)

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
