// Package storagecmd is "kitbox volume" and "kitbox mount": what outlives sandboxes.
package storagecmd

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/internal/cli/argument"
	"github.com/kitbox-dev/kitbox/internal/cli/option"
	"github.com/kitbox-dev/kitbox/internal/cli/output"
	"github.com/kitbox-dev/kitbox/internal/cli/world"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// Volume makes "kitbox volume".
func Volume(e *world.Env) *cobra.Command {
	return argument.Holder(&cobra.Command{
		Use:   "volume",
		Short: "List, inspect and remove the volumes that sandboxes keep",
		Long: `Volumes belong to the name of a sandbox and outlive it: a later sandbox of that
name has them again. Only "volume rm" deletes one, and a "run --rm" without --name
those under the name that it made up.`,
		Example: `  kitbox volume ls
  kitbox volume inspect t /data
  kitbox volume rm t /data`,
	}, volumeList(e), volumeInspect(e), volumeRemove(e))
}

func volumeList(e *world.Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls [NAME]",
		Short: "List the volumes of one name, or all",
		Long: `Lists volumes with their sizes: "at most" one that more than that does not fit
in, "advisory" one that this host could not bound, as the note in --json says.
USED is what a bounded volume takes of the disk. Listing makes nothing.`,
		Example:           `  kitbox volume ls --json | jq -r '.[] | select(.mounted | not) | .dir'`,
		Args:              argument.AtMostOne("NAME"),
		ValidArgsFunction: e.Names,
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := sandbox.VolumesOf(e.Runtime)
			if err != nil {
				return err
			}
			name := ""
			if len(args) > 0 {
				name = args[0]
			}
			volumes, err := k.Volumes(cmd.Context(), name)
			if err != nil {
				return err
			}
			if asJSON {
				return output.JSON(e.Stdout, volumes)
			}
			w := output.Table(e.Stdout, "SANDBOX", "PATH", "SIZE", "USED", "MOUNTED")
			for _, v := range volumes {
				size := "-"
				if v.SizeBytes != nil {
					size = output.Bytes(*v.SizeBytes)
					if v.Bounded {
						size = "at most " + size
					} else {
						size += ", advisory"
					}
				}
				used := "-"
				if v.UsedBytes != nil {
					used = output.Bytes(*v.UsedBytes)
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%t\n", v.Sandbox, output.Printable(v.Path), size, used, v.Mounted)
			}
			return w.Flush()
		},
	}
	option.JSONVar(cmd, &asJSON)
	return cmd
}

func volumeInspect(e *world.Env) *cobra.Command {
	return option.AlwaysJSON(&cobra.Command{
		Use:               "inspect NAME PATH",
		Short:             "Print what is recorded of a volume, as JSON",
		Example:           `  kitbox volume inspect t /data`,
		Args:              argument.Two("NAME", "PATH"),
		ValidArgsFunction: volumeNames(e),
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := sandbox.VolumesOf(e.Runtime)
			if err != nil {
				return err
			}
			volumes, err := k.Volumes(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			for _, v := range volumes {
				if v.Path == path.Clean("/"+args[1]) {
					return output.JSON(e.Stdout, v)
				}
			}
			return fmt.Errorf("sandbox %s has no volume %s: %w: 'kitbox volume ls %s' shows what there is", args[0], args[1], kiterr.ErrNotFound, args[0])
		},
	})
}

func volumeRemove(e *world.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME [PATH]",
		Short: "Delete one volume of a name, or all of them, with what is in them",
		Long: `Deletes one volume of a name, or all of them. One that the sandbox of that name
mounts, running or stopped, is not deleted. Deleting what is not there succeeds, and
says that there was nothing.`,
		Example: `  kitbox volume rm t /data`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return argument.Mistake(cmd, "rm takes NAME, or NAME and the PATH of a volume, %d given", len(args))
			}
			return nil
		},
		ValidArgsFunction: volumeNames(e),
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := sandbox.VolumesOf(e.Runtime)
			if err != nil {
				return err
			}
			at := ""
			if len(args) > 1 {
				if at = args[1]; at == "" {
					return argument.Mistake(cmd, "an empty PATH names no volume; leave it out for all")
				}
			}
			there, err := k.Volumes(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if err := k.RemoveVolume(cmd.Context(), args[0], at); err != nil {
				return err
			}
			if at != "" {
				there = slices.DeleteFunc(there, func(v sandbox.Volume) bool { return v.Path != path.Clean("/"+at) })
			}
			if len(there) == 0 {
				fmt.Fprintf(e.Stderr, "kitbox: %s has no volume%s, so nothing was deleted; 'kitbox volume ls' shows what there is\n", args[0], strings.TrimRight(" "+output.Printable(at), " "))
			}
			return nil
		},
	}
}

// volumeNames completes a name under which volumes are kept, whether there is a
// sandbox of that name or not, and then the path of one of them.
func volumeNames(e *world.Env) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 1 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		k, err := sandbox.VolumesOf(e.Runtime)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		name := ""
		if len(args) == 1 {
			name = args[0]
		}
		volumes, err := k.Volumes(cmd.Context(), name)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var offered []string
		for _, v := range volumes {
			if name == "" {
				offered = append(offered, v.Sandbox)
			} else {
				offered = append(offered, v.Path)
			}
		}
		slices.Sort(offered)
		return slices.Compact(offered), cobra.ShellCompDirectiveNoFileComp
	}
}
