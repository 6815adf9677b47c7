package mux_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/driver"
	"github.com/kitbox-dev/kitbox/internal/driver/mux"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// disk keeps nothing but a directory per machine; what drivers promise is
// judged by drivertest elsewhere.
type disk struct{ dir string }

func (d disk) Create(_ context.Context, m plan.Machine) error {
	return os.MkdirAll(filepath.Join(d.dir, m.ID), 0o700)
}
func (d disk) Start(context.Context, string) error { return nil }
func (d disk) Dial(context.Context, string) (net.Conn, error) {
	return nil, kiterr.ErrNotRunning
}
func (d disk) Stop(context.Context, string, time.Duration) error { return nil }
func (d disk) Remove(_ context.Context, id string) error {
	return os.RemoveAll(filepath.Join(d.dir, id))
}
func (d disk) List(context.Context) ([]driver.Machine, error) {
	entries, err := os.ReadDir(d.dir)
	var ms []driver.Machine
	for _, e := range entries {
		ms = append(ms, driver.Machine{ID: e.Name()})
	}
	return ms, err
}

func TestTheDriverThatMadeAMachineAnswersForIt(t *testing.T) {
	one, two := disk{filepath.Join(t.TempDir(), "one")}, disk{filepath.Join(t.TempDir(), "two")}
	d := mux.Driver{{Name: "one", Dir: one.dir, Driver: one}, {Name: "two", Dir: two.dir, Driver: two}}
	ctx := t.Context()

	if err := d.Create(ctx, plan.Machine{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	if err := d.Create(ctx, plan.Machine{ID: "b", Driver: "two"}); err != nil {
		t.Fatal(err)
	}
	if err := d.Create(ctx, plan.Machine{ID: "a", Driver: "two"}); !errors.Is(err, kiterr.ErrExists) {
		t.Errorf("an id that another driver has: %v, want ErrExists", err)
	}
	if err := d.Create(ctx, plan.Machine{ID: "c", Driver: "three"}); !errors.Is(err, kiterr.ErrRefused) {
		t.Errorf("an unknown driver: %v, want ErrRefused", err)
	}
	if _, err := os.Stat(filepath.Join(two.dir, "b")); err != nil {
		t.Errorf("machine b is not with driver two: %v", err)
	}
	if ms, err := d.List(ctx); err != nil || len(ms) != 2 {
		t.Errorf("List = %v, %v, want both machines", ms, err)
	}
	if err := d.Remove(ctx, "b"); err != nil {
		t.Error(err)
	}
	for _, id := range []string{"b", "", "../one/a", "."} {
		if err := d.Start(ctx, id); !errors.Is(err, kiterr.ErrNotFound) {
			t.Errorf("Start(%q) = %v, want ErrNotFound", id, err)
		}
	}
	// What a driver cannot do, the choice of drivers cannot either.
	if _, err := d.NetNS(ctx, "a"); !errors.Is(err, kiterr.ErrUnsupported) {
		t.Errorf("NetNS = %v, want ErrUnsupported", err)
	}
}
