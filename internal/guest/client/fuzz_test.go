package client_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/guest/client"
	"github.com/kitbox-dev/kitbox/internal/guest/protocol"
)

// FuzzAHostileGuest answers every operation with bytes of its own choice. The
// client may fail in any way but must not wait for longer than its context, take
// a whole machine's memory, or panic.
func FuzzAHostileGuest(f *testing.F) {
	frame := func(kind protocol.Kind, body string) []byte {
		n := len(body)
		return append([]byte{byte(kind), byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, body...)
	}
	ok := frame(protocol.KindAnswer, `{"version":1}`)
	for _, then := range [][]byte{
		nil,
		frame(protocol.KindExit, `{"code":0}`),
		frame(protocol.KindExit, `{"code":-1,"signal":99}`),
		frame(protocol.KindOut, "data"),
		append(frame(protocol.KindOut, ""), frame(protocol.KindOut, "after the end")...),
		frame(protocol.KindErr, "data"),
		frame(protocol.KindIn, "data"),
		frame(protocol.KindCredit, "\x03\x00\x04\x00\x00"),
		frame(protocol.KindCredit, "\x03\xff\xff\xff\xff"),
		frame(protocol.KindAnswer, `{"version":1,"stat":{"size":-1,"mode":4294967295,"uid":0,"gid":0,"link":"\u001b[2J"}}`),
		frame(protocol.KindAnswer, `{"version":1,"fault":{"code":"failed","text":"\u001b]0;x\u0007"}}`),
		{byte(protocol.KindAnswer), 0, 0xc8, 0, 0},
		{0, 0, 0, 0, 0},
		{255, 255, 255, 255, 255},
	} {
		for op := range byte(6) {
			f.Add(op, append(bytes.Clone(ok), then...))
			f.Add(op, then)
		}
	}
	f.Fuzz(func(t *testing.T, op byte, says []byte) {
		cl := &client.Client{Dial: func(context.Context) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go func() {
				defer theirs.Close()
				go io.Copy(io.Discard, theirs)
				theirs.SetWriteDeadline(time.Now().Add(2 * time.Second))
				theirs.Write(says)
			}()
			return ours, nil
		}}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		done := make(chan error, 1)
		go func() {
			var err error
			switch op % 6 {
			case 0:
				var out, errs bytes.Buffer
				_, err = cl.Exec(ctx, client.ExecRequest{Argv: []string{"x"}},
					client.Stdio{Stdin: bytes.NewReader(make([]byte, 1<<20)), Stdout: &out, Stderr: &errs})
				if n := out.Len() + errs.Len(); n > len(says) {
					err = errors.Join(err, errors.New("more output than was sent"))
					t.Errorf("%d bytes of output from %d", n, len(says))
				}
			case 1:
				_, err = cl.Info(ctx)
			case 2:
				_, err = cl.Stat(ctx, "/x", true)
			case 3:
				err = cl.WriteFile(ctx, client.File{Path: "/x"}, make([]byte, 1<<20))
			case 4:
				var b []byte
				b, err = cl.ReadFile(ctx, "/x", 16)
				if len(b) > 16 {
					t.Errorf("%d bytes where 16 were asked for", len(b))
				}
			case 5:
				var c client.HalfCloser
				if c, err = cl.DialTCP(ctx, 1, false); err == nil {
					c.Close()
				}
			}
			done <- err
		}()
		select {
		case err := <-done:
			if err != nil {
				for _, r := range err.Error() {
					if r < ' ' && r != '\n' {
						t.Errorf("control characters of the guest in %q", err)
					}
				}
			}
		case <-time.After(10 * time.Second):
			t.Fatal("the client waits for longer than its context")
		}
	})
}
