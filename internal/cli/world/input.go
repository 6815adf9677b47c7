package world

import (
	"context"
	"errors"
	"io"
)

// inputBlock is how much of an input is read at once, in bytes.
const inputBlock = 64 << 10

// Input is r to a command that reads it to its end: a Read that waits ends with ctx,
// and returns its error. A signal ends the context of a command and nothing else, so
// that otherwise nobody could interrupt one that waits for what is never typed.
//
// What is read ahead when ctx ends is lost. Only one goroutine may read at a time; one
// more waits for r until it gives something, or the process ends. Input of nil is nil.
func Input(ctx context.Context, r io.Reader) io.Reader {
	if r == nil {
		return nil
	}
	return &input{ctx: ctx, r: r, got: make(chan block, 1)}
}

type block struct {
	b   []byte
	err error
}

type input struct {
	ctx     context.Context
	r       io.Reader
	got     chan block
	left    block
	buf     []byte
	waiting bool // somebody reads r into buf
}

// Read implements [io.Reader].
func (i *input) Read(p []byte) (int, error) {
	if err := i.ctx.Err(); err != nil {
		return 0, err
	}
	if len(p) == 0 {
		return 0, nil
	}
	if len(i.left.b) == 0 && i.left.err == nil {
		if !i.waiting {
			if i.buf == nil {
				i.buf = make([]byte, inputBlock)
			}
			i.waiting = true
			go func() {
				n, err := i.r.Read(i.buf)
				i.got <- block{i.buf[:n], err}
			}()
		}
		select {
		case i.left = <-i.got:
			i.waiting = false
		case <-i.ctx.Done():
			return 0, i.ctx.Err()
		}
	}
	n := copy(p, i.left.b)
	i.left.b = i.left.b[n:]
	if len(i.left.b) > 0 {
		return n, nil
	}
	err := i.left.err
	if !errors.Is(err, io.EOF) { // an end stays one; what else happened may pass
		i.left.err = nil
	}
	return n, err
}
