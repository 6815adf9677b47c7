// Command kitbox runs Kits in sandboxes that enforce what the Kits declare. The
// command line is in internal/cli, the wiring in internal/app.
package main

import (
	"os"

	"github.com/kitbox-dev/kitbox/internal/app"
)

func main() { os.Exit(app.Main(os.Args)) }
