// Package driver is the contract of the programs that build machines from a
// plan. A driver has never heard of Kits: what it is given is
// [plan.Machine], and what it gives back is a guest that answers on a stream.
//
// Implementations are in the packages below; package drivertest judges them
// all by the sentences of this file.
package driver

import (
	"context"
	"net"
	"os"
	"time"

	"fmt"

	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// A Driver runs machines on one kind of backend. Its methods can be called
// concurrently, for the same machine or different ones, and by several
// processes that share its directory.
type Driver interface {
	// Create records machine m and what it needs on disk, and leaves it
	// stopped. It returns once the machine survives the end of this process.
	// On error nothing is left behind, even if ctx is done. An id that is
	// taken is [kiterr.ErrExists].
	Create(ctx context.Context, m plan.Machine) error

	// Start boots the machine and returns when its guest answers; nothing
	// but the guest runs in it then. The machine outlives the calling
	// process. Its only network interface is loopback. Starting a running
	// machine changes nothing of it; covers of its mounts are kept up from
	// then on by the calling process. On error nothing of the boot is left.
	Start(ctx context.Context, id string) error

	// Dial opens a new stream to the guest of a running machine; the guest
	// protocol is spoken on it. A machine that does not run is
	// [kiterr.ErrNotRunning].
	Dial(ctx context.Context, id string) (net.Conn, error)

	// Stop asks the guest to end its processes, waits up to grace for them,
	// kills what is left, and returns once no process of the machine exists
	// and no mount of it is left. The writable layer stays. Stopping a
	// stopped machine does nothing.
	Stop(ctx context.Context, id string, grace time.Duration) error

	// Remove stops the machine if need be and deletes all it stored,
	// whatever state a killed process left it in. An unknown id is
	// [kiterr.ErrNotFound].
	Remove(ctx context.Context, id string) error

	// List returns every machine of this driver's directory, by id. It never
	// waits for a machine: one that does not answer is reported as it is.
	List(ctx context.Context) ([]Machine, error)
}

// A Machine is what a driver knows of one of its machines.
type Machine struct {
	ID      string
	Running bool
	PID     int // host pid of the guest; 0 when not running or not a process

	// Unenforced names each limit that was asked for and does not hold here,
	// with the reason, e.g. "pids: no cgroup controller is delegated".
	Unenforced []string
}

// A Judge can say beforehand whether it would refuse a machine. Use [Fit].
type Judge interface {
	Fit(m plan.Machine) error
}

// Fit returns the error with which d would refuse to create m on this system, and
// changes nothing. A driver that does not judge beforehand has no objection.
func Fit(d Driver, m plan.Machine) error {
	if j, ok := d.(Judge); ok {
		return j.Fit(m)
	}
	return nil
}

// A Chooser is several drivers, which machines name. Use [Known].
type Chooser interface {
	Known(name string) error
}

// Known returns the error with which d would refuse a machine because of the driver
// that it names. A driver that stands for itself has no objection.
func Known(d Driver, name string) error {
	if c, ok := d.(Chooser); ok {
		return c.Known(name)
	}
	return nil
}

// A Networked driver can hand out the network namespace of a running machine,
// so that the boundary can put its interface there. Use [NetNS].
type Networked interface {
	NetNS(ctx context.Context, id string) (*os.File, error)
}

// NetNS opens the network namespace of machine id; the caller closes it. A
// driver without one answers [kiterr.ErrUnsupported].
func NetNS(ctx context.Context, d Driver, id string) (*os.File, error) {
	n, ok := d.(Networked)
	if !ok {
		return nil, fmt.Errorf("network namespace with %T: %w", d, kiterr.ErrUnsupported)
	}
	return n.NetNS(ctx, id)
}

// A Waiter can wait for the end of a machine. Use [Wait].
type Waiter interface {
	Wait(ctx context.Context, id string) error
}

// Wait returns nil once machine id does not run any more, or ctx's error. A
// driver that cannot wait answers [kiterr.ErrUnsupported].
func Wait(ctx context.Context, d Driver, id string) error {
	w, ok := d.(Waiter)
	if !ok {
		return fmt.Errorf("waiting with %T: %w", d, kiterr.ErrUnsupported)
	}
	return w.Wait(ctx, id)
}
