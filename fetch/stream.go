package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote"
)

const (
	// idle is how long a registry may neither send nor take a byte in the
	// middle of a transfer.
	idle = 60 * time.Second

	// tries is how often a layer is taken up again without progress.
	tries = 4

	// worth is what a connection has to bring to count as progress, in bytes. A
	// registry that sends a little each time would otherwise never be given up.
	worth = 64 << 10

	// firstPause is the wait before the first of them; it doubles.
	firstPause = 250 * time.Millisecond
)

// errStalled means that a registry fell silent.
var errStalled = errors.New("the registry stopped sending or taking data")

// An idleTransport ends exchanges that stand still. A timeout for the whole
// would end large layers on slow lines as well.
type idleTransport struct {
	base http.RoundTripper
	idle time.Duration
}

func (t idleTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	watch := func() *time.Timer { return time.AfterFunc(t.idle, func() { cancel(errStalled) }) }
	thinking := func() bool { return false }
	if req.Body != nil && req.Body != http.NoBody {
		req = req.Clone(ctx)
		req.Body = &idleBody{rc: req.Body, ctx: ctx, timer: watch(), idle: t.idle}
	} else {
		req = req.WithContext(ctx)
		thinking = watch().Stop
	}
	resp, err := t.base.RoundTrip(req)
	thinking()
	if err != nil {
		cause := context.Cause(ctx)
		cancel(nil)
		if errors.Is(cause, errStalled) {
			return nil, errStalled
		}
		return nil, err
	}
	resp.Body = &idleBody{rc: resp.Body, ctx: ctx, timer: watch(), idle: t.idle, done: func() { cancel(nil) }}
	return resp, nil
}

// An idleBody restarts its timer with every read. The timer of a request's body
// stops at its end: what follows is the registry's time to think, which has a
// bound of its own.
type idleBody struct {
	rc    io.ReadCloser
	ctx   context.Context
	timer *time.Timer
	idle  time.Duration
	done  func()
}

func (b *idleBody) Read(p []byte) (int, error) {
	b.timer.Reset(b.idle)
	n, err := b.rc.Read(p)
	switch {
	case err == nil:
		b.timer.Reset(b.idle)
	case errors.Is(err, io.EOF):
		b.timer.Stop()
	default:
		b.timer.Stop()
		if errors.Is(context.Cause(b.ctx), errStalled) {
			err = errStalled
		}
	}
	return n, err
}

func (b *idleBody) Close() error {
	b.timer.Stop()
	err := b.rc.Close()
	if b.done != nil {
		b.done()
	}
	return err
}

// A blobReader reads a blob to its end over as many connections as that takes,
// going on where the last one broke off. It verifies nothing: the store does.
type blobReader struct {
	ctx   context.Context
	repo  *remote.Repository
	desc  ocispec.Descriptor
	pause time.Duration // before the next connection

	rc   io.ReadCloser // nil: none
	off  int64
	got  int64 // over this connection
	fail int   // connections in a row that brought no progress
}

func openBlob(ctx context.Context, repo *remote.Repository, desc ocispec.Descriptor) (*blobReader, error) {
	b := &blobReader{ctx: ctx, repo: repo, desc: desc, pause: firstPause}
	rc, err := repo.Blobs().Fetch(ctx, desc)
	if err != nil {
		return nil, err
	}
	b.rc = rc
	return b, nil
}

func (b *blobReader) Read(p []byte) (int, error) {
	for {
		if b.rc != nil {
			n, err := b.rc.Read(p)
			b.off += int64(n)
			if b.got += int64(n); b.got >= worth {
				b.fail, b.pause = 0, firstPause
			}
			ended := errors.Is(err, io.EOF)
			if err == nil || ended && b.off >= b.desc.Size {
				return n, err
			}
			b.rc.Close()
			b.rc = nil
			if errors.Is(err, errStalled) {
				b.fail++ // it has cost as much as several that broke off
			}
			if b.fail++; b.ctx.Err() != nil || b.fail > tries {
				if ended {
					err = fmt.Errorf("the registry sends %d of %d bytes: %w", b.off, b.desc.Size, io.ErrUnexpectedEOF)
				}
				return n, err
			}
			if n > 0 {
				return n, nil
			}
		}
		if err := b.reopen(); err != nil {
			return 0, err
		}
	}
}

// reopen waits and connects again at the offset. A connection that fails counts
// like one that brings nothing.
func (b *blobReader) reopen() error {
	for {
		select {
		case <-b.ctx.Done():
			return context.Cause(b.ctx)
		case <-time.After(b.pause):
		}
		b.pause *= 2
		rc, err := b.repo.Blobs().Fetch(b.ctx, b.desc)
		if err == nil {
			if s, ok := rc.(io.Seeker); ok {
				_, err = s.Seek(b.off, io.SeekStart)
			} else { // it has no ranges: what is known already is read again
				_, err = io.CopyN(io.Discard, rc, b.off)
			}
			if err == nil {
				b.rc, b.got = rc, 0
				return nil
			}
			rc.Close()
		}
		if b.fail++; b.fail > tries {
			return err
		}
	}
}

func (b *blobReader) Close() error {
	if b.rc == nil {
		return nil
	}
	return b.rc.Close()
}
