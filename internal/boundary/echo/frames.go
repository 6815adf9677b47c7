package echo

import (
	"encoding/binary"
	"io"
)

// frames are what the host sends on a connection that has become a WebSocket (RFC 6455
// §5.2), without secrets in their payloads. They hold back no more than what could be
// the beginning of one, and nothing of a frame that has come whole: what is said in it
// may be waited for.
type frames struct {
	io.ReadWriteCloser
	secrets [][]byte

	head []byte // of a frame, as far as it has come
	left uint64 // of the payload of a frame, that which has not come
	held []byte // of the payload, that which may be the beginning of a secret
	out  []byte // what can go
	err  error  // of the connection, behind out
	buf  [chunk]byte
}

// Read implements [io.Reader].
func (f *frames) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for len(f.out) == 0 && f.err == nil {
		n, err := f.ReadWriteCloser.Read(f.buf[:])
		f.take(f.buf[:n])
		if f.err = err; err != nil {
			f.out = append(append(f.out, f.head...), f.held...)
			f.head, f.held = nil, nil
		}
	}
	if len(f.out) == 0 {
		return 0, f.err
	}
	n := copy(p, f.out)
	f.out = append(f.out[:0], f.out[n:]...)
	return n, nil
}

// take adds b, which has come.
func (f *frames) take(b []byte) {
	for len(b) > 0 {
		if f.left == 0 {
			f.head, b = append(f.head, b[0]), b[1:]
			if n, ok := payload(f.head); ok {
				f.out, f.head, f.left = append(f.out, f.head...), f.head[:0], n
			}
			continue
		}
		n := int(min(uint64(len(b)), f.left))
		f.held, b, f.left = mask(append(f.held, b[:n]...), f.secrets), b[n:], f.left-uint64(n)
		ready := len(f.held)
		if f.left > 0 {
			ready -= open(f.held, f.secrets)
		}
		f.out = append(f.out, f.held[:ready]...)
		f.held = append(f.held[:0], f.held[ready:]...)
	}
}

// payload returns how long the payload of a frame is that begins with head, once that
// is whole.
func payload(head []byte) (n uint64, ok bool) {
	if len(head) < 2 {
		return 0, false
	}
	n = uint64(head[1] & 0x7f)
	size := 2
	switch n {
	case 126:
		size += 2
	case 127:
		size += 8
	}
	extended := size
	if head[1]&0x80 != 0 {
		size += 4 // a key, which hosts must not have
	}
	if len(head) < size {
		return 0, false
	}
	switch n {
	case 126:
		n = uint64(binary.BigEndian.Uint16(head[2:extended]))
	case 127:
		n = binary.BigEndian.Uint64(head[2:extended])
	}
	return n, true
}
