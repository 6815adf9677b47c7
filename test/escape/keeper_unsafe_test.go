package escape

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/keeper/link"
)

// keepers are attempts on the processes and files that the sandbox depends on.
func keepers() []attempt {
	// In the strong sandbox root may look into whatever is inside, the guest
	// too; there is nothing of the host's in it, which others below look for.
	into := func(name, tries string, f func(w *world, pid int) error) []attempt {
		attack, control := child(f)
		return []attempt{{name: name, tries: tries, in: plain, at: host, attack: attack, control: control}}
	}
	var list []attempt
	list = append(list, into("ptrace", "stopping the guest and looking into it", func(_ *world, pid int) error {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := unix.PtraceAttach(pid); err != nil {
			return err
		}
		var status unix.WaitStatus
		if _, err := unix.Wait4(pid, &status, unix.WALL, nil); err != nil {
			return broken(err)
		}
		return unix.PtraceDetach(pid)
	})...)
	list = append(list, into("vm-read", "reading the guest's memory", func(_ *world, pid int) error {
		at, err := firstMapping(pid)
		if err != nil {
			at = uintptr(unsafe.Pointer(&zeros[0])) // the map is not shown; the call has its own judge
		}
		var b [8]byte
		local := []unix.Iovec{{Base: &b[0], Len: 8}}
		_, err = unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: at, Len: 8}}, 0)
		if errors.Is(err, unix.EFAULT) {
			return nil // it was let in
		}
		return err
	})...)
	list = append(list, into("proc-files", "the guest's files below /proc", func(_ *world, pid int) error {
		var errs []error
		for _, f := range []string{"mem", "environ", "maps", "auxv", "io", "syscall", "stack"} {
			path := fmt.Sprintf("/proc/%d/%s", pid, f)
			fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err == nil {
				var b [64]byte
				var n int
				if n, err = unix.Read(fd, b[:]); err == nil && n == 0 {
					err = errors.New("it is empty")
				}
				unix.Close(fd)
			}
			errs = append(errs, err)
		}
		return anyOf(errs...)
	})...)
	list = append(list, into("proc-links", "where the guest's links below /proc lead", func(_ *world, pid int) error {
		var errs []error
		for _, f := range []string{"exe", "cwd", "root", "fd/0", "fd/4", "ns/net"} {
			_, err := os.Readlink(fmt.Sprintf("/proc/%d/%s", pid, f))
			errs = append(errs, err)
		}
		return anyOf(errs...)
	})...)
	list = append(list, into("steal-descriptor", "taking a descriptor of the guest's", func(_ *world, pid int) error {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		var errs []error
		for n := range 10 {
			got, err := unix.PidfdGetfd(fd, n, 0)
			if err == nil {
				unix.Close(got)
			}
			errs = append(errs, err)
		}
		return anyOf(errs...)
	})...)
	files := func(name, tries string, paths func(w *world) []string) attempt {
		return attempt{name: name, tries: tries, in: strong, at: host, attack: func(w *world) error {
			var errs []error
			for _, p := range paths(w) {
				for _, prefix := range []string{"", "/proc/self/root", "/proc/1/root", "/proc/1/cwd", "/proc/self/cwd/../../../../..", "/home/agent/../../.."} {
					_, err := os.Stat(prefix + p)
					if err == nil {
						fd, e := unix.Open(prefix+p, unix.O_PATH|unix.O_CLOEXEC, 0)
						if e == nil {
							unix.Close(fd)
						}
						err = e
					}
					errs = append(errs, err)
				}
			}
			return anyOf(errs...)
		}}
	}
	return append(list,
		attempt{name: "out-by-the-guest", tries: "the host's files by every directory that the guest has open", in: strong, at: host,
			attack: func(w *world) error { return outBy(w, 1) }, control: func(w *world) error { return outBy(w, os.Getppid()) }},
		attempt{name: "change-the-guest", tries: "a change of the guest's program, which the host runs for the next sandbox", in: strong, at: host,
			attack:  func(*world) error { return unix.Chmod("/proc/1/exe", 0o755) },
			control: func(*world) error { return unix.Chmod("/proc/self/exe", 0o755) }},
		attempt{name: "see-the-keeper", tries: "the keeper among the processes", in: strong, at: host, attack: func(w *world) error {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", w.Keeper))
			if err != nil {
				return err
			}
			if !strings.Contains(string(b), link.ProcessName) {
				return fmt.Errorf("process %d is %q", w.Keeper, b)
			}
			return nil
		}},
		attempt{name: "signal-the-keeper", tries: "a signal to the keeper by its number", in: strong, at: host, attack: func(w *world) error { return unix.Kill(w.Keeper, 0) }},
		attempt{name: "keeper-memory", tries: "the keeper's memory by its number", in: strong, at: host, attack: func(w *world) error {
			return opened(fmt.Sprintf("/proc/%d/mem", w.Keeper), unix.O_RDONLY)
		}},
		attempt{name: "foreign-namespaces", tries: "a process whose network namespace is another one", in: strong, at: host, attack: func(w *world) error {
			own, err := os.Readlink("/proc/self/ns/net")
			if err != nil {
				return broken(err)
			}
			procs, _ := filepath.Glob("/proc/[0-9]*/ns/net")
			for _, p := range procs {
				if other, err := os.Readlink(p); err == nil && other != own {
					return nil
				}
			}
			return fmt.Errorf("all of %d processes that show it are in %s", len(procs), own)
		}},
		files("keeper-socket", "the keeper's socket", func(w *world) []string { return []string{filepath.Join(w.Home, "sandboxes/plain/keeper.sock")} }),
		files("guest-socket", "the guest's socket", func(w *world) []string { return []string{w.Guest} }),
		files("state", "kitbox's state", func(w *world) []string {
			return []string{w.Home, filepath.Join(w.Home, "sandboxes/plain/plan.json"), filepath.Join(w.Home, "authority/authority.pem")}
		}),
		files("neighbours-files", "another sandbox's files", func(w *world) []string {
			m, _ := filepath.Glob(filepath.Join(w.Home, "machines/*/upper"))
			return append(m, filepath.Join(w.Home, "sandboxes/neighbour"))
		}),
		files("canary", "a file of the host that everybody there can read", func(w *world) []string { return []string{w.Canary} }),
		attempt{name: "socket-by-its-name", tries: "the guest's socket, as the kernel lists it", in: plain, at: plain,
			attack: func(*world) error { return findSocket("guest.sock") },
			control: func(*world) error {
				end, err := listenUnix("/tmp/control.sock")
				if err != nil {
					return broken(err)
				}
				defer end()
				return findSocket("control.sock")
			}},
		attempt{name: "descriptors", tries: "descriptors that were left open for it", in: plain, at: host,
			attack: func(*world) error { return inherited() },
			control: func(*world) error {
				f, err := os.Open("/etc")
				if err != nil {
					return broken(err)
				}
				defer f.Close()
				return inherited()
			}},
	)
}

