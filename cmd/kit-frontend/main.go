// Command kit-frontend is the BuildKit frontend for Kits: the program of the
// image that a "# syntax=docker/sandbox-kit:3" line names. BuildKit runs it with
// its gateway on standard input and output. The work is in internal/frontend.
package main

import (
	"fmt"
	"os"

	"github.com/moby/buildkit/frontend/gateway/grpcclient"
	"github.com/moby/buildkit/util/appcontext"

	"github.com/kitbox-dev/kitbox/internal/frontend"
)

// Set when the program is linked.
var version, revision string

func main() {
	build := frontend.Builder{Version: version, Revision: revision}.Build
	if err := grpcclient.RunFromEnvironment(appcontext.Context(), build); err != nil {
		fmt.Fprintln(os.Stderr, "kit-frontend:", err)
		os.Exit(1)
	}
}
