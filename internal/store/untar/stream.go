package untar

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"

	"github.com/kitbox-dev/kitbox/kiterr"
)

// A stream is an uncompressed tar being read: it decompresses and hashes in a
// goroutine of its own while the reader writes files. Close ends it.
type stream struct {
	chunks chan []byte // filled by pump, closed when the source ends
	free   chan []byte // spent chunks on their way back
	stop   context.CancelFunc
	rest   []byte // of the current chunk
	cur    []byte
	sum    hash.Hash // owned by pump until chunks is closed
	err    error     // why pump ended; nil at the end of the tar; set before chunks is closed
	close  func()
}

const (
	chunkBytes = 256 << 10
	maxChunks  = 6 // of one stream
)

// newStream starts to read the tar in blob, by the magic bytes of its
// compression. More than limit bytes of tar are refused: a small blob can hold
// any number of zeros.
func newStream(ctx context.Context, blob io.Reader, limit int64) (*stream, error) {
	r, closer, err := Decompress(blob)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	s := &stream{chunks: make(chan []byte, 4), free: make(chan []byte, maxChunks), stop: stop, sum: sha256.New(), close: closer}
	go s.pump(ctx, r, limit)
	return s, nil
}

// Decompress returns the tar in blob, which is plain or compressed with gzip or
// zstd, by its magic bytes, and what to call when it is not read any more. The
// tar may have no end.
func Decompress(blob io.Reader) (tar io.Reader, done func(), err error) {
	br := bufio.NewReaderSize(blob, 64<<10)
	magic, err := br.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(br)
		if err != nil {
			return nil, nil, err
		}
		return z, func() { z.Close() }, nil
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		// The window bounds memory: a frame may ask for gigabytes.
		z, err := zstd.NewReader(br, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return nil, nil, err
		}
		return z, z.Close, nil
	}
	return br, func() {}, nil
}

// pump is the goroutine: it ends at the end of r, at an error, or when stopped.
func (s *stream) pump(ctx context.Context, r io.Reader, limit int64) {
	defer close(s.chunks)
	defer s.close()
	var total int64
	made := 0
	for {
		var buf []byte
		if made < maxChunks && len(s.free) == 0 { // a small layer needs one
			buf = make([]byte, chunkBytes)
			made++
		} else {
			select {
			case <-ctx.Done():
				s.err = ctx.Err()
				return
			case buf = <-s.free:
			}
		}
		n, err := io.ReadFull(r, buf[:chunkBytes])
		if total += int64(n); total > limit {
			s.err = fmt.Errorf("the tar is larger than %d bytes: %w", limit, kiterr.ErrRefused)
			return
		}
		s.sum.Write(buf[:n])
		if n > 0 {
			select {
			case <-ctx.Done():
				s.err = ctx.Err()
				return
			case s.chunks <- buf[:n]:
			}
		}
		if errors.Is(err, io.EOF) || (errors.Is(err, io.ErrUnexpectedEOF) && n < chunkBytes && sourceEnded(r)) {
			return
		}
		if err != nil {
			s.err = err
			return
		}
	}
}

// sourceEnded tells the end of r, which ReadFull reports as ErrUnexpectedEOF
// after a part of a chunk, from a compressed stream that is cut off and says
// the same: only the former answers EOF when asked again.
func sourceEnded(r io.Reader) bool {
	var b [1]byte
	n, err := r.Read(b[:])
	return n == 0 && errors.Is(err, io.EOF)
}

func (s *stream) Read(p []byte) (int, error) {
	if len(s.rest) == 0 {
		if s.cur != nil {
			s.free <- s.cur // has room for all chunks
			s.cur = nil
		}
		chunk, ok := <-s.chunks
		if !ok {
			if s.err != nil {
				return 0, s.err
			}
			return 0, io.EOF
		}
		s.cur, s.rest = chunk, chunk
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// Digest reads to the end, what follows the tar included, and returns the
// digest of everything.
func (s *stream) Digest() (digest.Digest, error) {
	if _, err := io.Copy(io.Discard, s); err != nil {
		return "", err
	}
	return digest.NewDigestFromEncoded(digest.SHA256, hex.EncodeToString(s.sum.Sum(nil))), nil
}

// Close ends the goroutine and waits for it.
func (s *stream) Close() {
	s.stop()
	for range s.chunks {
	}
}
