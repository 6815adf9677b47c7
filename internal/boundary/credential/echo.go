package credential

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/kitbox-dev/kitbox/internal/plan"
)

// shortEcho is the least length of a secret that is looked for in answers: a
// shorter one would be found in texts that have nothing to do with it.
const shortEcho = 8

// echoTime bounds looking for what a request was given.
const echoTime = 5 * time.Second

// Answered implements [proxy.Observer]: what an answer repeats of the secret that
// its request was given, trailers included, is masked, byte for byte, so that lengths stay. A service
// that repeats it in another form (compressed unasked, escaped, in pieces) still
// gives it away.
func (p *Presenter) Answered(phase plan.Phase, host string, port uint16, r *http.Response) {
	if r.Request == nil {
		return
	}
	secrets := p.carried(r.Request.Context(), phase, host, port, r.Request.Header)
	if len(secrets) == 0 {
		return
	}
	maskFields(r.Header, secrets)
	// An upgraded connection is no body.
	if r.Body != nil && r.Body != http.NoBody && r.StatusCode != http.StatusSwitchingProtocols {
		r.Body = &masked{ReadCloser: r.Body, secrets: secrets, ended: func() { maskFields(r.Trailer, secrets) }}
	}
}

// carried returns what h, the header of a request that was sent, holds of secrets.
func (p *Presenter) carried(ctx context.Context, phase plan.Phase, host string, port uint16, h http.Header) (out [][]byte) {
	ctx, cancel := context.WithTimeout(ctx, echoTime)
	defer cancel()
	for i := range p.rules {
		r := &p.rules[i]
		if len(h[r.Header]) == 0 || !r.hosts.Matches(host, port) || !p.all[r.of].Granted(phase) {
			continue
		}
		value, err := p.value(ctx, r)
		if err != nil || len(value.Expose()) < shortEcho {
			continue
		}
		text := string(value.Expose())
		for _, sent := range h[r.Header] {
			switch l := parseLogin(sent); {
			case l != nil && l.holds(text):
				_, payload, _ := strings.Cut(strings.TrimSpace(sent), " ")
				out = append(out, []byte(text), []byte(strings.TrimRight(payload, "= ")))
			case l == nil && strings.Contains(sent, text):
				out = append(out, []byte(text))
			}
		}
	}
	return out
}

// maskFields masks the values of h, and leaves out a field whose name holds a
// secret, in whichever case names have on their way.
func maskFields(h http.Header, secrets [][]byte) {
	for name, values := range h {
		if slices.ContainsFunc(secrets, func(s []byte) bool {
			return strings.Contains(strings.ToLower(name), strings.ToLower(string(s)))
		}) {
			delete(h, name)
		}
		for i := range values {
			values[i] = string(mask([]byte(values[i]), secrets))
		}
	}
}

// mask overwrites every secret in b.
func mask(b []byte, secrets [][]byte) []byte {
	for _, s := range secrets {
		for at := 0; ; {
			i := bytes.Index(b[at:], s)
			if i < 0 {
				break
			}
			at += i
			for j := range s {
				b[at+j] = '*'
			}
			at += len(s)
		}
	}
	return b
}

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
			m.ready -= m.open()
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

// open returns how long the longest end of buf is that a secret begins with.
func (m *masked) open() int {
	most := 0
	for _, s := range m.secrets {
		for k := min(len(s)-1, len(m.buf)); k > most; k-- {
			if bytes.HasSuffix(m.buf, s[:k]) {
				most = k
			}
		}
	}
	return most
}
