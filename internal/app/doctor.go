package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/driver/cgroup"
	"github.com/kitbox-dev/kitbox/internal/driver/loopfs"
	"github.com/kitbox-dev/kitbox/internal/driver/userns"
	"github.com/kitbox-dev/kitbox/internal/programs"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// doctor implements [sandbox.Doctor] by trying what kitbox does.
type doctor struct{ libexec []string }

// Examine implements [sandbox.Doctor].
func (d doctor) Examine(ctx context.Context) []sandbox.Finding {
	t, err := try(ctx, programs.Find(d.libexec, "kit-engine"))
	fs := []sandbox.Finding{
		kernel(), userNamespaces(ctx, startInNamespaces(programs.Find(d.libexec, "kit-guest"))), overlay(outcome(t.Overlay, err)), cgroups("/sys/fs/cgroup", cgroup.System{}.Check),
		sizes(os.Geteuid() == 0 && userns.Initial(), loopfs.Unusable), boundaryWorks(outcome(t.Boundary, err)),
		d.program("kit-engine", true, "is the whole of kitbox, and keeps each sandbox"),
		d.program("kit-guest", true, "runs inside every sandbox"),
		d.program("kit-builder", false, "builds Kits that are given as directories"),
		tool("mmdebstrap", "makes the platform base: apt-get install mmdebstrap"),
	}
	fs = append(fs, d.hostFindings(ctx)...)
	if os.Geteuid() != 0 {
		fs = append(fs, tool("newuidmap", "lets an ordinary user run sandboxes: sudo apt-get install uidmap"), subids(), ownNamespace(t.IDs, err))
	}
	return fs
}

// outcome is a trial's error, or why nothing could be tried.
func outcome(text string, err error) error {
	if err != nil {
		return fmt.Errorf("not tried: %w", err)
	}
	if text != "" {
		return errors.New(text)
	}
	return nil
}

// kernel asks for idmapped mounts over overlayfs layers, the newest thing that
// the driver needs.
func kernel() sandbox.Finding {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return judgeKernel("of an unknown version: " + err.Error())
	}
	return judgeKernel(unix.ByteSliceToString(u.Release[:]))
}

func judgeKernel(release string) sandbox.Finding {
	f := sandbox.Finding{Name: "kernel", Required: true, Detail: "Linux " + release, Remedy: "kitbox needs Linux 5.19 or later"}
	parts := strings.SplitN(release, ".", 3)
	if len(parts) >= 2 {
		major, err1 := strconv.Atoi(parts[0])
		minor, err2 := strconv.Atoi(strings.TrimRight(parts[1], "abcdefghijklmnopqrstuvwxyz-+"))
		f.OK = err1 == nil && err2 == nil && (major > 5 || major == 5 && minor >= 19)
	}
	return f
}

func userNamespaces(ctx context.Context, try func(context.Context) error) sandbox.Finding {
	f := sandbox.Finding{Name: "user namespaces", Required: true,
		Remedy: "allow them: sysctl user.max_user_namespaces=15000, and on Debian or Ubuntu kernel.unprivileged_userns_clone=1 or kernel.apparmor_restrict_unprivileged_userns=0"}
	if err := try(ctx); err != nil {
		f.Detail = err.Error()
		return f
	}
	f.OK, f.Detail = true, "a process in namespaces of its own was started"
	return f
}

// startInNamespaces starts the guest's program, which ends at once without an input. It
// is never this program: a test of this package would start itself without end.
func startInNamespaces(guest string) func(context.Context) error {
	return func(ctx context.Context) error {
		if guest == "" {
			return errors.New("kit-guest, which would be started, is missing")
		}
		c := exec.Command(guest, "hold")
		c.Env = []string{}
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}}
		return within(ctx, guestTime, c)
	}
}

// guestTime bounds that.
const guestTime = 5 * time.Second

func overlay(trial error) sandbox.Finding {
	f := sandbox.Finding{Name: "overlayfs", Required: true, Remedy: "load it: modprobe overlay; an ordinary user's sandboxes take Linux 5.11 or later for it"}
	if trial != nil {
		f.Detail = trial.Error()
		return f
	}
	f.OK, f.Detail = true, "one was mounted"
	return f
}

// ownNamespace is about the user namespace in which an ordinary user's sandboxes are.
func ownNamespace(ids int, err error) sandbox.Finding {
	f := sandbox.Finding{Name: "rootless", Required: true, Remedy: "have user namespaces, newuidmap and subordinate ids as the lines about them say; or run kitbox as root"}
	switch {
	case err != nil:
		f.Detail = err.Error()
	case ids < wantIDs:
		f.Required, f.Detail = false, fmt.Sprintf("a user namespace has %d users, and images want %d", ids, wantIDs)
	default:
		f.OK, f.Detail = true, fmt.Sprintf("a user namespace with %d users was entered", ids)
	}
	return f
}

// wantIDs is how many users an image can count on.
const wantIDs = 65536

