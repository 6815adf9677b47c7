// Command kit-builder builds Kits. kitbox runs it: "build" builds one Kit into
// an image store and prints its result as JSON, "serve" is the private BuildKit
// that builds share and that starts and ends by itself. The work is in
// internal/builder.
package main

import (
	"os"

	"github.com/kitbox-dev/kitbox/internal/builder/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
