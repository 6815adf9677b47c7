// Command kit-guest is the first process of every machine. It is started by a
// driver, never by hand.
//
//	kit-guest init    build the machine described on descriptor 3, then serve on 4
//	kit-guest serve C finish a machine that is built already as descriptor 4 says
//	                  and serve on 3, with the capabilities C, comma-separated,
//	                  for commands
//	kit-guest lock P  copy the mounts P from a user namespace, to descriptor 3
//	kit-guest hold    keep this process's namespaces until stdin ends
//	kit-guest anchor  keep them until nobody else locks the file on descriptor 3
//
// Called oci-runtime, runc or crun, as it is in a sandbox with a container engine, it
// stands in front of that runtime: see package nested.
//
// With init, descriptor 5 stays open for as long as the machine runs.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/guest/agent"
	"github.com/kitbox-dev/kitbox/internal/guest/inside"
	"github.com/kitbox-dev/kitbox/internal/guest/nested"
)

// linkedC says that this program was built with cgo.
var linkedC bool

func main() {
	if linkedC {
		fatal("kit-guest was built with cgo and cannot give up privileges; build it with CGO_ENABLED=0 (make build)")
	}
	// In a sandbox it has other names, and then is no part of the machine.
	if nested.Is(os.Args[0]) {
		os.Exit(nested.Main(os.Args, os.Stdin, os.Stdout, os.Stderr))
	}
	mode := ""
	if len(os.Args) > 1 {
		mode = os.Args[1]
	}
	// Before anything else: a descriptor that some ancestor forgot must not
	// reach a command of the machine, nor stay open in here.
	kept := map[string]uint{"init": 3, "serve": 2, "anchor": 1, "lock": 1}[mode]
	if err := unix.CloseRange(3+kept, ^uint(0), 0); err != nil {
		fatal("closing inherited descriptors: %v", err)
	}
	if kept > 0 {
		if err := unix.CloseRange(3, 2+kept, unix.CLOSE_RANGE_CLOEXEC); err != nil {
			fatal("closing inherited descriptors on exec: %v", err)
		}
	}
	// Giving something up on every thread takes a round over all of them, and
	// there are thirty rounds: a fifteenth of a millisecond each where another
	// thread has to be stopped on its processor, next to nothing where none
	// runs. Building needs one.
	processors := min(runtime.GOMAXPROCS(1), 4) // each may cost a thread, and threads count as processes
	syscall.Umask(0o022)

	switch mode {
	case "init":
		control := stream(3).(*net.UnixConn)
		ln, err := build(control)
		inside.Report(control, err)
		control.Close()
		if err != nil {
			os.Exit(1)
		}
		serve(ln, processors)
	case "serve":
		ln, err := listener(3)
		if err == nil && len(os.Args) != 3 {
			err = fmt.Errorf("no capabilities given")
		}
		if err == nil {
			err = finish(4)
		}
		if err == nil {
			rename()
			var c *inside.Confinement
			if c, err = inside.Prepare(strings.Split(os.Args[2], ",")); err == nil {
				err = c.Apply()
			}
		}
		if err != nil {
			fatal("%v", err)
		}
		serve(ln, processors)
	case "lock":
		if err := inside.Lock(stream(3).(*net.UnixConn), os.Args[2:]); err != nil {
			fatal("%v", err)
		}
	case "hold":
		_, _ = io.Copy(io.Discard, os.Stdin)
	case "anchor":
		for unix.Flock(3, unix.LOCK_EX) == unix.EINTR {
		}
	default:
		fatal("this program is started by kitbox")
	}
}

// finish does what descriptor fd says.
func finish(fd uintptr) error {
	f := os.NewFile(fd, "machine")
	defer f.Close()
	c, err := inside.ReceiveConfig(f)
	if err != nil {
		return fmt.Errorf("reading the machine's description: %w", err)
	}
	program, err := inside.Program(c.Files)
	if err != nil {
		return err
	}
	return inside.Finish(c, program)
}

// build makes the machine and returns where to serve.
func build(control *net.UnixConn) (net.Listener, error) {
	ln, err := listener(4)
	if err != nil {
		return nil, err
	}
	c, err := inside.ReceiveConfig(control)
	if err != nil {
		return nil, fmt.Errorf("receiving the machine's description: %w", err)
	}
	// While the driver is busy with limits and mounts.
	confinement, err := inside.Prepare(c.Capabilities)
	if err != nil {
		return nil, err
	}
	fds, err := inside.ReceiveFiles(control, c)
	if err != nil {
		return nil, fmt.Errorf("receiving the machine's mounts: %w", err)
	}
	if err := inside.Detach(c.Hostname); err != nil {
		return nil, err
	}
	if err := inside.Build(c, fds); err != nil {
		return nil, err
	}
	rename()
	return ln, confinement.Apply()
}

// rename gives this process the name of its program in ps: executed through a
// descriptor, it is called "5". A confined process must not do that.
func rename() { _ = os.WriteFile("/proc/self/comm", []byte("kit-guest"), 0) }

func serve(ln net.Listener, processors int) {
	runtime.GOMAXPROCS(processors)
	// It does little and lives long: there may be many of it.
	debug.SetGCPercent(25)
	if err := new(agent.Agent).Serve(ln); err != nil {
		fatal("%v", err)
	}
}

func listener(fd uintptr) (net.Listener, error) {
	f := os.NewFile(fd, "listener")
	defer f.Close()
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("descriptor %d: %w", fd, err)
	}
	return ln, nil
}

func stream(fd uintptr) net.Conn {
	f := os.NewFile(fd, "control")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		fatal("descriptor %d: %v", fd, err)
	}
	return c
}

func fatal(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "kit-guest: "+format+"\n", args...)
	os.Exit(1)
}
