// Package client is the host's half of the guest protocol: commands, files and
// connections in a machine, given a way to reach its guest.
//
// The guest runs among the machine's processes and may have been taken over
// by one. Nothing it says is used without a check, nothing it does makes the
// host wait without a bound of the caller's, and nothing it sends goes
// anywhere but where the caller pointed it.
package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/kitbox-dev/kitbox/internal/guest/protocol"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// A Client talks to one guest. Its methods can be called concurrently; each
// uses a connection of its own.
type Client struct {
	// Dial opens a connection to the guest. Required.
	Dial func(ctx context.Context) (net.Conn, error)
}

// Info asks the guest who it is. It doubles as the check that it answers.
func (cl *Client) Info(ctx context.Context) (protocol.Info, error) {
	a, err := cl.ask(ctx, protocol.Request{Op: protocol.OpInfo})
	if err != nil {
		return protocol.Info{}, err
	}
	if a.Info == nil {
		return protocol.Info{}, fmt.Errorf("%w: no info in the answer", protocol.ErrProtocol)
	}
	return *a.Info, nil
}

// Sessions asks how many commands and copies are under way that end with their
// connection, and calls told with their number. It returns when these have ended, at
// once if there are none, and with an error when the guest hangs up.
func (cl *Client) Sessions(ctx context.Context, told func(n int)) error {
	return cl.with(ctx, func(c *protocol.Conn) error {
		a, err := begin(c, protocol.Request{Op: protocol.OpSessions})
		if err != nil {
			return err
		}
		if a.Sessions < 0 || a.Sessions > maxSessions {
			return fmt.Errorf("%w: %d sessions", protocol.ErrProtocol, a.Sessions)
		}
		told(a.Sessions)
		if a.Sessions == 0 {
			return nil
		}
		var end protocol.Answer
		if err := c.ReadMessage(protocol.KindAnswer, &end); err != nil {
			return unexpected(err)
		}
		return check(&end)
	})
}

// maxSessions is more than a guest serves at once.
const maxSessions = 1 << 16

// Shutdown ends all processes of the machine but the guest: SIGTERM, then
// SIGKILL after grace. It returns when they are gone. The guest serves no
// command afterwards.
func (cl *Client) Shutdown(ctx context.Context, grace time.Duration) error {
	_, err := cl.ask(ctx, protocol.Request{Op: protocol.OpShutdown,
		Shutdown: &protocol.Shutdown{GraceMillis: grace.Milliseconds()}})
	return err
}

// Stat describes the file at path in the machine; with follow, what a final
// symbolic link points at. A missing file is [kiterr.ErrNotFound].
func (cl *Client) Stat(ctx context.Context, path string, follow bool) (protocol.FileInfo, error) {
	a, err := cl.ask(ctx, protocol.Request{Op: protocol.OpStat, Stat: &protocol.Stat{Path: path, Follow: follow}})
	if err != nil {
		return protocol.FileInfo{}, err
	}
	if a.Stat == nil {
		return protocol.FileInfo{}, fmt.Errorf("%w: no description in the answer", protocol.ErrProtocol)
	}
	return *a.Stat, nil
}

// A File is what WriteFile makes.
type File struct {
	Path string // absolute
	Mode uint32 // permission bits; 0 means 0644
	UID  uint32 // owner, whose rights decide whether it can be written
	GID  uint32

	KeepExisting bool // leave whatever is at Path already
	Parents      bool // make missing directories, mode 0755, same owner
}

// WriteFile replaces f in one step: nobody sees it half written, and on error
// what was there is still there.
func (cl *Client) WriteFile(ctx context.Context, f File, content []byte) error {
	return cl.with(ctx, func(c *protocol.Conn) error {
		a, err := begin(c, protocol.Request{Op: protocol.OpWrite, Write: &protocol.Write{
			Path: f.Path, Mode: f.Mode, UID: f.UID, GID: f.GID, Size: int64(len(content)),
			KeepExisting: f.KeepExisting, Parents: f.Parents,
		}})
		if err != nil {
			return err
		}
		if a.Stat != nil {
			return nil // kept
		}
		var final protocol.Answer
		got := make(chan error, 1)
		b := protocol.NewBudget()
		go func() {
			defer b.Close()
			got <- awaitAnswer(c, &final, b)
		}()
		r := &bytesReader{content}
		sendErr := protocol.Send(c, protocol.KindIn, r, b)
		if err := <-got; err != nil {
			return errors.Join(err, sendErr)
		}
		return check(&final)
	})
}

// awaitAnswer reads until the final answer, crediting b on the way.
func awaitAnswer(c *protocol.Conn, a *protocol.Answer, b *protocol.Budget) error {
	for {
		f, err := c.Read()
		if err != nil {
			return err
		}
		switch f.Kind {
		case protocol.KindAnswer:
			return protocol.Decode(f.Body, a)
		case protocol.KindCredit:
			_, n, err := protocol.ParseCredit(f.Body)
			if err != nil {
				return err
			}
			if err := b.Add(n); err != nil {
				return err
			}
		default:
			return protocol.ErrProtocol
		}
	}
}

