package artifact

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// stallLimit is how long a registry may send nothing. A slow one is waited for,
// one that has stopped is not.
var stallLimit = 30 * time.Second

var errStalled = errors.New("the registry sends nothing any more")

// patient ends requests that stall.
type patient struct{ next http.RoundTripper }

func (p patient) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	timer := time.AfterFunc(stallLimit, func() { cancel(errStalled) })
	resp, err := p.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		timer.Stop()
		err = stalled(ctx, err)
		cancel(nil)
		return nil, err
	}
	resp.Body = &patientBody{ReadCloser: resp.Body, ctx: ctx, cancel: cancel, timer: timer}
	return resp, nil
}

// stalled names the reason that err hides.
func stalled(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errStalled) {
		return fmt.Errorf("%w: nothing for %v", errStalled, stallLimit)
	}
	return err
}

type patientBody struct {
	io.ReadCloser
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
}

func (b *patientBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.timer.Reset(stallLimit)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = stalled(b.ctx, err)
	}
	return n, err
}

func (b *patientBody) Close() error {
	b.timer.Stop()
	b.cancel(nil)
	return b.ReadCloser.Close()
}
