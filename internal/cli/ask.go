package cli

import (
	"context"
	"errors"
	"io"
	"strings"
)

// yes waits for a line of in and reports whether it says yes. It does not wait
// for the line once ctx has ended: who interrupts a question has answered it.
func yes(ctx context.Context, in io.Reader) (bool, error) {
	got := make(chan string, 1)
	go func() { // ends with the line, or with the process
		var line []byte
		var b [1]byte
		for len(line) < 64 {
			if n, err := in.Read(b[:]); n == 0 || err != nil {
				line = nil // a line that does not end is no word
				break
			}
			if b[0] == '\n' {
				break
			}
			line = append(line, b[0])
		}
		got <- string(line)
	}()
	select {
	case line := <-got:
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		a := strings.ToLower(strings.TrimSpace(line))
		return a == "y" || a == "yes", nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// interrupted reports whether err is the end of ctx and nothing else.
func interrupted(ctx context.Context, err error) bool {
	return ctx.Err() != nil && errors.Is(err, ctx.Err())
}
