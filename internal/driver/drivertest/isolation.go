package drivertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/kitbox-dev/kitbox/internal/guest/client"
)

// isolationChecks judge what a machine may not do, however its processes try.
var isolationChecks = []check{
	{"commands run with the system call filter and without new privileges", func(x *trial) error {
		cl, err := x.up(x.machine())
		if err != nil {
			return err
		}
		return errors.Join(
			x.want(cl, "grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status", "NoNewPrivs:\t1\nSeccomp:\t2"),
			x.want(cl, "cat /proc/1/task/*/status | grep -E '^(NoNewPrivs|Seccomp):' | sort -u", "NoNewPrivs:\t1\nSeccomp:\t2"),
		)
	}},
	{"the filter forbids what it is known for", func(x *trial) error {
		cl, err := x.up(x.machine())
		if err != nil {
			return err
		}
		return errors.Join(
			x.fails(cl, "unshare -U true"),
			x.fails(cl, "unshare -m true"),
			x.fails(cl, "mount -t tmpfs none /mnt"),
			x.fails(cl, "umount /proc/sys"),
			x.fails(cl, "nsenter -t 1 -m true"),
			x.fails(cl, "swapoff -a /dev/null"),
			x.fails(cl, "dmesg -n 1"),
			x.fails(cl, "hostname other"),
			x.fails(cl, "date -s 2020-01-01 2>/dev/null; test $(date +%Y) = 2020"),
			x.want(cl, "hostname", "box"),
		)
	}},
	{"capabilities are bounded by the default set", func(x *trial) error {
		cl, err := x.up(x.machine())
		if err != nil {
			return err
		}
		return errors.Join(
			x.want(cl, "grep ^Cap /proc/self/status", caps("00000000a80425fb", "00000000a80425fb")),
			x.want(cl, "cat /proc/1/task/*/status | grep ^CapBnd | sort -u", "CapBnd:\t00000000a80425fb"),
		)
	}},
	{"capabilities are bounded by the plan's set", func(x *trial) error {
		m := x.machine()
		m.Capabilities = []string{"CAP_NET_BIND_SERVICE", "CAP_CHOWN"}
		cl, err := x.up(m)
		if err != nil {
			return err
		}
		// The guest still starts commands as anybody.
		out, code, err := x.as(cl, 1000, "id -u; grep ^CapEff /proc/self/status")
		if err != nil || code != 0 || out != "1000\nCapEff:\t0000000000000000" {
			return fmt.Errorf("as a user: %d, %q, %v", code, out, err)
		}
		return x.want(cl, "grep ^Cap /proc/self/status", caps("0000000000000401", "0000000000000401"))
	}},
	{"commands inherit no descriptor but their streams", func(x *trial) error {
		// One that this process forgot to close on exec, before the boot.
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		defer r.Close()
		defer w.Close()
		if err := leak(r); err != nil {
			return err
		}
		cl, err := x.up(x.machine())
		if err != nil {
			return err
		}
		return errors.Join(
			x.want(cl, "exec ls /proc/self/fd", "0\n1\n2\n3"), // 3 is the directory
			x.fails(cl, "readlink /proc/1/fd/*"),
			x.fails(cl, "cat /proc/1/fd/3"),
		)
	}},
	{"processes of the host are invisible", func(x *trial) error {
		ctx, cancel := context.WithCancel(x.ctx)
		defer cancel()
		const canary = "98765.4321"
		cmd := exec.CommandContext(ctx, "sleep", canary)
		if err := cmd.Start(); err != nil {
			return err
		}
		defer cmd.Wait()
		defer cancel()
		cl, err := x.up(x.machine())
		if err != nil {
			return err
		}
		return errors.Join(
			x.fails(cl, "grep -l '[9]8765[.]4321' /proc/[0-9]*/cmdline"), // its own command line does not match
			x.want(cl, "ls -d /proc/[0-9]* | head -1", "/proc/1"),
			x.fails(cl, fmt.Sprintf("grep '[9]8765[.]4321' /proc/%d/cmdline", cmd.Process.Pid)),
		)
	}},
	{"files of the host are out of reach", func(x *trial) error {
		canary := x.scratch + "/canary"
		if err := os.WriteFile(canary, []byte("canary"), 0o666); err != nil {
			return err
		}
		cl, err := x.up(x.machine())
		if err != nil {
			return err
		}
		return errors.Join(
			x.fails(cl, "cat "+canary),
			x.fails(cl, "cat /proc/1/root"+canary),
			x.fails(cl, "cat /../../../.."+canary),
			x.fails(cl, "cat /proc/1/cwd/../../.."+canary),
			x.fails(cl, "mkdir /c && chroot /c /bin/true"),
			x.fails(cl, "grep -v -e ' /proc' -e ' /sys' -e ' /dev' -e ' / ' /proc/self/mounts"),
		)
	}},
	{"root of the machine is not root of the host", func(x *trial) error {
		if x.s.Machine.IDMap.IsIdentity() {
			return errSkip // the user namespace around this one shifts the ids
		}
		m := x.machine()
		return x.shows(m, "awk '{print ($2 > 0), $3}' /proc/self/uid_map", fmt.Sprint("1 ", m.IDMap.Size))
	}},
	{"the guest survives every signal from inside", func(x *trial) error {
		cl, err := x.up(x.machine())
		if err != nil {
			return err
		}
		before, err := cl.Info(x.ctx)
		if err != nil {
			return err
		}
		if _, _, err := x.sh(cl, "for s in $(seq 64); do kill -$s 1; done; kill -9 1; kill -STOP 1"); err != nil {
			return err
		}
		after, err := cl.Info(x.ctx)
		if err == nil && after.Boot != before.Boot {
			err = errors.New("another guest answers")
		}
		return err
	}},
	{"the guest cannot be looked into", func(x *trial) error {
		cl, err := x.up(x.machine())
		if err != nil {
			return err
		}
		return errors.Join(
			x.fails(cl, "cat /proc/1/exe >/dev/null"),
			x.fails(cl, "readlink /proc/1/exe"),
			x.fails(cl, "head -c 1 /proc/1/mem"),
			x.fails(cl, "cat /proc/1/maps | grep ."),
			x.fails(cl, "cat /proc/1/environ | grep -a ."),
		)
	}},
	{"kernel interfaces are masked or read-only", func(x *trial) error {
		cl, err := x.up(x.machine())
		if err != nil {
			return err
		}
		return errors.Join(
			x.fails(cl, "test -e /proc/kcore && head -c 1 /proc/kcore | grep -q ."),
			x.fails(cl, "cat /proc/keys /proc/timer_list 2>/dev/null | grep ."),
			x.fails(cl, "ls /sys/firmware | grep ."),
			x.fails(cl, "echo 0 2>/dev/null >/proc/sys/kernel/hostname"),
			x.fails(cl, "echo b 2>/dev/null >/proc/sysrq-trigger"),
			x.fails(cl, "touch /proc/sys/kernel/core_pattern"),
			x.fails(cl, "mkdir /sys/fs/cgroup/x"),
		)
	}},
	{"no device but the usual ones can be opened or made", func(x *trial) error {
		cl, err := x.up(x.machine())
		if err != nil {
			return err
		}
		return errors.Join(
			x.fails(cl, "find /dev -type b | grep ."),
			x.want(cl, "find /dev -type c ! -path '/dev/pts/*' ! -name console | sort | tr '\\n' ' '", "/dev/full /dev/null /dev/random /dev/tty /dev/urandom /dev/zero"),
			x.fails(cl, "mknod /tmp/kmem c 1 2 && cat /tmp/kmem"),
			x.fails(cl, "mknod /dev/sda b 8 0 && head -c 1 /dev/sda"),
		)
	}},
	{"the machine sees itself as the root of control groups", func(x *trial) error {
		cl, err := x.up(x.machine())
		if err != nil {
			return err
		}
		return x.fails(cl, "cut -d: -f3- /proc/self/cgroup | grep -v '^/$'")
	}},
	{"a lost connection leaves no process of its command", func(x *trial) error {
		m := x.machine()
		cl, err := x.up(m)
		if err != nil {
			return err
		}
		marker := "marker-" + m.ID
		ctx, cancel := context.WithCancel(x.ctx)
		defer cancel()
		_, err = cl.Exec(ctx, client.ExecRequest{Argv: []string{"sh", "-c", "trap '' TERM HUP; setsid sleep 1000 & while :; do sleep 1; done # " + marker}, Env: environment},
			client.Stdio{Started: func(int) { cancel() }})
		if err := is("Exec", err, context.Canceled); err != nil {
			return err
		}
		if err := x.eventually(func() error {
			info, err := cl.Info(x.ctx)
			if err == nil && info.Processes != 1 {
				err = fmt.Errorf("%d processes", info.Processes)
			}
			return err
		}); err != nil {
			return err
		}
		if pids := hostPIDs(marker); len(pids) > 0 {
			return fmt.Errorf("processes %v live", pids)
		}
		return nil
	}},
	{"ended orphans are reaped", func(x *trial) error {
		cl, err := x.up(x.machine())
		if err != nil {
			return err
		}
		if err := x.want(cl, "for i in 1 2 3 4 5; do (sh -c 'exit 3' & ) ; done; (setsid sh -c 'exit 4' &)", ""); err != nil {
			return err
		}
		return x.eventually(func() error {
			return x.fails(cl, "grep -l '^State:.*Z' /proc/[0-9]*/status")
		})
	}},
	{"a terminal is the machine's own", func(x *trial) error {
		cl, err := x.up(x.machine())
		if err != nil {
			return err
		}
		var out strings.Builder
		exit, err := cl.Exec(x.ctx, client.ExecRequest{
			Argv: []string{"sh", "-c", "tty; ls $(tty); stty size; test -t 0 && test -t 1 && test -t 2; echo $?"},
			Env:  environment, UID: 1000, GID: 1000, TTY: true,
		}, client.Stdio{Stdout: &out})
		got := strings.ReplaceAll(out.String(), "\r", "")
		if err != nil || exit.Code != 0 || got != "/dev/pts/0\n/dev/pts/0\n24 80\n0\n" {
			return fmt.Errorf("%+v, %v, %q", exit, err, got)
		}
		return nil
	}},
}

// caps is the part of /proc/self/status about capabilities for root.
func caps(effective, bounding string) string {
	const none = "0000000000000000"
	return fmt.Sprintf("CapInh:\t%s\nCapPrm:\t%s\nCapEff:\t%s\nCapBnd:\t%s\nCapAmb:\t%s", none, effective, effective, bounding, none)
}
