// Command kit-frontend is the BuildKit frontend for Kits: the program of the
// image that a "# syntax=docker/sandbox-kit:3" line names. The work is in
// internal/frontend.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/kitbox-dev/kitbox/internal/frontend"
)

// Set when the program is linked.
var version, revision string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := (frontend.Builder{Version: version, Revision: revision}).RunInImage(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "kit-frontend:", err)
		os.Exit(1)
	}
}
