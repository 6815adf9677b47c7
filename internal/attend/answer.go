package attend

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/kitbox-dev/kitbox/internal/keeper/link"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// A HungError says of a keeper that it hangs.
type HungError struct {
	Sandbox string
	PID     int // of the keeper
}

func (e *HungError) Error() string {
	return fmt.Sprintf("sandbox %s: its keeper, process %d, does not answer; 'kitbox restart %s' ends it and boots again", e.Sandbox, e.PID, e.Sandbox)
}

// Is makes a HungError match [kiterr.ErrNotRunning]: nobody gets in.
func (e *HungError) Is(target error) bool { return target == kiterr.ErrNotRunning }

// Dial opens a session with the guest, as [link.Client.Dial] does. From a keeper that
// hangs the error is a [HungError].
func (s Sandbox) Dial(ctx context.Context, early bool) (session *link.Session, err error) {
	err = s.Answering(ctx, func(ctx context.Context) error {
		session, err = s.Keeper().Dial(ctx, early)
		return err
	})
	return session, err
}

// Answering runs f, which waits for the keeper as long as a boot may take, and ends
// it with a [HungError] when that one hangs: when it does not even say how it is, and
// does nothing.
func (s Sandbox) Answering(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		for late := 0; ; {
			select {
			case <-ctx.Done():
				return
			case <-time.After(probeBound):
			}
			bound, done := context.WithTimeout(ctx, probeBound)
			_, err := s.Keeper().Status(bound)
			done()
			if !errors.Is(err, context.DeadlineExceeded) {
				late = 0
				continue
			}
			pid, err := s.Keeper().Process(ctx)
			if err != nil {
				continue
			}
			states := ThreadStates(pid)
			switch late++; {
			case strings.Contains(states, "R"): // the machine is busy
			case strings.Contains(states, "D") && late < 2: // its disk is
			default:
				cancel(&HungError{s.State.Name, pid})
				return
			}
		}
	}()
	return f(ctx)
}

// ThreadStates is the state of each thread of a process, a letter as in proc(5);
// empty when there is none.
func ThreadStates(pid int) string {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return ""
	}
	var states strings.Builder
	for _, name := range tasks {
		b, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		// The name is in parentheses and may have some of its own.
		if f := strings.TrimSpace(string(b[strings.LastIndexByte(string(b), ')')+1:])); f != "" {
			states.WriteByte(f[0])
		}
	}
	return states.String()
}

// ProcessorTime is how long a process has run on processors, to a hundredth of a
// second; 0 when there is none.
func ProcessorTime(pid int) time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// From the state on, which is the third field of proc(5): user and system time
	// are the 14th and 15th, in ticks that are always a hundredth for programs.
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(f) < 13 {
		return 0
	}
	var ticks int64
	for _, v := range f[11:13] {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return 0
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
