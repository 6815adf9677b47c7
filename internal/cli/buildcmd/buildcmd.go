// Package buildcmd is "kitbox build" and "kitbox base": what puts images into the local
// store that were made here.
package buildcmd

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/internal/cli/argument"
	"github.com/kitbox-dev/kitbox/internal/cli/option"
	"github.com/kitbox-dev/kitbox/internal/cli/output"
	"github.com/kitbox-dev/kitbox/internal/cli/progress"
	"github.com/kitbox-dev/kitbox/internal/cli/summary"
	"github.com/kitbox-dev/kitbox/internal/cli/world"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// Build makes "kitbox build".
func Build(e *world.Env) *cobra.Command {
	var (
		args   []string
		ref    string
		net    string
		o      sandbox.BuildOptions
		quiet  bool
		asJSON bool
		push   bool
	)
	cmd := &cobra.Command{
		Use:   "build [options] DIR",
		Short: "Build a Kit into the local store",
		Long: `Builds the Kit in DIR, or that DIR names as a descriptor file, unless it is
built already, and prints the digest of its manifest. run, create and plan do
the same for every Kit that is given as a directory.

A set (a descriptor with kits:) is assembled from the Kits that it lists, which
are images of registries or of the store: their names are looked up, their layers
are not read. Without --platform it is made for all platforms that its Kits have
in common.

A Kit of which nothing has changed is found by the hash of its sources, and no
builder is started for it; --pull always, the default, also asks whether the images
of registries that its recipe builds on have moved. Otherwise the private builder
builds it, which starts when it is needed, ends when it has been idle for five
minutes and keeps its cache below 10 GiB; kit-builder status, stop and prune manage it.

Exit status: 0 built, 2 the Kit is refused, 130 interrupted, 1 anything else.`,
		Example: `  kitbox build ./examples/hello
  kitbox build --tag hello:1 --arg version=2 ./examples/hello
  kitbox build --push --tag ghcr.io/me/kits/team:1 ./team
  kitbox build --platform linux/amd64,linux/arm64 --tag ghcr.io/me/kits/gh:2 ./gh
  kitbox build --builder tcp://buildkit.example:1234 --progress plain ./examples/hello
  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) kitbox build ./examples/hello`,
		Args: argument.One("DIR"),
		RunE: func(cmd *cobra.Command, a []string) error {
			values, err := option.Pairs(cmd, "--arg", args)
			if err != nil {
				return err
			}
			network, err := option.BuildNetwork(cmd, net)
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("tag") {
				if err := argument.ImageName(cmd, ref); err != nil {
					return err
				}
			}
			if push && ref == "" {
				return argument.Mistake(cmd, "--push needs the --tag REF to push to")
			}
			if err := option.Pull(cmd, o.Pull); err != nil {
				return err
			}
			if network != "" && !quiet {
				fmt.Fprintf(e.Stderr, "kitbox: build network %s: %s\n", network, summary.BuildNetwork(network))
			}
			switch o.ConsoleMode {
			case "auto", "tty", "plain", "json":
				if !quiet {
					o.Console = e.Stderr
				}
			case "quiet":
			default:
				return argument.Mistake(cmd, "--progress %q is none of auto, tty, plain, json and quiet", o.ConsoleMode)
			}
			p := progress.New(e, quiet || o.ConsoleMode == "quiet" || o.ConsoleMode == "json")
			o.Dir, o.Ref, o.Args, o.Network, o.Progress = a[0], ref, values, network, p.Event
			im, err := e.Builder.Build(cmd.Context(), o)
			if err == nil && push {
				var m sandbox.ImageManager
				if m, err = sandbox.ManageImages(e.Images); err == nil {
					_, err = m.Push(cmd.Context(), ref, ref, p.Event)
				}
			}
			p.Done()
			if err != nil {
				return err
			}
			if asJSON {
				return output.JSON(e.Stdout, im)
			}
			fmt.Fprintln(e.Stdout, im.Digest)
			return nil
		},
	}
	f := cmd.Flags()
	option.Repeated(cmd, &args, "arg", "", "`NAME=VALUE` for a build-phase arg of the Kit (repeatable)")
	f.StringVarP(&ref, "tag", "t", "", "name the image `REF` in the store")
	option.BuildNetworkVar(cmd, &net)
	f.StringSliceVar(&o.Platforms, "platform", nil, "build for `OS/ARCH`, such as linux/arm64 (repeatable, or with commas: an index)")
	option.PullVar(cmd, &o.Pull, "always")
	f.BoolVar(&push, "push", false, "push to the registry that --tag names")
	f.StringVar(&o.Builder, "builder", "", "`ADDRESS` of another BuildKit, unix://… or tcp://…")
	f.BoolVar(&o.NoCache, "no-cache", false, "build although nothing changed, and run every step")
	f.StringVar(&o.ConsoleMode, "progress", "auto", "`MODE` of progress on stderr: auto (tty on a terminal, else plain), tty,\nplain, json or quiet")
	option.QuietVar(cmd, &quiet, "no progress on stderr")
	option.JSONVar(cmd, &asJSON)
	return cmd
}

// Base makes "kitbox base".
func Base(e *world.Env) *cobra.Command {
	return argument.Holder(&cobra.Command{
		Use:   "base",
		Short: "Make the platform base that recipes build on",
	}, baseCreate(e))
}

func baseCreate(e *world.Env) *cobra.Command {
	var o sandbox.BaseOptions
	var quiet bool
	cmd := &cobra.Command{
		Use:   "create [options]",
		Short: "Make the base from the distribution's own mirror, into the local store",
		Long: `Makes the platform base (bash, sh, curl, git, a certificate store, python3, and
the user agent with id 1000) from the mirror of the distribution, and puts it
into the local store. Does nothing when it is there. Needs mmdebstrap, unless a
root filesystem of your own is given.`,
		Example: `  kitbox base create`,
		Args:    argument.None,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p := progress.New(e, quiet)
			o.Progress = p.Event
			im, err := e.Images.CreateBase(cmd.Context(), o)
			p.Done()
			if err != nil {
				return err
			}
			fmt.Fprintln(e.Stdout, im.Ref)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.Ref, "tag", "t", "", "name the image `REF` in the store (default: as the examples have it)")
	f.StringVar(&o.Mirror, "mirror", "", "`URL` of the mirror (default: the one this machine uses)")
	f.StringVar(&o.Suite, "suite", "", "`RELEASE` to install, such as bookworm (default: this machine's)")
	f.StringVar(&o.Rootfs, "from-rootfs", "", "take this `DIR` or tar instead of installing anything")
	f.BoolVarP(&o.Force, "force", "f", false, "make it again although it is there")
	option.QuietVar(cmd, &quiet, "no progress on stderr")
	return cmd
}
