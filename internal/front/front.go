// Package front is the program that people and scripts start: it carries out what a
// sandbox's keeper does as soon as it is asked, and becomes the whole program for all
// else.
//
// The whole program speaks to registries, unpacks layers and makes boundaries. To
// start it takes longer than to start a command in a sandbox, and commands are what
// is started most. What is done here is done by the same code as there, and only
// while everything is as it should be: before anything has been changed or printed
// the whole program takes over and finds out the rest.
package front

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"

	"github.com/kitbox-dev/kitbox/internal/cli/execcmd"
	"github.com/kitbox-dev/kitbox/internal/cli/lifecmd"
	"github.com/kitbox-dev/kitbox/internal/cli/tree"
	"github.com/kitbox-dev/kitbox/internal/cli/world"
	"github.com/kitbox-dev/kitbox/internal/programs"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// Engine is the name of the whole program's file.
const Engine = "kit-engine"

// quick are the commands that can be carried out here, and whether the arguments
// after a command's name leave it at that.
var quick = []struct {
	command tree.Command
	purpose purpose
	fits    func(args []string) bool
}{
	{tree.Command{Names: []string{"exec"}, Group: tree.GroupRun, Make: execcmd.Exec}, toRun, attached},
	{tree.Command{Names: []string{"stop"}, Group: tree.GroupLife, Make: lifecmd.Stop}, toStop, oneName},
	{tree.Command{Names: []string{"start"}, Group: tree.GroupLife, Make: lifecmd.Start}, toStart, oneName},
}

// Main is the program; args are its arguments with its name. It returns the exit
// status.
func Main(args []string) int {
	if len(args) == 0 {
		args = []string{"kitbox"} // kernels before 5.18 start programs without a name
	}
	i := pick(args[1:])
	// Without root, machines are in a user namespace that has to be entered first.
	if i < 0 || os.Geteuid() != 0 {
		return become(args)
	}
	debug.SetGCPercent(400) // it ends before collecting would pay
	ctx, h := hear()
	whole := sync.OnceValue(func() error { return h.succeed(args) })
	env := &world.Env{Args: args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, LookupEnv: os.LookupEnv}
	env.Runtime = keepers{quick[i].purpose, whole}
	return tree.Main(ctx, env, []tree.Command{quick[i].command}, false)
}

// pick returns which of quick args call; -1: none.
func pick(args []string) int {
	for len(args) > 0 && args[0] == "--no-input" {
		args = args[1:]
	}
	if len(args) == 0 {
		return -1
	}
	for i, q := range quick {
		if q.command.Names[0] == args[0] && q.fits(args[1:]) {
			return i
		}
	}
	return -1
}

// attached reports whether args, of exec, are of a command that is waited for. A word
// of the command itself may look otherwise, which does no harm.
func attached(args []string) bool {
	for _, a := range args {
		if a == "--" {
			break
		}
		if a == "--detach" || strings.HasPrefix(a, "--detach=") || len(a) > 1 && a[0] == '-' && a[1] != '-' && strings.Contains(a, "d") {
			return false
		}
	}
	return true
}

// oneName reports whether args name one sandbox, with no options but the simplest.
// With several, the first would be done when the second turned out to need more.
func oneName(args []string) bool {
	names := 0
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "-q", a == "--quiet":
		case a == "--grace":
			i++
		case len(a) > 0 && a[0] == '-':
			return false
		default:
			names++
		}
	}
	return names == 1
}

// failed is the status of a command that was not carried out for want of the whole
// program: of exec, whose status is otherwise that of what it runs, one of its own.
func failed(args []string) int {
	for len(args) > 0 && args[0] == "--no-input" {
		args = args[1:]
	}
	if len(args) > 0 && args[0] == "exec" {
		return kiterr.StatusCannotExec
	}
	return kiterr.StatusFailed
}

// A hearing is of signals that end the command as long as this program carries it
// out.
type hearing struct {
	signals chan os.Signal
	over    chan struct{} // closed when none is heard any more
	heard   bool          // guarded by over
}

// hear returns a context that the first signal ends.
func hear() (context.Context, *hearing) {
	ctx, cancel := context.WithCancel(context.Background())
	h := &hearing{signals: make(chan os.Signal, 1), over: make(chan struct{})}
	// SIGHUP too: a terminal that is closed ends what was started in it.
	signal.Notify(h.signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		defer close(h.over)
		if _, h.heard = <-h.signals; h.heard {
			cancel()
		}
	}()
	return ctx, h
}

// end gives signals back their meaning and reports whether one has come before. It is
// called once.
func (h *hearing) end() bool {
	signal.Stop(h.signals) // and what had come is in the channel
	close(h.signals)
	<-h.over
	return h.heard
}

// succeed becomes the whole program, unless a signal has come: that was for the
// command, and the whole program would not hear of it. One that comes later ends
// either program.
func (h *hearing) succeed(args []string) error {
	if h.end() {
		return context.Canceled
	}
	return kiterr.ExitStatus(become(args)) // why has been said
}

// become replaces this process by the whole program with the same arguments. It
// returns only when it cannot.
func become(args []string) int {
	path := programs.Find(programs.Dirs(), Engine)
	if path == "" {
		fmt.Fprintf(os.Stderr, "kitbox: the program %s is missing: it belongs beside kitbox or into ../libexec/kitbox; install both, or name its directory in KITBOX_LIBEXEC\n", Engine)
		return failed(args[1:])
	}
	// It would become itself for ever.
	if st, err := os.Stat(path); err == nil {
		if self, err := os.Stat("/proc/self/exe"); err == nil && os.SameFile(st, self) {
			fmt.Fprintf(os.Stderr, "kitbox: %s is not %s but kitbox itself: install %s there\n", path, Engine, Engine)
			return failed(args[1:])
		}
	}
	err := syscall.Exec(path, args, os.Environ())
	fmt.Fprintf(os.Stderr, "kitbox: starting %s: %v\n", path, err)
	return failed(args[1:])
}