type bytesReader struct{ b []byte }

func (r *bytesReader) Read(p []byte) (int, error) {
	if len(r.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.b)
	r.b = r.b[n:]
	return n, nil
}

// ReadFile returns the content of a regular file of at most maxBytes. A larger
// one is an error, a missing one [kiterr.ErrNotFound].
func (cl *Client) ReadFile(ctx context.Context, path string, maxBytes int64) ([]byte, error) {
	var content []byte
	err := cl.with(ctx, func(c *protocol.Conn) error {
		if _, err := begin(c, protocol.Request{Op: protocol.OpRead,
			Read: &protocol.Read{Path: path, MaxBytes: maxBytes}}); err != nil {
			return err
		}
		owed := 0
		for {
			f, err := c.Read()
			if err != nil {
				return unexpected(err)
			}
			if f.Kind != protocol.KindOut {
				return protocol.ErrProtocol
			}
			if len(f.Body) == 0 {
				return nil
			}
			if int64(len(content)+len(f.Body)) > maxBytes {
				return fmt.Errorf("%w: more than the %d bytes asked for", protocol.ErrProtocol, maxBytes)
			}
			content = append(content, f.Body...)
			if owed += len(f.Body); owed >= protocol.Window/4 {
				// The guest may have sent all and gone.
				_ = c.WriteCredit(protocol.KindOut, owed)
				owed = 0
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return content, nil
}

// ask is an operation of one request and one answer.
func (cl *Client) ask(ctx context.Context, r protocol.Request) (*protocol.Answer, error) {
	var a *protocol.Answer
	err := cl.with(ctx, func(c *protocol.Conn) (err error) {
		a, err = begin(c, r)
		return err
	})
	return a, err
}

// with runs f on a new connection, which breaks when ctx is done.
func (cl *Client) with(ctx context.Context, f func(*protocol.Conn) error) error {
	raw, err := cl.Dial(ctx)
	if err != nil {
		return err
	}
	c := protocol.NewConn(raw)
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { raw.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	err = f(c)
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// begin sends r and returns the guest's answer if it is not a fault.
func begin(c *protocol.Conn, r protocol.Request, files ...*os.File) (*protocol.Answer, error) {
	r.Version = protocol.Version
	if err := c.WriteMessage(protocol.KindRequest, r, files...); err != nil {
		return nil, fmt.Errorf("asking the guest: %w", unexpected(err))
	}
	a := new(protocol.Answer)
	if err := c.ReadMessage(protocol.KindAnswer, a); err != nil {
		return nil, &unansweredError{unexpected(err)}
	}
	return a, check(a)
}

// An unansweredError is of a request that the guest may have read and even carried out.
type unansweredError struct{ err error }

func (e *unansweredError) Error() string {
	return fmt.Sprintf("waiting for the guest's answer: %v", e.err)
}

func (e *unansweredError) Unwrap() error { return e.err }

// check turns a fault into an error of its family.
func check(a *protocol.Answer) error {
	if a.Version != protocol.Version {
		return fmt.Errorf("%w: the guest speaks version %d, not %d: restart the machine",
			protocol.ErrProtocol, a.Version, protocol.Version)
	}
	if a.Fault == nil {
		return nil
	}
	// The text goes to the user's terminal, and a guest may have written
	// anything into it.
	text := printable(a.Fault.Text)
	switch a.Fault.Code {
	case protocol.FaultCannotStart:
		return &faultError{text, kiterr.ErrCannotExec}
	case protocol.FaultNotFound:
		return &faultError{text, kiterr.ErrNotFound}
	case protocol.FaultRefused:
		return &faultError{text, ErrConnRefused}
	case protocol.FaultTooLarge:
		return &faultError{text, ErrTooLarge}
	default:
		return errors.New(text)
	}
}

var (
	// ErrConnRefused means that nothing listens on the port that was dialled.
	ErrConnRefused = errors.New("connection refused")
	// ErrTooLarge means that a file has more bytes than were asked for.
	ErrTooLarge = errors.New("file too large")
)

// A faultError is a guest's fault with the family it belongs to.
type faultError struct {
	text   string
	family error
}

func (e *faultError) Error() string { return e.text }
func (e *faultError) Unwrap() error { return e.family }

// printable bounds s and removes what could drive a terminal.
func printable(s string) string {
	const most = 500
	var out []rune
	for _, r := range s {
		if r < 0x20 || r >= 0x7f && r < 0xa0 || r == 0xfffd {
			r = '?'
		}
		if out = append(out, r); len(out) == most {
			return string(out) + "..."
		}
	}
	if len(out) == 0 {
		return "the guest gave no reason"
	}
	return string(out)
}

// unexpected makes the end of a connection an error where more was due.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return &hungUpError{err}
	}
	return err
}

// A hungUpError is of a guest that is gone, as it is when its machine ends. How the
// socket puts it depends on what was under way.
type hungUpError struct{ err error }

func (e *hungUpError) Error() string { return "the guest hung up" }
func (e *hungUpError) Unwrap() error { return e.err }
