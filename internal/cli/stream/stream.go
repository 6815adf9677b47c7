// Package stream joins a command in a sandbox to the streams, the terminal and the
// signals of this process.
package stream

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/kitbox-dev/kitbox/internal/cli/argument"
	"github.com/kitbox-dev/kitbox/internal/cli/terminal"
	"github.com/kitbox-dev/kitbox/internal/cli/world"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// Streams says how a command's input, output and terminal are joined to ours. The
// zero value passes output on and gives the command an empty input.
type Streams struct {
	tty         bool
	interactive bool
	noTTY       bool
	auto        bool // use a terminal whenever we have one ourselves
}

// Flags adds -t and -i to cmd; with auto, a terminal is the default where we have one,
// and -T is there to refuse it.
func (s *Streams) Flags(cmd *cobra.Command, auto bool) {
	s.auto = auto
	f := cmd.Flags()
	tty := "give the command a terminal"
	if auto {
		tty += " (default: when stdin and stdout are one)"
		f.BoolVarP(&s.noTTY, "no-tty", "T", false, "give the command pipes although stdin and stdout are a terminal")
	}
	f.BoolVarP(&s.tty, "tty", "t", false, tty)
	f.BoolVarP(&s.interactive, "interactive", "i", false, "pass stdin on to the command")
}

// Asked reports whether a terminal or our input was asked for.
func (s *Streams) Asked() bool { return s.tty || s.interactive }

// Check finds what is wrong with the options, before anything is made.
func (s *Streams) Check(cmd *cobra.Command, e *world.Env) error {
	switch {
	case s.tty && s.noTTY:
		return argument.Mistake(cmd, "-t and -T exclude each other")
	case s.tty && s.interactive && terminal.Of(e.Stdin) == nil:
		return argument.Mistake(cmd, "-t with -i needs a terminal on stdin, and stdin is none; leave -t out")
	}
	return nil
}

// Run runs c in sb with these streams, and passes on the signals that come until it
// ends. A terminal of ours is as it was when Run returns.
func (s *Streams) Run(ctx context.Context, e *world.Env, sb sandbox.Sandbox, c *sandbox.Cmd) (*sandbox.Result, error) {
	c.Stdout, c.Stderr = e.Stdout, e.Stderr
	in, out := terminal.Of(e.Stdin), terminal.Of(e.Stdout)
	tty, interactive := s.tty, s.interactive
	if s.auto && !s.noTTY && in != nil && out != nil {
		tty, interactive = true, true
	}
	if interactive {
		c.Stdin = e.Stdin
	}
	ctx, signals, stopSignals := passSignals(ctx)
	c.Signals = signals
	defer stopSignals()
	if !tty {
		return sb.Run(ctx, c)
	}
	if !interactive {
		// A terminal cannot be closed: its end of input is a character,
		// which has to come again for everybody who reads.
		end := &endOfInput{stop: make(chan struct{})}
		defer close(end.stop)
		c.Stdin = end
	}

	t := &sandbox.Terminal{Type: e.Variable("TERM")}
	c.Terminal = t
	if out != nil {
		t.Size = sizeOf(out)
		sizes := make(chan sandbox.WindowSize, 1)
		t.Resize = sizes
		stop := watchSize(out, sizes)
		defer stop()
	}
	// Raw only when our input goes there: keys must reach the command
	// unchanged, Ctrl-C included.
	if in != nil && interactive {
		old, err := term.MakeRaw(int(in.Fd()))
		if err != nil {
			return nil, err
		}
		defer func() { _ = term.Restore(int(in.Fd()), old) }()
	}
	return sb.Run(ctx, c)
}

// passSignals returns a channel of the signals that this process gets from now on,
// and a context that the first of them does not end: the command is told, and has
// as long as at a stop to end as it likes. Then, or at a second signal that asks for
// an end, the context ends.
func passSignals(ctx context.Context) (context.Context, <-chan int, func()) {
	if ctx.Err() != nil {
		return ctx, nil, func() {}
	}
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	got := make(chan os.Signal, 8)
	signal.Notify(got, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	to := make(chan int, 8)
	go func() {
		asked := false
		var late <-chan time.Time
		for {
			select {
			case <-inner.Done():
				return
			case <-late:
				cancel()
				return
			case s := <-got:
				n, ok := s.(syscall.Signal)
				if !ok {
					continue
				}
				if n == syscall.SIGINT || n == syscall.SIGTERM || n == syscall.SIGHUP {
					if asked {
						cancel()
						return
					}
					asked, late = true, time.After(askedGrace)
				}
				select {
				case to <- int(n):
				default:
				}
			case <-ctx.Done():
				if !asked {
					// Ended by something else than a signal, or by one
					// that came before we listened.
					select {
					case s := <-got:
						got <- s
					case <-time.After(50 * time.Millisecond):
						cancel()
						return
					}
				}
				ctx = context.WithoutCancel(ctx)
			}
		}
	}()
	return inner, to, func() { signal.Stop(got); cancel() }
}

// askedGrace is how long a command may take to end once it was asked to.
const askedGrace = 10 * time.Second

// endOfInput is the input of a command that has a terminal and nobody typing:
// Ctrl-D at once, and again for as long as the command runs, since each ends
// only one read.
type endOfInput struct {
	stop  chan struct{} // closed at the end of the command
	later bool          // only the first one is not waited for
}

// endAgain is how long a second reader waits for its end of input.
const endAgain = 200 * time.Millisecond

// Read implements [io.Reader].
func (r *endOfInput) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	if r.later {
		t := time.NewTimer(endAgain)
		defer t.Stop()
		select {
		case <-r.stop:
			return 0, io.EOF
		case <-t.C:
		}
	}
	r.later = true
	b[0] = 4
	return 1, nil
}

func sizeOf(f *os.File) sandbox.WindowSize {
	cols, rows, err := term.GetSize(int(f.Fd()))
	if err != nil || cols <= 0 || rows <= 0 {
		return sandbox.WindowSize{}
	}
	return sandbox.WindowSize{Cols: uint16(cols), Rows: uint16(rows)}
}

// watchSize sends f's new sizes until stop is called. Only the newest matters,
// so an unread older one is replaced.
func watchSize(f *os.File, to chan sandbox.WindowSize) (stop func()) {
	sig := make(chan os.Signal, 1)
	signal.Notify(sig, syscall.SIGWINCH)
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			case <-sig:
			}
			select {
			case <-to:
			default:
			}
			to <- sizeOf(f)
		}
	}()
	return func() {
		signal.Stop(sig)
		close(done)
		<-ended
	}
}
