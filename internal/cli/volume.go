package cli

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

func (e *Env) volume() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "volume",
		Short: "List, inspect and remove the volumes that sandboxes keep",
		Long: `Volumes belong to the name of a sandbox and outlive it: a later sandbox of that
name has them again. Only "volume rm" deletes one.`,
		Example: `  kitbox volume ls
  kitbox volume inspect t /data
  kitbox volume rm t /data`,
		Args: none,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(e.volumeList(), e.volumeInspect(), e.volumeRemove())
	return cmd
}

func (e *Env) volumeKeeper() (sandbox.VolumeKeeper, error) {
	k, ok := e.Runtime.(sandbox.VolumeKeeper)
	if !ok {
		return nil, fmt.Errorf("volumes: %w", kiterr.ErrUnsupported)
	}
	return k, nil
}

func (e *Env) volumeList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls [NAME]",
		Short: "List the volumes of one name, or all",
		Long: `Lists volumes with their sizes: "at most" one that more than that does not fit
in, "advisory" one that this host could not bound, as the note in --json says.
USED is what a bounded volume takes of the disk. Listing makes nothing.`,
		Example:           `  kitbox volume ls --json | jq -r '.[] | select(.mounted | not) | .dir'`,
		Args:              atMostOne("NAME"),
		ValidArgsFunction: e.names,
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := e.volumeKeeper()
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
				return writeJSON(e.Stdout, volumes)
			}
			w := tabwriter.NewWriter(e.Stdout, 0, 8, 3, ' ', 0)
			fmt.Fprintln(w, "SANDBOX\tPATH\tSIZE\tUSED\tMOUNTED")
			for _, v := range volumes {
				size := "-"
				if v.SizeBytes != nil {
					size = bytesText(*v.SizeBytes)
					if v.Bounded {
						size = "at most " + size
					} else {
						size += ", advisory"
					}
				}
				used := "-"
				if v.UsedBytes != nil {
					used = bytesText(*v.UsedBytes)
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%t\n", v.Sandbox, printable(v.Path), size, used, v.Mounted)
			}
			return w.Flush()
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (e *Env) volumeInspect() *cobra.Command {
	return alwaysJSON(&cobra.Command{
		Use:               "inspect NAME PATH",
		Short:             "Print what is recorded of a volume, as JSON",
		Example:           `  kitbox volume inspect t /data`,
		Args:              two("NAME", "PATH"),
		ValidArgsFunction: e.names,
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := e.volumeKeeper()
			if err != nil {
				return err
			}
			volumes, err := k.Volumes(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			for _, v := range volumes {
				if v.Path == path.Clean("/"+args[1]) {
					return writeJSON(e.Stdout, v)
				}
			}
			return fmt.Errorf("sandbox %s has no volume %s: %w: 'kitbox volume ls %s' shows what there is", args[0], args[1], kiterr.ErrNotFound, args[0])
		},
	})
}

func (e *Env) volumeRemove() *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME [PATH]",
		Short: "Delete one volume of a name, or all of them, with what is in them",
		Long: `Deletes one volume of a name, or all of them. One that the sandbox of that name
mounts, running or stopped, is not deleted. Deleting what is not there succeeds, and
says that there was nothing.`,
		Example: `  kitbox volume rm t /data`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return usageError(cmd, "rm takes NAME, or NAME and the PATH of a volume, %d given", len(args))
			}
			return nil
		},
		ValidArgsFunction: e.names,
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := e.volumeKeeper()
			if err != nil {
				return err
			}
			at := ""
			if len(args) > 1 {
				if at = args[1]; at == "" {
					return usageError(cmd, "an empty PATH names no volume; leave it out for all")
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
				fmt.Fprintf(e.Stderr, "kitbox: %s has no volume%s, so nothing was deleted; 'kitbox volume ls' shows what there is\n", args[0], strings.TrimRight(" "+printable(at), " "))
			}
			return nil
		},
	}
}

func (e *Env) prune() *cobra.Command {
	var (
		asJSON bool
		age    time.Duration
	)
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Delete images and layers that nothing refers to",
		Long: `Deletes what killed commands left: half made sandboxes, sandboxes that were to end
with their command, and files; and blobs and unpacked layers that no tag, no build
and no sandbox refers to. All other sandboxes, volumes and host mounts stay.`,
		Example: `  kitbox prune`,
		Args:    none,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, ok := e.Runtime.(sandbox.Pruner)
			if !ok {
				return fmt.Errorf("prune: %w", kiterr.ErrUnsupported)
			}
			if age <= 0 {
				return usageError(cmd, "--age takes a time such as 1h")
			}
			done, err := p.Prune(cmd.Context(), sandbox.PruneOptions{Age: age})
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(e.Stdout, done)
			}
			fmt.Fprintf(e.Stdout, "%d sandboxes of killed commands, %d blobs and %d layers, %s\n", done.Sandboxes, done.Blobs, done.Layers, bytesText(done.Bytes))
			return nil
		},
	}
	jsonFlag(cmd, &asJSON)
	cmd.Flags().DurationVar(&age, "age", time.Hour, "spare what was used this recently; no build or pull may take longer")
	return cmd
}
