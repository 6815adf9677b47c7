package imagecmd

import (
	"archive/tar"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/kitbox-dev/kitbox/internal/cli/argument"
	"github.com/kitbox-dev/kitbox/internal/cli/option"
	"github.com/kitbox-dev/kitbox/internal/cli/outfile"
	"github.com/kitbox-dev/kitbox/internal/cli/output"
	"github.com/kitbox-dev/kitbox/internal/cli/progress"
	"github.com/kitbox-dev/kitbox/internal/cli/terminal"
	"github.com/kitbox-dev/kitbox/internal/cli/world"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// Push makes "kitbox push".
func Push(e *world.Env) *cobra.Command {
	var quiet bool
	cmd := &cobra.Command{
		Use:   "push [options] REF [as TARGET]",
		Short: "Send an image of the store to a registry",
		Long: `Sends the image REF of the local store, with all its platforms, to the registry
that TARGET names (REF itself if there is none), and prints the digest. What the
registry has is not sent again, and layers that a set shares with its Kits are
mounted from their repositories. Logins are docker's.`,
		Example: `  kitbox push kitbox.local/hello:1 as ghcr.io/me/kits/hello:1`,
		Args: func(cmd *cobra.Command, a []string) error {
			if len(a) == 1 || len(a) == 3 && a[1] == "as" {
				return nil
			}
			return argument.Mistake(cmd, "push takes REF, or REF as TARGET")
		},
		RunE: func(cmd *cobra.Command, a []string) error {
			m, err := sandbox.ManageImages(e.Images)
			if err != nil {
				return err
			}
			p := progress.New(e, quiet)
			digest, err := m.Push(cmd.Context(), a[0], a[len(a)-1], p.Event)
			p.Done()
			if err != nil {
				return err
			}
			fmt.Fprintln(e.Stdout, digest)
			return nil
		},
	}
	option.QuietVar(cmd, &quiet, "no progress on stderr")
	return cmd
}

// Pull makes "kitbox pull".
func Pull(e *world.Env) *cobra.Command {
	var quiet, asJSON bool
	var platform string
	cmd := &cobra.Command{
		Use:   "pull [options] REF",
		Short: "Get an image from a registry into the store",
		Long: `Asks the registry of REF what the name stands for today, gets what the local
store lacks of it for one platform, and prints the digest: that of the index where
there is one. What has arrived when it is interrupted is not transferred again.`,
		Example: `  kitbox pull ghcr.io/me/kits/hello:1
  kitbox pull --platform linux/arm64 ghcr.io/me/kits/hello:1`,
		Args: argument.One("REF"),
		RunE: func(cmd *cobra.Command, a []string) error {
			m, err := sandbox.ManageImages(e.Images)
			if err != nil {
				return err
			}
			p := progress.New(e, quiet)
			im, err := m.Pull(cmd.Context(), a[0], sandbox.PullOptions{Platform: platform, Progress: p.Event})
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
	cmd.Flags().StringVar(&platform, "platform", "", "the `OS/ARCH` to get (default: this machine's)")
	option.QuietVar(cmd, &quiet, "no progress on stderr")
	option.JSONVar(cmd, &asJSON)
	return cmd
}

func imageSave(e *world.Env) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "save [options] REF...",
		Short: "Write images as the tar of an OCI image layout",
		Long: `Writes images of the store, with the platforms that are there, as a tar that image
load, docker load, skopeo (oci-archive, docker-archive) and crane read.`,
		Example: `  kitbox image save -o hello.tar kitbox.local/hello:1
  kitbox image save kitbox.local/hello:1 | ssh there kitbox image load`,
		Args: argument.AtLeastOne("REF"),
		RunE: func(cmd *cobra.Command, a []string) error {
			m, err := sandbox.ManageImages(e.Images)
			if err != nil {
				return err
			}
			if file == "" {
				if f := terminal.File(e.Stdout); f != nil && term.IsTerminal(int(f.Fd())) {
					return argument.Mistake(cmd, "an archive is nothing for a terminal: name a file with --output")
				}
				return m.SaveImages(cmd.Context(), a, e.Stdout)
			}
			return outfile.Write(file, func(f *os.File) error { return m.SaveImages(cmd.Context(), a, f) })
		},
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "write to `FILE` instead of stdout")
	return cmd
}

func imageLoad(e *world.Env) *cobra.Command {
	var input string
	cmd := &cobra.Command{
		Use:   "load [options]",
		Short: "Read the tar of an OCI image layout into the store",
		Long: `Reads a tar as image save, docker save and buildx (type=oci) write it, or with
--input the directory of an OCI image layout, and prints the names that it brought.
Every blob is verified, and nothing gets a name unless all of them are right.`,
		Example: `  kitbox image load -i hello.tar
  docker save hello:1 | kitbox image load`,
		Args: argument.None,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := sandbox.ManageImages(e.Images)
			if err != nil {
				return err
			}
			r := cmd.InOrStdin()
			if input == "" && terminal.Of(e.Stdin) != nil {
				return argument.Mistake(cmd, "an archive is not typed: name a file with --input, or pipe one in")
			}
			if input != "" {
				f, err := os.Open(input)
				if err != nil {
					return err
				}
				defer f.Close()
				r = f
				if st, err := f.Stat(); err == nil && st.IsDir() {
					packed := packDir(input)
					defer packed.Close()
					r = packed
				}
			}
			names, err := m.LoadImages(cmd.Context(), r)
			if err != nil {
				return err
			}
			for _, n := range names {
				fmt.Fprintln(e.Stdout, output.Printable(n))
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&input, "input", "i", "", "read `FILE`, or a layout's directory, instead of stdin")
	return cmd
}

// packDir is the tar of a directory, made while it is read. Closing it ends that.
func packDir(dir string) io.ReadCloser {
	r, w := io.Pipe()
	go func() {
		t := tar.NewWriter(w)
		err := t.AddFS(os.DirFS(dir))
		if err == nil {
			err = t.Close()
		}
		w.CloseWithError(err)
	}()
	return r
}
