// Package secret is a value that cannot be printed. Every verb, log and encoding
// shows REDACTED instead, and the bytes leave by one method that can be searched
// for.
//
// Where secrets are kept is in package vault below this one, and who presents
// them is in internal/boundary/credential.
package secret

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"unicode/utf8"
)

// redacted is what is shown of every value.
const redacted = "REDACTED"

// Max is the longest value in bytes. Tokens and keys are far shorter, and the
// header of a request cannot hold more.
const Max = 64 << 10

// A Value is a secret. The zero value is none. Copies share the bytes: wiping
// one wipes all.
type Value struct {
	// A closure, since package fmt prints what it finds in fields that it
	// may not call methods of, also behind pointers. It overwrites the bytes
	// when told to wipe.
	held func(wipe bool) []byte
}

// New returns a Value that holds b. The caller must not use b afterwards.
func New(b []byte) Value {
	return Value{func(wipe bool) []byte {
		if wipe {
			clear(b)
			b = nil
		}
		return b
	}}
}

// Read reads a value from r to its end and judges it with [Check]. One newline
// at the end, which tools and editors add, is not part of it.
func Read(r io.Reader) (Value, error) {
	b, err := io.ReadAll(io.LimitReader(r, Max+2))
	if err != nil {
		clear(b)
		return Value{}, err
	}
	v := New(bytes.TrimSuffix(bytes.TrimSuffix(b, []byte("\n")), []byte("\r")))
	if err := v.Check(); err != nil {
		v.Wipe()
		return Value{}, err
	}
	return v, nil
}

// Check says why v cannot be presented in a request; it does not say what v is.
func (v Value) Check() error {
	b := v.Expose()
	switch {
	case len(b) == 0:
		return errors.New("the value is empty")
	case len(b) > Max:
		return fmt.Errorf("the value is longer than %d bytes", Max)
	case !utf8.Valid(b):
		return errors.New("the value is not text")
	}
	for _, c := range b {
		if c < 0x20 || c == 0x7f {
			return errors.New("the value has control characters or several lines, which no header can hold")
		}
	}
	return nil
}

// Expose returns the bytes, which stay those of v: the caller must not change
// or keep them. It is the only way out.
func (v Value) Expose() []byte {
	if v.held == nil {
		return nil
	}
	return v.held(false)
}

// Empty reports whether v holds nothing.
func (v Value) Empty() bool { return len(v.Expose()) == 0 }

// Wipe overwrites the bytes of v and of every copy, which nobody may be using. What was made of them, such
// as the header of a request, is not reached.
func (v Value) Wipe() {
	if v.held != nil {
		v.held(true)
	}
}

// Format implements [fmt.Formatter].
func (Value) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, redacted) }

// String implements [fmt.Stringer].
func (Value) String() string { return redacted }

// GoString implements [fmt.GoStringer].
func (Value) GoString() string { return redacted }

// LogValue implements [slog.LogValuer].
func (Value) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText implements [encoding.TextMarshaler], and with it JSON.
func (Value) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// MarshalBinary implements [encoding.BinaryMarshaler], and with it gob.
func (Value) MarshalBinary() ([]byte, error) { return []byte(redacted), nil }
