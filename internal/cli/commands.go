package cli

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/internal/cli/buildcmd"
	"github.com/kitbox-dev/kitbox/internal/cli/copycmd"
	"github.com/kitbox-dev/kitbox/internal/cli/execcmd"
	"github.com/kitbox-dev/kitbox/internal/cli/imagecmd"
	"github.com/kitbox-dev/kitbox/internal/cli/kitcmd"
	"github.com/kitbox-dev/kitbox/internal/cli/lifecmd"
	"github.com/kitbox-dev/kitbox/internal/cli/lockcmd"
	"github.com/kitbox-dev/kitbox/internal/cli/lookcmd"
	"github.com/kitbox-dev/kitbox/internal/cli/machinecmd"
	"github.com/kitbox-dev/kitbox/internal/cli/policycmd"
	"github.com/kitbox-dev/kitbox/internal/cli/portcmd"
	"github.com/kitbox-dev/kitbox/internal/cli/runcmd"
	"github.com/kitbox-dev/kitbox/internal/cli/secretcmd"
	"github.com/kitbox-dev/kitbox/internal/cli/storagecmd"
	"github.com/kitbox-dev/kitbox/internal/cli/workspacecmd"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// The groups of the root's help, in the order shown.
const (
	groupRun    = "run"
	groupLife   = "life"
	groupLook   = "look"
	groupAuthor = "author"
	groupImages = "images"
)

// A command is one of the root's before it is made. Its names stand here, too, so that
// it can be found without making any.
type command struct {
	names []string // the name, then aliases
	group string
	make  func(*Env) *cobra.Command
}

// commands are all of them.
var commands = []command{
	{[]string{"run"}, groupRun, runcmd.Run},
	{[]string{"create"}, groupRun, runcmd.Create},
	{[]string{"exec"}, groupRun, execcmd.Exec},
	{[]string{"attach"}, groupRun, execcmd.Attach},
	{[]string{"job"}, groupRun, execcmd.Job},
	{[]string{"cp"}, groupRun, copycmd.New},
	{[]string{"plan"}, groupRun, runcmd.Plan},
	{[]string{"lock"}, groupRun, lockcmd.Lock},
	{[]string{"update"}, groupRun, lockcmd.Update},

	{[]string{"stop"}, groupLife, lifecmd.Stop},
	{[]string{"start"}, groupLife, lifecmd.Start},
	{[]string{"restart"}, groupLife, lifecmd.Restart},
	{[]string{"recreate"}, groupLife, lifecmd.Recreate},
	{[]string{"rm"}, groupLife, lifecmd.Remove},
	{[]string{"volume"}, groupLife, storagecmd.Volume},
	{[]string{"mount"}, groupLife, storagecmd.Mount},
	{[]string{"secret"}, groupLife, secretcmd.New},
	{[]string{"workspace"}, groupLife, workspacecmd.New},

	{[]string{"ls", "list"}, groupLook, lookcmd.List},
	{[]string{"status"}, groupLook, lookcmd.Status},
	{[]string{"logs"}, groupLook, execcmd.Logs},
	{[]string{"inspect"}, groupLook, lookcmd.Inspect},
	{[]string{"ports"}, groupLook, portcmd.New},
	{[]string{"events"}, groupLook, lookcmd.Events},
	{[]string{"policy"}, groupLook, policycmd.New},

	{[]string{"kit"}, groupAuthor, func(e *Env) *cobra.Command {
		return kitcmd.New(func(ctx context.Context, ref string) ([]byte, error) {
			g, err := sandbox.Preflight(ctx, e.Images, ref)
			return g.Descriptor, err
		})
	}},
	{[]string{"build"}, groupAuthor, buildcmd.Build},

	{[]string{"images"}, groupImages, imagecmd.Images},
	{[]string{"pull"}, groupImages, imagecmd.Pull},
	{[]string{"push"}, groupImages, imagecmd.Push},
	{[]string{"tag"}, groupImages, imagecmd.Tag},
	{[]string{"image"}, groupImages, imagecmd.Image},
	{[]string{"prune"}, groupImages, machinecmd.Prune},
	{[]string{"base"}, groupImages, buildcmd.Base},
	{[]string{"doctor"}, groupImages, machinecmd.Doctor},
	{[]string{"version"}, groupImages, machinecmd.Version},
}

// called are the commands that are needed to carry args out: the one that they name,
// and all of them for what is about all, such as help, completion and a name that
// does not exist. Making all takes longer than some commands.
func called(args []string) []command {
	for _, a := range args {
		if a == "--no-input" || strings.HasPrefix(a, "--no-input=") {
			continue // the one option that may stand before a command
		}
		for i, c := range commands {
			if slices.Contains(c.names, a) {
				return commands[i : i+1]
			}
		}
		break
	}
	return commands
}
