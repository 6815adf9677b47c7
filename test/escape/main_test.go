package escape

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/app"
	"github.com/kitbox-dev/kitbox/internal/keeper/link"
)

// This program is all parts of the play: the tests, kitbox and its keepers, and
// what runs in the sandboxes.
func TestMain(m *testing.M) {
	switch arg0 := filepath.Base(os.Args[0]); {
	case arg0 == link.ProcessName:
		os.Exit(app.Main(os.Args))
	case arg0 == "kitbox":
		os.Exit(app.Main(os.Args))
	case arg0 == attackerName:
		os.Exit(attack(os.Args[1:]))
	case os.Getenv(apartVariable) == "":
		os.Exit(apart())
	}
	os.Exit(m.Run())
}

// apartVariable says that this process is in a network namespace of its own.
const apartVariable = "KITBOX_ESCAPE_APART"

// apart runs the tests again in namespaces of their own, or skips them.
func apart() int {
	why := ""
	if os.Geteuid() != 0 {
		why = "these tests run as root"
	} else if _, err := exec.LookPath("busybox"); err != nil {
		why = err.Error()
	}
	if why != "" {
		fmt.Fprintln(os.Stderr, "escape:", why)
		if os.Getenv("CI") != "" {
			return 1
		}
		fmt.Fprintln(os.Stderr, "escape: SKIPPED")
		return 0
	}
	runtime.LockOSThread() // Pdeathsig is about the thread
	c := exec.Command("/proc/self/exe", os.Args[1:]...)
	c.Args[0] = os.Args[0]
	c.Env = append(os.Environ(), apartVariable+"=1")
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	err := c.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return exit.ExitCode()
	case err != nil:
		fmt.Fprintln(os.Stderr, "escape:", err)
		return 1
	}
	return 0
}

// attackerName is what this program is called in a sandbox.
const attackerName = "attacker"

// A world is what an attacker is told. It knows everything: a boundary that
// holds because nobody knows the right address does not hold.
type world struct {
	Mark string // what must not arrive

	Home      string // of kitbox, on the host
	Keeper    int    // process of this sandbox's keeper, on the host
	Guest     string // the guest's socket, on the host
	Canary    string // a file on the host, for everybody to read
	Abstract  string // an abstract socket on the host
	Neighbour string // what the neighbour's server says
	Segment   int    // key of shared memory on the host
}

// Ways for an attempt to end that say nothing about the sandbox.
var (
	errBroken  = errors.New("broken instrument")
	errMissing = errors.New("missing")
)

func broken(err error) error { return fmt.Errorf("%w: %w", errBroken, err) }

const (
	exitHeld    = 1
	exitBroken  = 3
	exitMissing = 4
)

// attack runs one side of one attempt in this process: NAME KIND, with the world
// on standard input, where no other attempt finds it.
func attack(args []string) int {
	if len(args) == 1 && args[0] == "linger" {
		dialer.Timeout = patience
		return linger()
	}
	if len(args) == 2 && args[0] == "serve" {
		return serveNeighbour(args[1])
	}
	var w world
	if len(args) != 2 || json.NewDecoder(os.Stdin).Decode(&w) != nil {
		fmt.Fprintln(os.Stderr, "usage: attacker NAME KIND <WORLD")
		return exitBroken
	}
	err := perform(args[0], args[1], &w)
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, err)
	switch {
	case errors.Is(err, errBroken):
		return exitBroken
	case errors.Is(err, errMissing):
		return exitMissing
	}
	return exitHeld
}

func perform(name, kind string, w *world) error {
	if kind == "control" {
		patience *= 3
	}
	dialer.Timeout = patience
	if name == "reach-the-allowed" {
		return fetch(openName, 80, "/ok/"+w.Mark)
	}
	for _, a := range attempts() {
		if a.name != name {
			continue
		}
		if kind == "control" && a.control != nil {
			return a.control(w)
		}
		return a.attack(w)
	}
	return broken(fmt.Errorf("no attempt is called %q", name))
}
