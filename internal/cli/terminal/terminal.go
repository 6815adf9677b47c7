// Package terminal finds the terminal behind a stream, and asks somebody who sits at
// one a question.
package terminal

import (
	"context"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// Yes waits for a line of in and reports whether it says yes. It does not wait
// for the line once ctx has ended: who interrupts a question has answered it.
func Yes(ctx context.Context, in io.Reader) (bool, error) {
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

// File returns the file behind a stream, nil when it is something else.
func File(stream any) *os.File {
	f, _ := stream.(*os.File)
	return f
}

// Of returns the terminal behind a stream, nil when it is something else.
func Of(stream any) *os.File {
	if f := File(stream); f != nil && term.IsTerminal(int(f.Fd())) {
		return f
	}
	return nil
}
