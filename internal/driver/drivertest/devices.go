package drivertest

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/plan"
)

// full is the number of /dev/full, which stands in for devices that not every host
// has: it reads as zeros and is full when it is written to, so that a refusal by it
// differs from a refusal by permissions.
var full = unix.Mkdev(1, 7)

// privateNode returns a node that only root of the host may open, where one can be made.
func (x *trial) privateNode() string {
	p := x.scratch + "/node"
	if unix.Mknod(p, unix.S_IFCHR|0o600, int(full)) != nil {
		return "/dev/full"
	}
	return p
}

// deviceChecks judge devices beside the usual ones.
var deviceChecks = []check{
	{"a device of the plan is there for everybody, and no other is", func(x *trial) error {
		m := x.machine()
		m.Devices = []plan.Device{{Source: x.privateNode(), Path: "/dev/accel/card0"}}
		cl, err := x.up(m)
		if err != nil {
			return err
		}
		const list = "find /dev -type c ! -path '/dev/pts/*' ! -name console | sort | tr '\\n' ' '"
		const use = "head -c 3 /dev/accel/card0 | wc -c; echo x 2>&1 >/dev/accel/card0 | grep -o 'No space left on device'"
		err = errors.Join(
			x.want(cl, list, "/dev/accel/card0 /dev/full /dev/null /dev/random /dev/tty /dev/urandom /dev/zero"),
			x.want(cl, use, "3\nNo space left on device"),
		)
		if x.s.Machine.IDMap.Size != 1 {
			out, _, uerr := x.as(cl, 1000, use)
			if uerr == nil && out != "3\nNo space left on device" {
				uerr = fmt.Errorf("a user got %q", out)
			}
			err = errors.Join(err, uerr)
		}
		if err != nil {
			return err
		}
		// It comes back with the machine.
		if err := x.d.Stop(x.ctx, m.ID, 0); err != nil {
			return err
		}
		if err := x.d.Start(x.ctx, m.ID); err != nil {
			return err
		}
		return x.want(cl, use, "3\nNo space left on device")
	}},
	{"a device cannot be changed, nor written to if it is to be read", func(x *trial) error {
		m := x.machine()
		m.Devices = []plan.Device{{Source: x.privateNode(), Path: "/dev/card0"}, {Source: x.privateNode(), Path: "/dev/card1", ReadOnly: true}}
		m.Capabilities = []string{"CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_CHOWN", "CAP_MKNOD"}
		cl, err := x.up(m)
		if err != nil {
			return err
		}
		err = errors.Join(
			x.fails(cl, "chmod 0600 /dev/card0"),
			x.fails(cl, "chown 7 /dev/card0"),
			x.fails(cl, "rm -f /dev/card0"),
			x.fails(cl, "mount -o remount,bind,rw /dev/card0 && chmod 0600 /dev/card0"),
			x.want(cl, "head -c 3 /dev/card1 | wc -c", "3"),
		)
		if err != nil {
			return err
		}
		got, _, err := x.find(m.ID)
		if err != nil || strings.Contains(strings.Join(got.Unenforced, "\n"), "device /dev/card1:") {
			return err // the driver says so
		}
		return x.want(cl, "echo x 2>&1 >/dev/card1 | grep -o 'Permission denied\\|No space.*\\|Operation not permitted' | sed 's/Operation not permitted/Permission denied/'", "Permission denied")
	}},
	{"a device that is gone refuses the start, or is reported if it is optional", func(x *trial) error {
		m := x.machine()
		m.Devices = []plan.Device{{Source: x.scratch + "/none", Path: "/dev/card0", Optional: true}}
		cl, err := x.up(m)
		if err != nil {
			return err
		}
		got, _, err := x.find(m.ID)
		if err != nil {
			return err
		}
		if !strings.Contains(strings.Join(got.Unenforced, "\n"), "device /dev/card0:") {
			return fmt.Errorf("it is gone, and Unenforced is %q", got.Unenforced)
		}
		if err := x.fails(cl, "test -e /dev/card0"); err != nil {
			return err
		}
		for _, source := range []string{x.scratch + "/none", x.scratch, "/etc/passwd"} {
			n := x.machine()
			n.Devices = []plan.Device{{Source: source, Path: "/dev/card0"}}
			if err := x.d.Create(x.ctx, n); err != nil {
				return err
			}
			if err := x.d.Start(x.ctx, n.ID); err == nil || !strings.Contains(err.Error(), source) {
				return fmt.Errorf("with %s as a device: %v", source, err)
			}
		}
		for _, bad := range []plan.Device{{Source: "/dev/full", Path: "/dev/null"}, {Source: "/dev/full", Path: "/dev/pts/0"}, {Source: "/dev/full", Path: "/etc/card"},
			{Source: "/dev/full", Path: "/dev/../etc/card"}, {Source: "full", Path: "/dev/card"}} {
			n := x.machine()
			n.Devices = []plan.Device{bad}
			if err := x.d.Create(x.ctx, n); err == nil {
				return fmt.Errorf("%+v is taken", bad)
			}
		}
		return nil
	}},
}
