// Package machinecmd is the commands about this machine: doctor, prune and version.
package machinecmd

import (
	"fmt"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/internal/cli/argument"
	"github.com/kitbox-dev/kitbox/internal/cli/option"
	"github.com/kitbox-dev/kitbox/internal/cli/output"
	"github.com/kitbox-dev/kitbox/internal/cli/world"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// Doctor makes "kitbox doctor".
func Doctor(e *world.Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "doctor",
		Short:   "Examine whether this machine can run Kits",
		Example: `  kitbox doctor`,
		Args:    argument.None,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fs := e.Doctor.Examine(cmd.Context())
			missing := 0
			for _, f := range fs {
				if f.Required && !f.OK {
					missing++
				}
			}
			if asJSON {
				if err := output.JSON(e.Stdout, fs); err != nil {
					return err
				}
			} else {
				for _, f := range fs {
					mark := "ok"
					switch {
					case !f.OK && f.Required:
						mark = "MISSING"
					case !f.OK:
						mark = "absent"
					}
					fmt.Fprintf(e.Stdout, "%-8s %-18s %s\n", mark, f.Name, output.Printable(f.Detail))
					if !f.OK && f.Remedy != "" {
						fmt.Fprintf(e.Stdout, "%-8s %-18s %s\n", "", "", output.Printable(f.Remedy))
					}
				}
			}
			if missing > 0 {
				return fmt.Errorf("%d requirements are missing on this machine: %w", missing, kiterr.ErrUnavailable)
			}
			return nil
		},
	}
	option.JSONVar(cmd, &asJSON)
	return cmd
}

// Version makes "kitbox version".
func Version(e *world.Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  argument.None,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON {
				return output.JSON(e.Stdout, map[string]string{"version": e.Version, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH})
			}
			_, err := fmt.Fprintf(e.Stdout, "kitbox %s\n", e.Version)
			return err
		},
	}
	option.JSONVar(cmd, &asJSON)
	return cmd
}

// Prune makes "kitbox prune".
func Prune(e *world.Env) *cobra.Command {
	var (
		asJSON bool
		keep   time.Duration
	)
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Delete images and layers that nothing refers to",
		Long: `Deletes what killed commands left: half made sandboxes, sandboxes that were to end
with their command, and files; and blobs and unpacked layers that no tag, no build
and no sandbox refers to. All other sandboxes, volumes and host mounts stay.`,
		Example: `  kitbox prune`,
		Args:    argument.None,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if keep <= 0 {
				return argument.Mistake(cmd, "--keep-duration takes a time such as 1h")
			}
			done, err := sandbox.Prune(cmd.Context(), e.Runtime, sandbox.PruneOptions{Age: keep})
			if err != nil {
				return err
			}
			if asJSON {
				return output.JSON(e.Stdout, done)
			}
			fmt.Fprintf(e.Stdout, "%d sandboxes of killed commands, %d blobs and %d layers, %s\n", done.Sandboxes, done.Blobs, done.Layers, output.Bytes(done.Bytes))
			return nil
		},
	}
	option.JSONVar(cmd, &asJSON)
	option.KeepVar(cmd, &keep)
	return cmd
}
