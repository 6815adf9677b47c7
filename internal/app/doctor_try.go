package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/boundary/control"
	"github.com/kitbox-dev/kitbox/internal/driver/namespace/rootless"
	"github.com/kitbox-dev/kitbox/internal/ownthread"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/programs"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// What is tried where sandboxes are made: by root at once, and by an ordinary user in a
// user namespace as sandboxes get one.
type trials struct {
	Overlay  string `json:"overlay"` // the error; empty: it works
	Boundary string `json:"boundary"`
	IDs      int    `json:"ids"` // how many users there are
}

// examine is the argument that has this program print its trials, from inside the
// namespace that the next argument names the directory of.
const examine = "__examine"

// examineTime bounds the trials of the other process.
const examineTime = 30 * time.Second

// examineMain enters the namespace, unless it is there, and prints what works.
func examineMain(dir string) int {
	if !rootless.Inside() {
		exe, err := os.Executable()
		if err == nil {
			e := rootless.Entry{Dir: dir, GuestPath: programs.Find(programs.Dirs(), "kit-guest")}
			err = e.Enter([]string{exe, examine, dir})
		}
		fmt.Fprintln(os.Stderr, err)
		return kiterr.StatusFailed
	}
	ctx, cancel := context.WithTimeout(context.Background(), examineTime)
	defer cancel()
	t := tried(ctx)
	if err := json.NewEncoder(os.Stdout).Encode(t); err != nil {
		return kiterr.StatusFailed
	}
	return kiterr.StatusOK
}

// tried tries what root of any user namespace can.
func tried(ctx context.Context) (t trials) {
	t.Overlay, t.Boundary = said(tryOverlay()), said(tryBoundary(ctx))
	b, err := os.ReadFile("/proc/self/uid_map")
	for line := range strings.Lines(string(b)) {
		var inside, outside, n int
		if _, serr := fmt.Sscan(line, &inside, &outside, &n); err == nil && serr == nil {
			t.IDs += n
		}
	}
	return t
}

func said(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// try is what works for whoever runs this. engine is the path of this program, and not
// whatever runs: a test would start itself without end.
func try(ctx context.Context, engine string) (trials, error) {
	if rootless.Inside() {
		return tried(ctx), nil
	}
	if engine == "" {
		return trials{}, errors.New("kit-engine, which would try it, is missing")
	}
	// Not the home: to look at a machine makes nothing.
	dir, err := os.MkdirTemp("", "kitbox-doctor-")
	if err != nil {
		return trials{}, err
	}
	defer os.RemoveAll(dir)
	return tryInside(ctx, examineTime, exec.Command(engine, examine, dir))
}

// within runs c, and after bound ends it with all that it started.
func within(ctx context.Context, bound time.Duration, c *exec.Cmd) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	if c.SysProcAttr == nil {
		c.SysProcAttr = &syscall.SysProcAttr{}
	}
	c.SysProcAttr.Setpgid = true
	c.WaitDelay = time.Second // for what left the group and holds our pipes
	if err := c.Start(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = unix.Kill(-c.Process.Pid, unix.SIGKILL) })
	defer stop()
	err := c.Wait()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%s did not end within %v", c.Path, bound)
	}
	return err
}

// maxSaid is how much of what another program says is passed on.
const maxSaid = 300

// tryInside reads what c, this program in another place, prints.
func tryInside(ctx context.Context, bound time.Duration, c *exec.Cmd) (t trials, err error) {
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := within(ctx, bound, c); err != nil {
		text := strings.TrimSpace(errs.String())
		if len(text) > maxSaid {
			text = strings.ToValidUTF8(text[:maxSaid], "") + "…"
		}
		if text != "" && errors.As(err, new(*exec.ExitError)) {
			err = errors.New(strings.TrimSuffix(text, ": "+kiterr.ErrUnavailable.Error()))
		}
		return t, err
	}
	d := json.NewDecoder(&out)
	d.DisallowUnknownFields()
	if err = d.Decode(&t); errors.Is(err, io.EOF) {
		err = errors.New("the program that was to ended without a word")
	}
	return t, err
}

// tryOverlay mounts one where nobody sees it. A module that is needed is loaded by that,
// so that a list of what the kernel has would say too little.
func tryOverlay() error {
	dir, err := os.MkdirTemp("", "kitbox-doctor-")
	if err != nil {
		return err
	}
	defer os.Remove(dir)
	return ownthread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return os.NewSyscallError("mount", err)
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
			return fmt.Errorf("mounting a tmpfs: %w", err)
		}
		for _, d := range []string{"one", "two", "root"} {
			if err := os.Mkdir(dir+"/"+d, 0o700); err != nil {
				return err
			}
		}
		err := unix.Mount("overlay", dir+"/root", "overlay", unix.MS_RDONLY, "lowerdir="+dir+"/one:"+dir+"/two")
		switch err {
		case nil:
			return nil
		case unix.ENODEV:
			return errors.New("the kernel has none, and no module of it can be loaded")
		case unix.EPERM:
			return fmt.Errorf("%w: not in a user namespace on this kernel", err)
		}
		return err
	})
}

// tryBoundary puts a boundary around a network namespace that is made for it.
func tryBoundary(ctx context.Context) error {
	return ownthread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		ns, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			return err
		}
		defer ns.Close()
		b, err := control.Start(ctx, control.Config{Sandbox: "doctor", GuestNetNS: ns, Phase: plan.Runtime})
		if err != nil {
			return err
		}
		return b.Close()
	})
}
