package link

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/kiterr"
)

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestACallerOfAHungKeeperIsNotHeldUp(t *testing.T) {
	dir := t.TempDir()
	l, err := Bind(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // it listens and never answers
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := (Client{Dir: dir}).Status(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Status = %v", err)
	}
}

func TestNoKeeperIsToldApart(t *testing.T) {
	dir := t.TempDir()
	if _, err := (Client{Dir: dir}).Status(within(t)); !errors.Is(err, ErrNone) {
		t.Errorf("without a socket: %v", err)
	}
	l, err := Bind(dir)
	if err != nil {
		t.Fatal(err)
	}
	l.Close() // as a keeper that was killed leaves it
	if _, err := (Client{Dir: dir}).Status(within(t)); !errors.Is(err, ErrNone) {
		t.Errorf("with a stale socket: %v", err)
	}
	if err := (Client{Dir: dir}).Kill(within(t)); err != nil {
		t.Errorf("Kill without a keeper: %v", err)
	}
}

func TestErrorsKeepTheirFamilyOnTheWay(t *testing.T) {
	for _, err := range []error{
		fmt.Errorf("x: %w", kiterr.ErrNotRunning), fmt.Errorf("x: %w", kiterr.ErrUnavailable), fmt.Errorf("x: %w", kiterr.ErrRefused),
		context.Canceled, errors.New("plain"),
	} {
		b, merr := json.Marshal(Reply{Error: Failed(err)})
		if merr != nil {
			t.Fatal(merr)
		}
		var r Reply
		if uerr := json.Unmarshal(b, &r); uerr != nil {
			t.Fatal(uerr)
		}
		got := r.Error.Err()
		if got.Error() != err.Error() || kiterr.ExitCode(got) != kiterr.ExitCode(err) || errors.Is(got, kiterr.ErrNotRunning) != errors.Is(err, kiterr.ErrNotRunning) {
			t.Errorf("%v arrived as %v", err, got)
		}
	}
	if Failed(nil).Err() != nil {
		t.Error("no error arrived as one")
	}
}
