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
	"github.com/kitbox-dev/kitbox/internal/cli/tree"
	"github.com/kitbox-dev/kitbox/internal/cli/workspacecmd"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// commands are all of them.
var commands = []tree.Command{
	{[]string{"run"}, tree.GroupRun, runcmd.Run},
	{[]string{"create"}, tree.GroupRun, runcmd.Create},
	{[]string{"exec"}, tree.GroupRun, execcmd.Exec},
	{[]string{"attach"}, tree.GroupRun, execcmd.Attach},
	{[]string{"job"}, tree.GroupRun, execcmd.Job},
	{[]string{"cp"}, tree.GroupRun, copycmd.New},
	{[]string{"plan"}, tree.GroupRun, runcmd.Plan},
	{[]string{"lock"}, tree.GroupRun, lockcmd.Lock},
	{[]string{"update"}, tree.GroupRun, lockcmd.Update},

	{[]string{"stop"}, tree.GroupLife, lifecmd.Stop},
	{[]string{"start"}, tree.GroupLife, lifecmd.Start},
	{[]string{"restart"}, tree.GroupLife, lifecmd.Restart},
	{[]string{"recreate"}, tree.GroupLife, lifecmd.Recreate},
	{[]string{"rm"}, tree.GroupLife, lifecmd.Remove},
	{[]string{"volume"}, tree.GroupLife, storagecmd.Volume},
	{[]string{"mount"}, tree.GroupLife, storagecmd.Mount},
	{[]string{"secret"}, tree.GroupLife, secretcmd.New},
	{[]string{"workspace"}, tree.GroupLife, workspacecmd.New},

	{[]string{"ls", "list"}, tree.GroupLook, lookcmd.List},
	{[]string{"status"}, tree.GroupLook, lookcmd.Status},
	{[]string{"logs"}, tree.GroupLook, execcmd.Logs},
	{[]string{"inspect"}, tree.GroupLook, lookcmd.Inspect},
	{[]string{"ports"}, tree.GroupLook, portcmd.New},
	{[]string{"events"}, tree.GroupLook, lookcmd.Events},
	{[]string{"policy"}, tree.GroupLook, policycmd.New},

	{[]string{"kit"}, tree.GroupAuthor, func(e *Env) *cobra.Command {
		return kitcmd.New(func(ctx context.Context, ref string) ([]byte, error) {
			g, err := sandbox.Preflight(ctx, e.Images, ref)
			return g.Descriptor, err
		})
	}},
	{[]string{"build"}, tree.GroupAuthor, buildcmd.Build},

	{[]string{"images"}, tree.GroupImages, imagecmd.Images},
	{[]string{"pull"}, tree.GroupImages, imagecmd.Pull},
	{[]string{"push"}, tree.GroupImages, imagecmd.Push},
	{[]string{"tag"}, tree.GroupImages, imagecmd.Tag},
	{[]string{"image"}, tree.GroupImages, imagecmd.Image},
	{[]string{"prune"}, tree.GroupImages, machinecmd.Prune},
	{[]string{"base"}, tree.GroupImages, buildcmd.Base},
	{[]string{"doctor"}, tree.GroupImages, machinecmd.Doctor},
	{[]string{"version"}, tree.GroupImages, machinecmd.Version},
}

// called are the commands that are needed to carry args out: the one that they name,
// and all of them for what is about all, such as help, completion and a name that
// does not exist. Making all takes longer than some commands.
func called(args []string) []tree.Command {
	for _, a := range args {
		if a == "--no-input" || strings.HasPrefix(a, "--no-input=") {
			continue // the one option that may stand before a command
		}
		for i, c := range commands {
			if slices.Contains(c.Names, a) {
				return commands[i : i+1]
			}
		}
		break
	}
	return commands
}
