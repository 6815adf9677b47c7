package secretcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/kitbox-dev/kitbox/internal/cli/terminal"
	"github.com/kitbox-dev/kitbox/internal/cli/world"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// consent asks for the word that a command may run, unless it was given.
func consent(e *world.Env, cmd *cobra.Command, given bool, service string) error {
	if given {
		return nil
	}
	const what = "the command will run on this host, as you and outside every sandbox, whenever a sandbox needs a token"
	ok, asked, err := e.Confirm(cmd, "kitbox: "+what+". Allow that?")
	switch {
	case err != nil:
		return err
	case !asked:
		return fmt.Errorf("secret %s: %s; give --approve to allow that: %w", service, what, kiterr.ErrWidening)
	case !ok:
		return fmt.Errorf("secret %s: nothing is kept: %w", service, kiterr.ErrWidening)
	}
	return nil
}

// typed is stdin as the source of a secret: hidden while it is typed.
func typed(e *world.Env, cmd *cobra.Command, service string) (io.Reader, string, error) {
	if terminal.Of(e.Stdin) == nil {
		return cmd.InOrStdin(), "stdin", nil
	}
	in := e.Asking(cmd)
	if in == nil {
		return nil, "", fmt.Errorf("secret %s: nothing may be asked; give it on stdin, or by --file, --env or --command", service)
	}
	b, err := readHidden(cmd.Context(), in, func() { fmt.Fprintf(e.Stderr, "secret for %s (not shown): ", service) })
	fmt.Fprintln(e.Stderr)
	if err != nil {
		return nil, "", err
	}
	return strings.NewReader(string(b)), "terminal", nil
}

// maxTyped is the longest line that a terminal passes on, in bytes.
const maxTyped = 4095

// readHidden reads a line of a terminal that shows nothing from before the prompt
// on, and does again afterwards, also when ctx ends first.
func readHidden(ctx context.Context, f *os.File, prompt func()) ([]byte, error) {
	before, err := term.GetState(int(f.Fd()))
	if err != nil {
		return nil, err
	}
	if err := hush(f); err != nil {
		return nil, err
	}
	defer func() { _ = term.Restore(int(f.Fd()), before) }()
	prompt()
	type line struct {
		b   []byte
		err error
	}
	got := make(chan line, 1)
	go func() { // ends with the line, or with the process
		b, err := readLine(f)
		got <- line{b, err}
	}()
	select {
	case l := <-got:
		if errors.Is(l.err, io.EOF) {
			return nil, errors.New("nothing was typed; nothing is kept")
		}
		if l.err == nil && len(l.b) >= maxTyped {
			return nil, fmt.Errorf("a terminal cuts lines after %d bytes; give the secret on stdin, or by --file", maxTyped)
		}
		return l.b, l.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
