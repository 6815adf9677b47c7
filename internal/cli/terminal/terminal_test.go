package terminal

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestAnInterruptedQuestionWaitsForNoLine(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	defer w.Close()
	cancel()
	if ok, err := Yes(ctx, r); ok || !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v", ok, err)
	}
	for line, want := range map[string]bool{"y\n": true, " YES \n": true, "n\n": false, "\n": false, "": false, "y": false} {
		if ok, err := Yes(t.Context(), strings.NewReader(line)); ok != want || err != nil {
			t.Errorf("%q: %v, %v", line, ok, err)
		}
	}
}
