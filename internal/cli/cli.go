// Package cli is the kitbox command as a library: it turns arguments into calls
// of package sandbox and answers into text.
//
// It has the list of the commands, which are in packages by family below it, as is
// what they share; the root of the tree is in tree. They see the world only through [Env], import no implementation, and hold to
// three rules: stdout carries results and nothing else, --json prints one
// document, and an error is one line that names the thing and the next step.
// The wiring is in internal/app.
package cli

import (
	"context"

	"github.com/kitbox-dev/kitbox/internal/cli/tree"
	"github.com/kitbox-dev/kitbox/internal/cli/world"
)

// Env is the world as one invocation sees it.
type Env = world.Env

// Main runs one invocation and returns its exit status.
func Main(ctx context.Context, e *Env) int { return run(ctx, e, called(e.Args)) }

// run is Main with the commands in list only.
func run(ctx context.Context, e *Env, list []tree.Command) int {
	return tree.Main(ctx, e, list, len(list) == len(commands))
}
