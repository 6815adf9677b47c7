package link

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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

// TestADeadKeeperIsExplained starts keepers that end before they boot anything.
func TestADeadKeeperIsExplained(t *testing.T) {
	for _, c := range []struct{ name, script, want string }{
		{"killed", "echo 'time=now level=INFO msg=\"keeper is up\"' >&2; kill -9 $$", "the sandbox's keeper died: signal: killed"},
		{"gave up", "printf 'panic: at the wheel\\n\\ngoroutine 1 [running]:\\n' >&2; exit 2", "the sandbox's keeper died: panic: at the wheel"},
		{"said why", "echo 'time=now level=ERROR msg=\"no descriptor\"' >&2; echo 'time=now level=INFO msg=bye' >&2; exit 1", `the sandbox's keeper died: time=now level=ERROR msg="no descriptor"`},
		{"said nothing", "exit 3", "the sandbox's keeper died: exit status 3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			program := filepath.Join(dir, "program")
			if err := os.WriteFile(program, []byte("#!/bin/sh\n"+c.script+"\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			// What a keeper before it said explains nothing.
			if err := os.WriteFile(filepath.Join(dir, LogName), []byte("panic: of another\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			p, err := Spawn(program, dir, "t", nil, Held{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.Boot(within(t), BootOptions{}); err == nil || err.Error() != c.want {
				t.Errorf("%v, not %s", err, c.want)
			}
		})
	}
}
