// Package echo masks in an answer what it repeats of the secrets that its request
// was given.
//
// It masks exactly those, whatever has become of them since: where they came from is
// not asked again. Who gives secrets to requests is in packages credential and
// dockerauth, who remembers which in proxy.
package echo

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"strings"
)

// shortest is the least length in bytes of a secret that is looked for: a shorter one
// would be found in texts that have nothing to do with it.
const shortest = 8

// Secrets are what a request was given. The zero value is none. It is not safe for
// concurrent use; copies share nothing that is changed.
type Secrets struct{ texts [][]byte }

// Add adds texts. The header of Basic authentication (RFC 7617) stands for its payload.
func (s *Secrets) Add(texts ...string) {
	for _, text := range texts {
		if scheme, payload, ok := strings.Cut(strings.TrimSpace(text), " "); ok && strings.EqualFold(scheme, "basic") {
			text = strings.TrimRight(payload, "= ") // some drop the padding
		}
		if len(text) < shortest || slices.ContainsFunc(s.texts, func(t []byte) bool { return string(t) == text }) {
			continue
		}
		s.texts = append(slices.Clip(s.texts), []byte(text))
	}
}

// Join adds what o has.
func (s *Secrets) Join(o Secrets) {
	for _, text := range o.texts {
		s.Add(string(text))
	}
}

// Empty reports whether there is nothing to look for.
func (s Secrets) Empty() bool { return len(s.texts) == 0 }

// In reports whether text repeats a secret.
func (s Secrets) In(text string) bool {
	return slices.ContainsFunc(s.texts, func(t []byte) bool { return strings.Contains(text, string(t)) })
}

// Mask returns text with every secret in it overwritten, byte for byte.
func (s Secrets) Mask(text string) string {
	if !s.In(text) {
		return text
	}
	return string(mask([]byte(text), s.texts))
}

// Answer masks what r repeats: in its header, its body and its trailers, or the frames
// of the WebSocket that it begins, byte for byte, so that lengths stay. An answer that
// repeats a secret in another form (compressed, escaped, in pieces) still gives it away.
func (s Secrets) Answer(r *http.Response) {
	if s.Empty() {
		return
	}
	s.fields(r.Header)
	switch both, ok := r.Body.(io.ReadWriteCloser); {
	case r.StatusCode == http.StatusSwitchingProtocols && ok:
		r.Body = &frames{ReadWriteCloser: both, secrets: s.texts}
	case r.Body != nil && r.Body != http.NoBody:
		r.Body = &masked{ReadCloser: r.Body, secrets: s.texts, ended: func() { s.fields(r.Trailer) }}
	}
}

// fields masks the values of h, and leaves out a field whose name holds a secret, in
// whichever case names have on their way.
func (s Secrets) fields(h http.Header) {
	for name, values := range h {
		if slices.ContainsFunc(s.texts, func(t []byte) bool {
			return strings.Contains(strings.ToLower(name), strings.ToLower(string(t)))
		}) {
			delete(h, name)
		}
		for i := range values {
			values[i] = s.Mask(values[i])
		}
	}
}

// mask overwrites every one of secrets in b.
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
