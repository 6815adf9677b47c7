// Package imagecmd is the commands about the images of the local store: what there is,
// and what is sent to and got from registries and archives.
package imagecmd

import (
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/internal/cli/argument"
	"github.com/kitbox-dev/kitbox/internal/cli/option"
	"github.com/kitbox-dev/kitbox/internal/cli/output"
	"github.com/kitbox-dev/kitbox/internal/cli/world"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// Images makes "kitbox images".
func Images(e *world.Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "images",
		Short:   "List the images of the local store",
		Example: `  kitbox images --json | jq -r '.[].ref'`,
		Args:    argument.None,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ims, err := e.Images.Images(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				if ims == nil {
					ims = []sandbox.Image{}
				}
				return output.JSON(e.Stdout, ims)
			}
			w := output.Table(e.Stdout, "REFERENCE", "DIGEST", "KIND", "SIZE")
			for _, im := range ims {
				ref, kind := im.Ref, im.Kind
				if ref == "" {
					ref = "<none>"
				}
				if kind == "" {
					kind = "image"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", output.Printable(ref), output.Digest(im.Digest), kind, output.Bytes(im.SizeBytes))
			}
			return w.Flush()
		},
	}
	option.JSONVar(cmd, &asJSON)
	return cmd
}

// Tag makes "kitbox tag".
func Tag(e *world.Env) *cobra.Command {
	return &cobra.Command{
		Use:     "tag REF NAME",
		Short:   "Give an image of the store another name",
		Example: `  kitbox tag kitbox.local/hello:1 ghcr.io/me/kits/hello:1`,
		Args: func(cmd *cobra.Command, a []string) error {
			if len(a) != 2 {
				return argument.Mistake(cmd, "tag takes REF and NAME")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, a []string) error {
			m, err := sandbox.ManageImages(e.Images)
			if err != nil {
				return err
			}
			if err := argument.ImageName(cmd, a[1]); err != nil {
				return err
			}
			return m.TagImage(cmd.Context(), a[0], a[1])
		},
	}
}

// Image makes "kitbox image".
func Image(e *world.Env) *cobra.Command {
	list := Images(e)
	list.Use, list.Aliases = "ls", []string{"list"}
	return argument.Holder(&cobra.Command{
		Use:   "image",
		Short: "Look at, save, load and remove images of the store",
	}, list, imageInspect(e), imageRemove(e), imagePrune(e), imageSave(e), imageLoad(e))
}

func imageInspect(e *world.Env) *cobra.Command {
	return option.AlwaysJSON(&cobra.Command{
		Use:     "inspect REF",
		Short:   "Print what an image says of itself, as JSON",
		Example: `  kitbox image inspect kitbox.local/hello:1 | jq .descriptor.capabilities`,
		Args:    argument.One("REF"),
		RunE: func(cmd *cobra.Command, a []string) error {
			m, err := sandbox.ManageImages(e.Images)
			if err != nil {
				return err
			}
			d, err := m.InspectImage(cmd.Context(), a[0])
			if err != nil {
				return err
			}
			return output.JSON(e.Stdout, d)
		},
	})
}

func imageRemove(e *world.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME...",
		Short: "Take names out of the store",
		Long: `Takes names out of the store. What they stood for stays until 'kitbox image
prune'; sandboxes that exist keep what they need in any case.`,
		Args:              argument.AtLeastOne("NAME"),
		ValidArgsFunction: imageNames(e),
		RunE: func(cmd *cobra.Command, a []string) error {
			m, err := sandbox.ManageImages(e.Images)
			if err != nil {
				return err
			}
			for _, ref := range a {
				if err := m.RemoveImage(cmd.Context(), ref); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// imageNames completes names of images in the store, none twice.
func imageNames(e *world.Env) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		images, err := e.Images.Images(cmd.Context())
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var names []string
		for _, im := range images {
			if im.Ref != "" && !slices.Contains(args, im.Ref) {
				names = append(names, im.Ref)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

func imagePrune(e *world.Env) *cobra.Command {
	var (
		keep   time.Duration
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "prune [options]",
		Short: "Delete what no name, build record or sandbox leads to",
		Args:  argument.None,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := option.NotNegative(cmd, "keep-duration", keep); err != nil {
				return err
			}
			m, err := sandbox.ManageImages(e.Images)
			if err != nil {
				return err
			}
			p, err := m.PruneImages(cmd.Context(), keep)
			if err != nil {
				return err
			}
			if asJSON {
				return output.JSON(e.Stdout, p)
			}
			fmt.Fprintf(e.Stdout, "%d blobs and %d unpacked layers, %s\n", p.Blobs, p.Layers, output.Bytes(p.Bytes))
			return nil
		},
	}
	option.KeepVar(cmd, &keep)
	option.JSONVar(cmd, &asJSON)
	return cmd
}
