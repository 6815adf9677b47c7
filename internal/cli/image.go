package cli

import (
	"fmt"
	"runtime"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

func (e *Env) build() *cobra.Command {
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
builder is started for it. Otherwise the private builder builds it, which starts
when it is needed, ends when it has been idle for five minutes and keeps its cache
below 10 GiB; kit-builder status, stop and prune manage it.

Exit status: 0 built, 2 the Kit is refused, 130 interrupted, 1 anything else.`,
		Example: `  kitbox build ./examples/hello
  kitbox build --tag hello:1 --arg version=2 ./examples/hello
  kitbox build --push --tag ghcr.io/me/kits/team:1 ./team
  kitbox build --builder tcp://buildkit.example:1234 --progress plain ./examples/hello
  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) kitbox build ./examples/hello`,
		Args: one("DIR"),
		RunE: func(cmd *cobra.Command, a []string) error {
			values, err := pairs(cmd, "--arg", args)
			if err != nil {
				return err
			}
			network, err := buildNetwork(cmd, net)
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("tag") {
				if err := imageName(cmd, ref); err != nil {
					return err
				}
			}
			if push && ref == "" {
				return usageError(cmd, "--push needs the --tag REF to push to")
			}
			if err := pullPolicy(cmd, o.Pull); err != nil {
				return err
			}
			if network != "" && !quiet {
				fmt.Fprintf(e.Stderr, "kitbox: build network %s: %s\n", network, buildNetworkText(network))
			}
			switch o.ConsoleMode {
			case "auto", "tty", "plain", "json":
				if !quiet {
					o.Console = e.Stderr
				}
			case "quiet":
			default:
				return usageError(cmd, "--progress %q is none of auto, tty, plain, json and quiet", o.ConsoleMode)
			}
			p := e.progress(quiet || o.ConsoleMode == "quiet" || o.ConsoleMode == "json")
			o.Dir, o.Ref, o.Args, o.Network, o.Progress = a[0], ref, values, network, p.event
			im, err := e.Builder.Build(cmd.Context(), o)
			if err == nil && push {
				var m sandbox.ImageManager
				if m, err = sandbox.ManageImages(e.Images); err == nil {
					_, err = m.Push(cmd.Context(), ref, ref, p.event)
				}
			}
			p.done()
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(e.Stdout, im)
			}
			fmt.Fprintln(e.Stdout, im.Digest)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&args, "arg", nil, "`NAME=VALUE` for a build-phase arg of the Kit (repeatable)")
	f.StringVarP(&ref, "tag", "t", "", "name the image `REF` in the store")
	buildNetworkFlag(cmd, &net)
	f.StringSliceVar(&o.Platforms, "platform", nil, "build for `OS/ARCH`, such as linux/arm64 (several only for a set)")
	pullFlag(cmd, &o.Pull, "always")
	f.BoolVar(&push, "push", false, "push to the registry that --tag names")
	f.StringVar(&o.Builder, "builder", "", "`ADDRESS` of another BuildKit, unix://… or tcp://…")
	f.BoolVar(&o.NoCache, "no-cache", false, "build although nothing changed, and run every step")
	f.StringVar(&o.ConsoleMode, "progress", "auto", "`MODE` of progress on stderr: auto (tty on a terminal, else plain), tty,\nplain, json or quiet")
	f.BoolVarP(&quiet, "quiet", "q", false, "no progress on stderr")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (e *Env) images() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "images",
		Short:   "List the images of the local store",
		Example: `  kitbox images --json | jq -r '.[].ref'`,
		Args:    none,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ims, err := e.Images.Images(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				if ims == nil {
					ims = []sandbox.Image{}
				}
				return writeJSON(e.Stdout, ims)
			}
			w := tabwriter.NewWriter(e.Stdout, 0, 8, 3, ' ', 0)
			fmt.Fprintln(w, "REFERENCE\tDIGEST\tKIND\tSIZE")
			for _, im := range ims {
				ref, kind := im.Ref, im.Kind
				if ref == "" {
					ref = "<none>"
				}
				if kind == "" {
					kind = "image"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", printable(ref), shortDigest(im.Digest), kind, bytesText(im.SizeBytes))
			}
			return w.Flush()
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (e *Env) base() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "base",
		Short: "Make the platform base that recipes build on",
		Args:  group,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var o sandbox.BaseOptions
	var quiet bool
	create := &cobra.Command{
		Use:   "create [options]",
		Short: "Make the base from the distribution's own mirror, into the local store",
		Long: `Makes the platform base (bash, sh, curl, git, a certificate store, python3, and
the user agent with id 1000) from the mirror of the distribution, and puts it
into the local store. Does nothing when it is there. Needs mmdebstrap, unless a
root filesystem of your own is given.`,
		Example: `  kitbox base create`,
		Args:    none,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p := e.progress(quiet)
			o.Progress = p.event
			im, err := e.Images.CreateBase(cmd.Context(), o)
			p.done()
			if err != nil {
				return err
			}
			fmt.Fprintln(e.Stdout, im.Ref)
			return nil
		},
	}
	f := create.Flags()
	f.StringVar(&o.Ref, "ref", "", "`REF` of the image (default: the one that the examples build on)")
	f.StringVar(&o.Mirror, "mirror", "", "`URL` of the mirror (default: the one this machine uses)")
	f.StringVar(&o.Suite, "suite", "", "`RELEASE` to install, such as bookworm (default: this machine's)")
	f.StringVar(&o.Rootfs, "from-rootfs", "", "take this `DIR` or tar instead of installing anything")
	f.BoolVar(&o.Force, "force", false, "make it again although it is there")
	f.BoolVarP(&quiet, "quiet", "q", false, "no progress on stderr")
	cmd.AddCommand(create)
	return cmd
}

func (e *Env) doctor() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "doctor",
		Short:   "Examine whether this machine can run Kits",
		Example: `  kitbox doctor`,
		Args:    none,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fs := e.Doctor.Examine(cmd.Context())
			missing := 0
			for _, f := range fs {
				if f.Required && !f.OK {
					missing++
				}
			}
			if asJSON {
				if err := writeJSON(e.Stdout, fs); err != nil {
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
					fmt.Fprintf(e.Stdout, "%-8s %-18s %s\n", mark, f.Name, printable(f.Detail))
					if !f.OK && f.Remedy != "" {
						fmt.Fprintf(e.Stdout, "%-8s %-18s %s\n", "", "", printable(f.Remedy))
					}
				}
			}
			if missing > 0 {
				return fmt.Errorf("%d requirements are missing on this machine: %w", missing, kiterr.ErrUnavailable)
			}
			return nil
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (e *Env) version() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  none,
		RunE: func(*cobra.Command, []string) error {
			if asJSON {
				return writeJSON(e.Stdout, map[string]string{"version": e.Version, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH})
			}
			_, err := fmt.Fprintf(e.Stdout, "kitbox %s\n", e.Version)
			return err
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}
