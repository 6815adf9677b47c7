package world

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

func TestInputIsWhatIsReadThroughIt(t *testing.T) {
	want := bytes.Repeat([]byte("0123456789"), 20_000) // more than one block
	for what, r := range map[string]io.Reader{
		"at once":        bytes.NewReader(want),
		"in single ones": iotest.OneByteReader(bytes.NewReader(want)),
		"end with data":  iotest.DataErrReader(bytes.NewReader(want)),
	} {
		if err := iotest.TestReader(Input(t.Context(), r), want); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if Input(t.Context(), nil) != nil {
		t.Error("there is an input where there is none")
	}
	failed := errors.New("failed")
	if b, err := io.ReadAll(Input(t.Context(), io.MultiReader(bytes.NewReader(want), iotest.ErrReader(failed)))); !errors.Is(err, failed) || !bytes.Equal(b, want) {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

func TestInputEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	defer w.Close()
	in := Input(ctx, r)
	go func() {
		_, _ = w.Write([]byte("ab"))
		cancel() // somebody reads again, or will
	}()
	if b, err := io.ReadAll(in); !errors.Is(err, context.Canceled) || len(b) > 2 {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := in.Read(make([]byte, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("once more: %v", err)
	}
}
