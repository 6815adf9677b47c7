package machinedir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"

	"github.com/kitbox-dev/kitbox/internal/driver"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// List describes all machines without waiting for any.
func List(base string) ([]driver.Machine, error) {
	entries, err := os.ReadDir(base) // sorted by name
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, Explain(err)
	}
	var ms []driver.Machine
	for _, e := range entries {
		if !e.IsDir() || !ValidID(e.Name()) {
			continue
		}
		m, err := Open(base, e.Name())
		if err != nil {
			continue // removed meanwhile
		}
		dm := driver.Machine{ID: m.ID}
		if m.Run != nil {
			dm.Unenforced = m.Run.Unenforced
		}
		if p, err := m.Process(); err == nil {
			dm.Running, dm.PID = true, p.PID
			p.Close()
		}
		m.Close()
		ms = append(ms, dm)
	}
	return ms, nil
}

// Wait returns when machine id of base does not run, or ctx's error.
func Wait(ctx context.Context, base, id string) error {
	m, err := Open(base, id)
	if err != nil {
		return err
	}
	p, err := m.Process()
	m.Close()
	if errors.Is(err, kiterr.ErrNotRunning) {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.Close()
	return p.Wait(ctx)
}

// Dial connects to the guest of machine id of base.
func Dial(ctx context.Context, base, id string) (net.Conn, error) {
	m, err := Open(base, id)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	if !m.Running() {
		return nil, fmt.Errorf("machine %s: %w", id, kiterr.ErrNotRunning)
	}
	return m.Dial(ctx)
}

// NetNS opens the network namespace of machine id of base.
func NetNS(base, id string) (*os.File, error) {
	m, err := Open(base, id)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	p, err := m.Process()
	if err != nil {
		return nil, err
	}
	defer p.Close()
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", p.PID))
	// A process on its way out gives up its namespaces before it has ended.
	if err == nil && p.Ended() || errors.Is(err, fs.ErrNotExist) {
		ns.Close() // perhaps a later process's; or nil
		err = fmt.Errorf("machine %s: %w", id, kiterr.ErrNotRunning)
	}
	if err != nil {
		return nil, fmt.Errorf("opening the network namespace: %w", err)
	}
	return ns, nil
}