// inherited returns nil when this process has a descriptor that leads anywhere,
// besides the three that everybody has.
func inherited() error {
	dir, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return broken(err)
	}
	var all []string
	for _, d := range dir {
		to, err := os.Readlink("/proc/self/fd/" + d.Name())
		if err != nil || d.Name() < "3" && len(d.Name()) == 1 || strings.HasPrefix(to, "anon_inode:") || strings.HasPrefix(to, "/proc/") {
			continue
		}
		all = append(all, to)
	}
	if len(all) > 0 {
		return nil
	}
	return errors.New("there is none")
}

func firstMapping(pid int) (uintptr, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, err
	}
	var at uintptr
	_, err = fmt.Sscanf(string(b), "%x-", &at)
	return at, err
}

// outBy returns nil when the host's canary can be read from a directory that a
// process has open.
func outBy(w *world, pid int) error {
	from := []string{"cwd", "root"}
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range fds {
		from = append(from, "fd/"+filepath.Base(fd))
	}
	var errs []error
	for _, f := range from {
		for _, up := range []string{"", "/../../../../../../../../.."} {
			errs = append(errs, opened(fmt.Sprintf("/proc/%d/%s%s%s", pid, f, up, w.Canary), unix.O_RDONLY))
		}
	}
	return anyOf(errs...)
}
