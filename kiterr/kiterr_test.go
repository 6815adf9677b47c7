package kiterr_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/kitbox-dev/kitbox/kiterr"
)

func TestExitCodeFollowsTheFamilyThroughWrapping(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("disk on fire"), 1},
		{fmt.Errorf("kit a: %w", kiterr.ErrRefused), 2},
		{errors.Join(errors.New("one"), fmt.Errorf("two: %w", kiterr.ErrRefused)), 2},
		{fmt.Errorf("update: %w", kiterr.ErrWidening), 3},
		{fmt.Errorf("no such file: %w", kiterr.ErrCannotExec), 125},
		{fmt.Errorf("sandbox t: %w", kiterr.ErrNotFound), 1},
		{fmt.Errorf("exec: %w", kiterr.ExitStatus(7)), 7},
		{fmt.Errorf("exec: %w", kiterr.ExitStatus(0)), 0},
		{fmt.Errorf("build: %w", context.Canceled), 130},
	} {
		if got := kiterr.ExitCode(c.err); got != c.want {
			t.Errorf("ExitCode(%v) = %d, want %d", c.err, got, c.want)
		}
	}
}
