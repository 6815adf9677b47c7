package echo

import (
	"bytes"
	"io"
)

// masked is a body without secrets. It holds back no more than what could be the
// beginning of one.
type masked struct {
	io.ReadCloser
	secrets [][]byte
	buf     []byte // of the body, read and masked
	ready   int    // how much of buf can go
	err     error  // of the body, behind buf
	ended   func() // called once at its end, when its trailers have come
}

// chunk is how much of a body is read at a time, in bytes.
const chunk = 32 << 10

// Read implements [io.Reader].
func (m *masked) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for m.ready == 0 && m.err == nil {
		held := len(m.buf)
		m.buf = append(m.buf, make([]byte, chunk)...)
		n, err := m.ReadCloser.Read(m.buf[held:])
		m.buf, m.err = mask(m.buf[:held+n], m.secrets), err
		m.ready = len(m.buf)
		if err == nil {
			m.ready -= open(m.buf, m.secrets)
		} else if m.ended != nil {
			m.ended()
		}
	}
	if m.ready == 0 {
		return 0, m.err
	}
	n := copy(p, m.buf[:m.ready])
	m.buf, m.ready = append(m.buf[:0], m.buf[n:]...), m.ready-n
	return n, nil
}

// open returns how long the longest end of b is that one of secrets begins with.
func open(b []byte, secrets [][]byte) int {
	most := 0
	for _, s := range secrets {
		for k := min(len(s)-1, len(b)); k > most; k-- {
			if bytes.HasSuffix(b, s[:k]) {
				most = k
			}
		}
	}
	return most
}
