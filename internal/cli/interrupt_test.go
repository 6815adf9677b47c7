package cli

import (
	"bytes"
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/kitbox-dev/kitbox/sandbox"
)

// silence is an input that nobody types. It ends with the test.
type silence struct {
	waited func() // called once somebody reads
	end    chan struct{}
}

func (s silence) Read([]byte) (int, error) {
	s.waited()
	<-s.end
	return 0, io.EOF
}

// importing reads what it imports, as the engine does.
type importing struct{ keeps }

func (i *importing) ImportSecrets(_ context.Context, _ sandbox.SecretRef, in io.Reader, _ map[string]string) error {
	_, err := io.ReadAll(in)
	return err
}

// Who starts a command that reads stdin, and finds out that nothing was given to it,
// interrupts it: the only other way out of a terminal would be to end its input.
func TestACommandThatWaitsForInputCanBeInterrupted(t *testing.T) {
	for _, args := range []string{
		"kit fmt", "kit fmt --check -", "kit check -", "kit check --json -", "kit inspect -", "kit surface -", "kit diff - ./x",
		"image load", "secret import - A=b", "secret set a",
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			in := silence{sync.OnceFunc(cancel), make(chan struct{})}
			defer close(in.end)
			var out, errs bytes.Buffer
			status := Main(ctx, &Env{Args: strings.Fields(args), Stdin: in, Stdout: &out, Stderr: &errs, Runtime: &importing{}, Images: &shelf{}})
			if status != 130 || errs.String() != "kitbox: interrupted\n" || out.Len() > 0 {
				t.Errorf("%s: status %d, %q, %q", args, status, out.String(), errs.String())
			}
		})
	}
}
