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
	{Names: []string{"run"}, Group: tree.GroupRun, Make: runcmd.Run},
	{Names: []string{"create"}, Group: tree.GroupRun, Make: runcmd.Create},
	{Names: []string{"exec"}, Group: tree.GroupRun, Make: execcmd.Exec},
	{Names: []string{"attach"}, Group: tree.GroupRun, Make: execcmd.Attach},
	{Names: []string{"job"}, Group: tree.GroupRun, Make: execcmd.Job},
	{Names: []string{"cp"}, Group: tree.GroupRun, Make: copycmd.New},
	{Names: []string{"plan"}, Group: tree.GroupRun, Make: runcmd.Plan},
	{Names: []string{"lock"}, Group: tree.GroupRun, Make: lockcmd.Lock},
	{Names: []string{"update"}, Group: tree.GroupRun, Make: lockcmd.Update},

	{Names: []string{"stop"}, Group: tree.GroupLife, Make: lifecmd.Stop},
	{Names: []string{"start"}, Group: tree.GroupLife, Make: lifecmd.Start},
	{Names: []string{"restart"}, Group: tree.GroupLife, Make: lifecmd.Restart},
	{Names: []string{"recreate"}, Group: tree.GroupLife, Make: lifecmd.Recreate},
	{Names: []string{"rm"}, Group: tree.GroupLife, Make: lifecmd.Remove},
	{Names: []string{"volume"}, Group: tree.GroupLife, Make: storagecmd.Volume},
	{Names: []string{"mount"}, Group: tree.GroupLife, Make: storagecmd.Mount},
	{Names: []string{"secret"}, Group: tree.GroupLife, Make: secretcmd.New},
	{Names: []string{"workspace"}, Group: tree.GroupLife, Make: workspacecmd.New},

	{Names: []string{"ls", "list"}, Group: tree.GroupLook, Make: lookcmd.List},
	{Names: []string{"status"}, Group: tree.GroupLook, Make: lookcmd.Status},
	{Names: []string{"logs"}, Group: tree.GroupLook, Make: execcmd.Logs},
	{Names: []string{"inspect"}, Group: tree.GroupLook, Make: lookcmd.Inspect},
	{Names: []string{"ports"}, Group: tree.GroupLook, Make: portcmd.New},
	{Names: []string{"events"}, Group: tree.GroupLook, Make: lookcmd.Events},
	{Names: []string{"policy"}, Group: tree.GroupLook, Make: policycmd.New},

	{Names: []string{"kit"}, Group: tree.GroupAuthor, Make: func(e *Env) *cobra.Command {
		return kitcmd.New(func(ctx context.Context, ref string) ([]byte, error) {
			g, err := sandbox.Preflight(ctx, e.Images, ref)
			return g.Descriptor, err
		})
	}},
	{Names: []string{"build"}, Group: tree.GroupAuthor, Make: buildcmd.Build},

	{Names: []string{"images"}, Group: tree.GroupImages, Make: imagecmd.Images},
	{Names: []string{"pull"}, Group: tree.GroupImages, Make: imagecmd.Pull},
	{Names: []string{"push"}, Group: tree.GroupImages, Make: imagecmd.Push},
	{Names: []string{"tag"}, Group: tree.GroupImages, Make: imagecmd.Tag},
	{Names: []string{"image"}, Group: tree.GroupImages, Make: imagecmd.Image},
	{Names: []string{"prune"}, Group: tree.GroupImages, Make: machinecmd.Prune},
	{Names: []string{"base"}, Group: tree.GroupImages, Make: buildcmd.Base},
	{Names: []string{"doctor"}, Group: tree.GroupImages, Make: machinecmd.Doctor},
	{Names: []string{"version"}, Group: tree.GroupImages, Make: machinecmd.Version},
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
