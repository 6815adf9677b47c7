package fetch

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/kiterr"
)

// A contentError says that a blob is not what its descriptor says.
type contentError struct {
	digest digest.Digest
	from   string // where it came from
	what   string
}

func (e *contentError) Error() string {
	return fmt.Sprintf("blob %s: what %s has of it %s", e.digest, e.from, e.what)
}

// Is makes every contentError match [kiterr.ErrRefused].
func (e *contentError) Is(target error) bool { return target == kiterr.ErrRefused }

// A verifier passes a blob on that goes to another registry, which may believe
// whatever it is sent. The end of the blob is held back until all of it is known
// to be right: a receiver that trusts its sender is left with a request that broke
// off.
type verifier struct {
	r    io.Reader
	desc ocispec.Descriptor
	from string
	sum  digest.Verifier
	n    int64

	mu  sync.Mutex // a transport may still read when its answer is there
	err error      // guarded by mu; why it broke off, if that is the blob's fault
}

// wrong is what is wrong with the blob as far as it was read, or nil.
func (v *verifier) wrong() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.err
}

func (v *verifier) fail(format string, args ...any) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.err = &contentError{v.desc.Digest, v.from, fmt.Sprintf(format, args...)}
	return 0, v.err
}

func newVerifier(r io.Reader, desc ocispec.Descriptor, from string) (*verifier, error) {
	if err := desc.Digest.Validate(); err != nil {
		return nil, fmt.Errorf("blob %q: %w: %w", desc.Digest, err, kiterr.ErrRefused)
	}
	return &verifier{r: r, desc: desc, from: from, sum: desc.Digest.Verifier()}, nil
}

func (v *verifier) Read(p []byte) (int, error) {
	if err := v.wrong(); err != nil {
		return 0, err
	}
	n, err := v.r.Read(p)
	v.n += int64(n)
	_, _ = v.sum.Write(p[:n]) // a hash takes everything
	if v.n == v.desc.Size && err == nil {
		if k, _ := io.ReadFull(v.r, make([]byte, 1)); k > 0 { // else it ends here, in whichever way
			v.n++
		} else {
			err = io.EOF
		}
	}
	switch {
	case v.n > v.desc.Size:
		return v.fail("has more than the %d bytes that the manifest states", v.desc.Size)
	case v.n == v.desc.Size && !v.sum.Verified():
		return v.fail("is something else")
	case v.n < v.desc.Size && errors.Is(err, io.EOF):
		return v.fail("ends after %d of %d bytes", v.n, v.desc.Size)
	}
	return n, err
}

// verified hands r to send and says what was wrong with it, whatever the receiver
// makes of a blob that breaks off.
func verified(r io.Reader, desc ocispec.Descriptor, from string, send func(io.Reader) error) error {
	v, err := newVerifier(r, desc, from)
	if err != nil {
		return err
	}
	err = send(v)
	if wrong := v.wrong(); wrong != nil {
		return wrong
	}
	return err
}