// cgroups are not required: without them limits do not hold, which is said when
// one is asked for.
func cgroups(root string, check func(cgroup.Limits) []string) sandbox.Finding {
	f := sandbox.Finding{Name: "cgroups", Remedy: "without them limits do not hold; an ordinary user has them in a session of systemd with cgroup version 2 that Delegate=cpu memory pids is set for"}
	var st unix.Statfs_t
	if err := unix.Statfs(root, &st); err != nil {
		f.Detail = err.Error()
		return f
	}
	f.Detail = "version 2"
	if st.Type != unix.CGROUP2_SUPER_MAGIC {
		f.Detail = "version 1"
		if _, err := os.Stat(root + "/unified/cgroup.procs"); err == nil {
			f.Detail = "version 1 with 2 beside it"
		}
	}
	// Of some size, as a sandbox would be given them.
	if lacking := check(cgroup.Limits{CPUMillis: 1000, MemoryBytes: 1 << 30, Pids: 1000}); len(lacking) > 0 {
		f.Detail += ", where these cannot be limited: " + strings.Join(lacking, "; ")
		return f
	}
	f.OK = true
	f.Detail += ", with processor, memory and processes"
	return f
}

// sizes are not required: without them the size of a volume is advice, which the
// plan says, and a limit of the disk is refused.
//
// Only the system's root can have them: nothing that is installed helps another user.
func sizes(root bool, unusable func() error) sandbox.Finding {
	f := sandbox.Finding{Name: "volume sizes", Remedy: "without this a volume's size is advice and --disk is refused: "}
	if root {
		f.Remedy += "apt-get install e2fsprogs and modprobe loop"
	} else {
		f.Remedy += "they hold for sandboxes that the system's root makes, and for no others"
	}
	if err := unusable(); err != nil {
		f.Detail = strings.TrimSuffix(err.Error(), ": "+kiterr.ErrUnsupported.Error())
		return f
	}
	f.OK, f.Detail = true, "filesystems in files can be made and mounted"
	return f
}

// boundaryWorks is about the way out of a sandbox, which was tried.
func boundaryWorks(trial error) sandbox.Finding {
	f := sandbox.Finding{Name: "network boundary", Required: true,
		Remedy: "load what is missing: modprobe veth nft_tproxy nft_reject_inet nfnetlink_log"}
	if trial != nil {
		f.Detail = trial.Error()
		return f
	}
	f.OK, f.Detail = true, "one was put up and taken down"
	return f
}

func (d doctor) program(name string, required bool, what string) sandbox.Finding {
	f := sandbox.Finding{Name: name, Required: required, Remedy: "it " + what + "; install it beside kitbox, or set KITBOX_LIBEXEC"}
	if p := programs.Find(d.libexec, name); p != "" {
		f.OK, f.Detail = true, p
		return f
	}
	f.Detail = "not found in " + strings.Join(d.libexec, ", ")
	return f
}

func tool(name, remedy string) sandbox.Finding {
	f := sandbox.Finding{Name: name, Remedy: remedy}
	p, err := exec.LookPath(name)
	if err != nil {
		f.Detail = "not found in PATH"
		return f
	}
	f.OK, f.Detail = true, p
	return f
}

// subids looks for the ranges of ids that an ordinary user's sandboxes need.
func subids() sandbox.Finding {
	name := ""
	if u, err := user.LookupId(strconv.Itoa(os.Getuid())); err == nil {
		name = u.Username
	} else {
		name = os.Getenv("USER")
	}
	var files [2]string
	for i, file := range []string{"/etc/subuid", "/etc/subgid"} {
		if b, err := os.ReadFile(file); err == nil {
			files[i] = string(b)
		}
	}
	return judgeSubids(name, strconv.Itoa(os.Getuid()), files)
}

// judgeSubids looks in the two files for ranges of the user, and else names the
// command that gives one which nobody has.
func judgeSubids(name, uid string, files [2]string) sandbox.Finding {
	f := sandbox.Finding{Name: "subordinate ids"}
	most := [2]int{} // a namespace gets the largest range
	free := 100000
	for i, text := range files {
		for line := range strings.Lines(text) {
			parts := strings.Split(strings.TrimSpace(line), ":")
			if len(parts) != 3 {
				continue
			}
			start, err1 := strconv.Atoi(parts[1])
			count, err2 := strconv.Atoi(parts[2])
			if err1 != nil || err2 != nil {
				continue
			}
			free = max(free, start+count)
			if parts[0] == uid || name != "" && parts[0] == name {
				most[i] = max(most[i], count)
			}
		}
	}
	has := [2]bool{most[0] >= wantIDs, most[1] >= wantIDs}
	if f.OK = has[0] && has[1]; f.OK {
		f.Detail = "in /etc/subuid and /etc/subgid"
		return f
	}
	lacking, option := "/etc/subuid and /etc/subgid", ""
	last := free + 65535
	if !has[0] {
		option += fmt.Sprintf(" --add-subuids %d-%d", free, last)
	}
	if !has[1] {
		option += fmt.Sprintf(" --add-subgids %d-%d", free, last)
	}
	switch {
	case has[0]:
		lacking = "/etc/subgid"
	case has[1]:
		lacking = "/etc/subuid"
	}
	if name == "" {
		name = uid
	}
	if least := min(most[0], most[1]); least > 0 {
		f.Detail = fmt.Sprintf("this user has a range of %d in %s, so that a sandbox has not all of the users that images count on; %d are wanted", least, lacking, wantIDs)
	} else {
		f.Detail = "this user has none in " + lacking + ", so a sandbox has one id, and no users of its own"
	}
	f.Remedy = "give this user a range: sudo usermod" + option + " " + name
	return f
}
