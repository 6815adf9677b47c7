package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/kitbox-dev/kitbox/internal/guest/protocol"
)

// Pack writes a tree of the machine to w as a tar. What comes is the guest's word:
// it may be anything, and the reader of w judges it. Without an error all of the
// tree has been sent.
func (cl *Client) Pack(ctx context.Context, r protocol.Pack, w io.Writer) error {
	return cl.with(ctx, func(c *protocol.Conn) error {
		if _, err := begin(c, protocol.Request{Op: protocol.OpPack, Pack: &r}); err != nil {
			return err
		}
		owed := 0
		for {
			f, err := c.Read()
			if err != nil {
				return unexpected(err)
			}
			if f.Kind == protocol.KindAnswer { // it broke off
				var a protocol.Answer
				if err := protocol.Decode(f.Body, &a); err != nil {
					return err
				}
				return errors.Join(check(&a), io.ErrUnexpectedEOF)
			}
			if f.Kind != protocol.KindOut {
				return protocol.ErrProtocol
			}
			if len(f.Body) == 0 {
				break
			}
			if _, err := w.Write(f.Body); err != nil {
				return err
			}
			if owed += len(f.Body); owed >= protocol.Window/4 {
				_ = c.WriteCredit(protocol.KindOut, owed)
				owed = 0
			}
		}
		var a protocol.Answer
		if err := c.ReadMessage(protocol.KindAnswer, &a); err != nil {
			return unexpected(err)
		}
		return check(&a)
	})
}

// Unpack writes the tar r into a directory of the machine.
func (cl *Client) Unpack(ctx context.Context, u protocol.Unpack, r io.Reader) error {
	return cl.with(ctx, func(c *protocol.Conn) error {
		if _, err := begin(c, protocol.Request{Op: protocol.OpUnpack, Unpack: &u}); err != nil {
			return err
		}
		var final protocol.Answer
		got := make(chan error, 1)
		b := protocol.NewBudget()
		go func() {
			defer b.Close()
			got <- awaitAnswer(c, &final, b)
		}()
		sent := make(chan error, 1)
		go func() { sent <- protocol.Send(c, protocol.KindIn, r, b) }()
		select {
		case err := <-sent:
			if err != nil {
				// Either what is sent could not be read, upon which the end
				// of the connection is the end of the unpacking, or the guest
				// hung up, and has said why.
				_ = c.Raw().SetReadDeadline(time.Now().Add(2 * time.Second))
				if gerr := <-got; gerr == nil && final.Fault != nil {
					return check(&final)
				}
				return fmt.Errorf("sending: %w", err)
			}
			if err := <-got; err != nil {
				return unexpected(err)
			}
		case err := <-got: // a fault, before all was sent
			if err != nil {
				return unexpected(err)
			}
		}
		return check(&final)
	})
}
