// Command kitbox runs Kits in sandboxes that enforce what the Kits declare. It
// carries out what a sandbox's keeper can do at once, and leaves all else to
// kit-engine, which is the same command, whole. See internal/front.
package main

import (
	"os"

	"github.com/kitbox-dev/kitbox/internal/front"
)

func main() { os.Exit(front.Main(os.Args)) }
