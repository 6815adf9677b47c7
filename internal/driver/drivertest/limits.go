package drivertest

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// unheld reports whether the driver says that limit does not hold for id. A
// driver that says so is honest, and has nothing to prove.
func (x *trial) unheld(id, limit string) (bool, error) {
	m, ok, err := x.find(id)
	if err != nil || !ok {
		return false, fmt.Errorf("List: %v, %v", ok, err)
	}
	for _, u := range m.Unenforced {
		if strings.HasPrefix(u, limit+":") {
			return true, nil
		}
	}
	return false, nil
}

// limitChecks judge limits: each holds, or is named as one that does not.
var limitChecks = []check{
	{"a memory limit ends what exceeds it, or is reported", func(x *trial) error {
		m := x.machine()
		m.Limits.MemoryBytes = 64 << 20
		cl, err := x.up(m)
		if err != nil {
			return err
		}
		if u, err := x.unheld(m.ID, "memory"); u || err != nil {
			return err
		}
		// tail keeps one endless line in memory.
		out, code, err := x.sh(cl, "head -c 200000000 /dev/zero | tail -n 1 | wc -c; echo $?")
		if err != nil {
			return err
		}
		if strings.HasPrefix(out, "200000000") {
			return fmt.Errorf("200 MB fitted into 64 MiB: %d %q", code, out)
		}
		return x.want(cl, "hostname", "box")
	}},
	{"a process limit holds, or is reported", func(x *trial) error {
		m := x.machine()
		m.Limits.Pids = 64
		cl, err := x.up(m)
		if err != nil {
			return err
		}
		if u, err := x.unheld(m.ID, "pids"); u || err != nil {
			return err
		}
		out, _, err := x.sh(cl, "for i in $(seq 100); do sleep 5 & done 2>/dev/null; ls -d /proc/[0-9]* | wc -l")
		if err != nil {
			return err
		}
		var n int
		_, _ = fmt.Sscan(out, &n)
		if n > 64 {
			return fmt.Errorf("%d processes", n)
		}
		return nil
	}},
	{"a processor limit holds, or is reported", func(x *trial) error {
		m := x.machine()
		m.Limits.CPUMillis = 100
		cl, err := x.up(m)
		if err != nil {
			return err
		}
		if u, err := x.unheld(m.ID, "cpu"); u || err != nil {
			return err
		}
		// On a busy system a command gets little work done for other reasons,
		// so what the kernel was told counts where it can be seen.
		if got, _, err := x.find(m.ID); err != nil {
			return err
		} else if quota, ok := quotaOf(got.PID); ok && quota != "10000" {
			return fmt.Errorf("the kernel allows %s of 100000 microseconds, want 10000", quota)
		}
		out, _, err := x.sh(cl, `sh -c 'while :; do :; done' & p=$!; sleep 2; cat /proc/$p/stat | cut -d' ' -f14,15; kill -9 $p`)
		if err != nil {
			return err
		}
		var user, system int
		_, _ = fmt.Sscan(out, &user, &system)
		if user+system == 0 || user+system > 60 { // of 200 ticks; 20 are allowed
			return fmt.Errorf("%d ticks of work in two seconds of a tenth of a processor", user+system)
		}
		return nil
	}},
	{"a limit that must hold and cannot is refused", func(x *trial) error {
		m := x.machine()
		m.Limits = plan.Limits{MemoryBytes: 64 << 20, Pids: 64, CPUMillis: 500, DiskBytes: 64 << 20}
		if err := x.d.Create(x.ctx, m); err != nil {
			return err
		}
		if err := x.d.Start(x.ctx, m.ID); err != nil {
			return err
		}
		got, _, err := x.find(m.ID)
		if err != nil {
			return err
		}
		n := x.machine()
		n.Limits = m.Limits
		n.Limits.Enforce = true
		err = x.d.Create(x.ctx, n)
		if err == nil {
			err = x.d.Start(x.ctx, n.ID)
		}
		if len(got.Unenforced) == 0 {
			return err
		}
		if err == nil {
			return fmt.Errorf("%q do not hold, and yet the machine started", got.Unenforced)
		}
		return errors.Join(is("enforced", err, kiterr.ErrRefused), is("enforced", err, kiterr.ErrUnsupported))
	}},
}

// quotaOf reads the processor quota of a process's control group, in
// microseconds of the usual period.
func quotaOf(pid int) (string, bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return "", false
	}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		for _, file := range []string{
			"/sys/fs/cgroup/" + f[1] + f[2] + "/cpu.cfs_quota_us",
			"/sys/fs/cgroup" + f[2] + "/cpu.max",
		} {
			if b, err := os.ReadFile(file); err == nil {
				return strings.Fields(string(b))[0], true
			}
		}
	}
	return "", false
}
