package main

import (
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A thread has a mount namespace of its own, without the unified cgroup tree
// that this crun does not want to see beside others. Nothing is mounted where
// anybody else would see it, and crun pays for no extra process.
type thread struct{ work chan func() }

func newThread() (*thread, error) {
	th := &thread{make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			_ = unix.Unmount("/sys/fs/cgroup/unified", unix.MNT_DETACH) // not everywhere
		}
		ready <- err
		for f := range th.work {
			f()
		}
	}()
	if err := <-ready; err != nil {
		close(th.work)
		return nil, err
	}
	return th, nil
}

func (th *thread) close() { close(th.work) }

func (th *thread) do(f func() error) error {
	done := make(chan error)
	th.work <- func() { done <- f() }
	return <-done
}

// run starts cmd from the thread, in whose namespace it then is.
func (th *thread) run(cmd *exec.Cmd) error { return th.do(cmd.Run) }

// mount lays layers, lowest first, over each other at the bundle's rootfs.
func (th *thread) mount(layers []string, bundle string) error {
	return th.do(func() error {
		lower := slices.Clone(layers)
		slices.Reverse(lower)
		opts := "lowerdir=" + strings.Join(lower, ":") + ",upperdir=" + filepath.Join(bundle, "upper") + ",workdir=" + filepath.Join(bundle, "work")
		return unix.Mount("overlay", filepath.Join(bundle, "rootfs"), "overlay", 0, opts)
	})
}

func (th *thread) unmount(dir string) {
	_ = th.do(func() error { return unix.Unmount(dir, unix.MNT_DETACH) })
}
