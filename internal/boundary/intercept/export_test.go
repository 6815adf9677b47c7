package intercept

import (
	"context"
	"io"
	"testing"
	"time"
)

// SetTimes shortens how long clients may take, for the length of a test.
func SetTimes(t testing.TB, d time.Duration) {
	hello, header := helloTime, headerTime
	helloTime, headerTime = d, d
	t.Cleanup(func() { helloTime, headerTime = hello, header })
}

// Whole is a body as it is handed on under a request's context.
func Whole(ctx context.Context, body io.ReadCloser) io.ReadCloser {
	return &whole{body, ctx, &carried{st: new(state)}}
}
