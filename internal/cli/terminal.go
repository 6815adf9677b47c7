package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/kitbox-dev/kitbox/sandbox"
)

// streams says how a command's input, output and terminal are joined to ours.
type streams struct {
	tty         bool
	interactive bool
	noTTY       bool
	auto        bool // use a terminal whenever we have one ourselves
}

func (s *streams) flags(cmd *cobra.Command, auto bool) {
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

// run runs c in sb with these streams.
func (s *streams) run(ctx context.Context, e *Env, sb sandbox.Sandbox, c *sandbox.Cmd) (*sandbox.Result, error) {
	c.Stdout, c.Stderr = e.Stdout, e.Stderr
	in, out := terminal(e.Stdin), terminal(e.Stdout)
	tty, interactive := s.tty, s.interactive
	if s.tty && s.noTTY {
		return nil, errors.New("-t and -T exclude each other")
	}
	if s.auto && !s.noTTY && in != nil && out != nil {
		tty, interactive = true, true
	}
	if interactive {
		c.Stdin = e.Stdin
	}
	if !tty {
		return sb.Run(ctx, c)
	}

	t := &sandbox.Terminal{Type: e.getenv("TERM")}
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
		defer term.Restore(int(in.Fd()), old)
	}
	return sb.Run(ctx, c)
}

func terminal(stream any) *os.File {
	if f := fileOf(stream); f != nil && term.IsTerminal(int(f.Fd())) {
		return f
	}
	return nil
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
