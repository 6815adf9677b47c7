package protocol

import (
	"errors"
	"fmt"
	"io"
	"sync"
)

// A Budget is what one side may still send on one stream. It begins with
// [Window] bytes.
type Budget struct {
	mu     sync.Mutex
	cond   sync.Cond
	left   int  // guarded by mu
	closed bool // guarded by mu
}

// NewBudget returns a full budget.
func NewBudget() *Budget {
	b := &Budget{left: Window}
	b.cond.L = &b.mu
	return b
}

// Take reserves between 1 and want bytes and waits until there are any. It
// returns 0 once the budget is closed.
func (b *Budget) Take(want int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.left == 0 && !b.closed {
		b.cond.Wait()
	}
	if b.closed {
		return 0
	}
	n := min(want, b.left)
	b.left -= n
	return n
}

// Add gives n bytes back. More than ever were outstanding violates the
// protocol.
func (b *Budget) Add(n int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left+n > Window {
		return fmt.Errorf("%w: credit for bytes that were not sent", ErrProtocol)
	}
	b.left += n
	b.cond.Broadcast()
	return nil
}

// Close ends all waiting, now and later.
func (b *Budget) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.cond.Broadcast()
}

// An Inbox holds what has arrived on one stream and was not consumed yet:
// never more than [Window] bytes, because the sender had no credit for more.
// With it a reader of frames never waits for a slow consumer, so that signals
// and other streams keep flowing.
type Inbox struct {
	mu   sync.Mutex
	cond sync.Cond
	data []byte // guarded by mu
	err  error  // guarded by mu; set at the end
}

// NewInbox returns an empty inbox.
func NewInbox() *Inbox {
	b := new(Inbox)
	b.cond.L = &b.mu
	return b
}

// Put adds the body of a data frame; an empty one ends the stream. Data after
// the end and data without credit violate the protocol.
func (b *Inbox) Put(p []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case errors.Is(b.err, io.EOF):
		return fmt.Errorf("%w: data after the end of a stream", ErrProtocol)
	case b.err != nil:
		return nil // the consumer has gone; what comes is dropped
	case len(p) == 0:
		b.err = io.EOF
	case len(b.data)+len(p) > Window:
		return fmt.Errorf("%w: data without credit", ErrProtocol)
	default:
		b.data = append(b.data, p...)
	}
	b.cond.Broadcast()
	return nil
}

// Fail ends the stream with err, unless it has ended; what has arrived can
// still be read.
func (b *Inbox) Fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil {
		b.err = err
	}
	b.cond.Broadcast()
}

// Read waits for data and moves up to len(p) bytes of it.
func (b *Inbox) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.data) == 0 && b.err == nil {
		b.cond.Wait()
	}
	if len(b.data) == 0 {
		return 0, b.err
	}
	n := copy(p, b.data)
	b.data = b.data[:copy(b.data, b.data[n:])]
	return n, nil
}

// Drain moves the inbox into w until the stream ends, and returns credit on c
// as w takes the bytes. It returns nil at the regular end.
func (b *Inbox) Drain(c *Conn, stream Kind, w io.Writer) error {
	// Credit in quarters of a window keeps the sender going and costs few frames.
	const batch = Window / 4
	p := make([]byte, MaxData)
	owed := 0
	for {
		n, err := b.Read(p)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := w.Write(p[:n]); err != nil {
			return err
		}
		if owed += n; owed >= batch {
			// A failed write shows as the end of the stream soon enough; what
			// has arrived must still reach w.
			_ = c.WriteCredit(stream, owed)
			owed = 0
		}
	}
}

// Send copies r to stream as frames within the budget, and an empty frame at
// the end. It returns nil at the end of r or when the budget is closed.
func Send(c *Conn, stream Kind, r io.Reader, b *Budget) error {
	p := make([]byte, MaxData)
	for {
		n := b.Take(len(p))
		if n == 0 {
			return nil
		}
		got, err := r.Read(p[:n])
		if got < n {
			if err := b.Add(n - got); err != nil {
				return err
			}
		}
		if got > 0 {
			if err := c.Write(stream, p[:got]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return c.Write(stream, nil)
		}
		if err != nil {
			return err
		}
	}
}

// Receive puts what c brings of stream into in, and credit into b, until c ends or
// brings anything else, which is [ErrProtocol]. It returns why it ended, for a clean end
// [io.ErrUnexpectedEOF]: a stream has an end of its own, which is an empty frame.
func Receive(c *Conn, stream Kind, in *Inbox, b *Budget) error {
	for {
		f, err := c.Read()
		if errors.Is(err, io.EOF) {
			return io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		switch f.Kind {
		case stream:
			err = in.Put(f.Body)
		case KindCredit:
			var n int
			if _, n, err = ParseCredit(f.Body); err == nil {
				err = b.Add(n)
			}
		default:
			err = ErrProtocol
		}
		if err != nil {
			return err
		}
	}
}
