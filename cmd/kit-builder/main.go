// Command kit-builder builds Kits into the local image store. kitbox runs it:
// "build" builds one Kit and prints its result as JSON, "serve" is the private
// BuildKit that builds share and that starts and ends by itself. The work is in
// internal/builder.
package main

import (
	"os"

	"github.com/kitbox-dev/kitbox/internal/builder/cli"
	"github.com/kitbox-dev/kitbox/internal/frontend"
)

// Set when the program is linked.
var version, revision string

func main() {
	stamp := frontend.Builder{Version: version, Revision: revision}
	os.Exit(cli.Main(stamp, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
