// Command kit-tck judges by the Kit specification: recorded inputs through the
// libraries, published artifacts, and running implementations.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/kitbox-dev/kitbox/tck"
	"github.com/kitbox-dev/kitbox/tck/artifact"
	"github.com/kitbox-dev/kitbox/tck/vectors"
)

type command struct {
	name, args, about string
	run               func(ctx context.Context, args []string, stdout, stderr io.Writer) int
}

// commands is written out in the order help shows them.
var commands = []command{
	{"validate", "REF", "judge a published Kit; --help lists the flags", artifact.Validate},
	{"inspect", "REF", "show what a published Kit says of itself", artifact.Inspect},
	{"version", "", "say which suite this is", printVersion},
	{"vectors", "[--json] FILE…", "run vector files through the libraries", vectors.Main},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func printVersion(_ context.Context, _ []string, stdout, _ io.Writer) int {
	fmt.Fprintln(stdout, tck.Stamp())
	return 0
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 {
		for _, c := range commands {
			if c.name == args[0] {
				return c.run(ctx, args[1:], stdout, stderr)
			}
		}
	}
	out, code := stderr, 3 // a wrong call judges nothing
	if len(args) > 0 && (args[0] == "help" || args[0] == "-h" || args[0] == "--help") {
		out, code = stdout, 0
	} else if len(args) > 0 {
		fmt.Fprintf(stderr, "kit-tck: unknown command %q\n", args[0])
	}
	fmt.Fprintln(out, "usage: kit-tck COMMAND")
	for _, c := range commands {
		fmt.Fprintf(out, "  %-8s %-16s %s\n", c.name, c.args, c.about)
	}
	return code
}
