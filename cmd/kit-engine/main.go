// Command kit-engine is the whole of kitbox, which becomes it when it is needed, and
// the keepers of sandboxes. The command line is in internal/cli, the wiring in
// internal/app.
package main

import (
	"os"

	"github.com/kitbox-dev/kitbox/internal/app"
)

func main() { os.Exit(app.Main(os.Args)) }
