package link

import (
	"context"
	"errors"

	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// A Failure is an error on its way through the socket: its text, its family,
// and the details of the one type that callers take apart.
type Failure struct {
	Message string             `json:"message"`
	Family  string             `json:"family,omitempty"`
	Hook    *sandbox.HookError `json:"hook,omitempty"`
}

var families = []struct {
	name string
	err  error
}{
	{"refused", kiterr.ErrRefused},
	{"unsupported", kiterr.ErrUnsupported},
	{"not-found", kiterr.ErrNotFound},
	{"exists", kiterr.ErrExists},
	{"not-running", kiterr.ErrNotRunning},
	{"cannot-exec", kiterr.ErrCannotExec},
	{"unavailable", kiterr.ErrUnavailable},
	{"canceled", context.Canceled},
}

// Failed is err as it travels; nil for nil.
func Failed(err error) *Failure {
	if err == nil {
		return nil
	}
	f := &Failure{Message: err.Error()}
	for _, m := range families {
		if errors.Is(err, m.err) {
			f.Family = m.name
			break
		}
	}
	errors.As(err, &f.Hook)
	return f
}

// Err is the error that f was made from, as far as it can be told apart.
func (f *Failure) Err() error {
	switch {
	case f == nil:
		return nil
	case f.Hook != nil:
		return f.Hook
	}
	for _, m := range families {
		if m.name == f.Family {
			return &remoteError{text: f.Message, family: m.err}
		}
	}
	return errors.New(f.Message)
}

// remoteError has the text of the other side, once, and its family.
type remoteError struct {
	text   string
	family error
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.family }
