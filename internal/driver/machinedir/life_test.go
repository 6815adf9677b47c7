package machinedir

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/needs"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// ended makes in base a machine that has ended by itself and has left a file in shared.
func ended(t *testing.T, base, shared string) (file string) {
	t.Helper()
	dir := filepath.Join(base, "m")
	b, err := json.Marshal(plan.Machine{ID: "m", IDMap: plan.IDMap{Base: 5000, Size: 100}, Mounts: []plan.Mount{
		{Kind: plan.MountBind, Source: shared, Owner: &plan.OwnerMap{HostUID: 7, HostGID: 8}}}})
	file = filepath.Join(shared, "file")
	if err := errors.Join(err, os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, machineFile), b, 0o600), os.WriteFile(filepath.Join(dir, socketFile), nil, 0o600),
		os.WriteFile(file, nil, 0o600), os.Lchown(file, 5000, 5000)); err != nil {
		t.Fatal(err)
	}
	return file
}

func owner(t *testing.T, file string) uint32 {
	t.Helper()
	st, err := os.Lstat(file)
	if err != nil {
		t.Fatal(err)
	}
	return st.Sys().(*syscall.Stat_t).Uid
}

// life is one whose record goes by killed and cleared.
func life(base string, clear func(*Machine) error) Life {
	return Life{Dir: base, StartTimeout: time.Minute, Clear: clear, Kill: clear, Boot: func(context.Context, *Machine) error { return errors.New("no boot") }}
}

// Whoever is killed in between, or gives up, leaves the record for the next one: without
// it nobody would know that there are files to be given to their owners.
func TestTheRecordOfARunGoesAfterWhatItMadeIsGiven(t *testing.T) {
	needs.Root(t, "files of several users")
	for name, end := range map[string]func(Life, context.Context) error{
		"stop":   func(l Life, ctx context.Context) error { return l.Stop(ctx, "m", 0) },
		"remove": func(l Life, ctx context.Context) error { return l.Remove(ctx, "m") },
		"start":  func(l Life, ctx context.Context) error { _ = l.Start(ctx, "m"); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			base, shared := t.TempDir(), t.TempDir()
			file := ended(t, base, shared)
			cleared := false
			l := life(base, func(m *Machine) error {
				cleared = true
				if got := owner(t, file); got != 7 {
					t.Errorf("the record goes while the file belongs to %d", got)
				}
				return m.ClearRun()
			})
			// It waits for no lock, so that nothing looks before the files are gone through.
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := end(l, ctx); !errors.Is(err, context.Canceled) || cleared {
				t.Errorf("given up: %v, cleared: %v", err, cleared)
			}
			if _, err := os.Lstat(filepath.Join(base, "m", socketFile)); err != nil {
				t.Error(err)
			}
			if err := end(l, t.Context()); err != nil || !cleared {
				t.Errorf("%v, cleared: %v", err, cleared)
			}
		})
	}
}
