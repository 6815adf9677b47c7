package cli

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/kitbox-dev/kitbox/sandbox"
	"github.com/kitbox-dev/kitbox/spec/constraint"
)

func (e *Env) push() *cobra.Command {
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
			return usageError(cmd, "push takes REF, or REF as TARGET")
		},
		RunE: func(cmd *cobra.Command, a []string) error {
			m, err := sandbox.ManageImages(e.Images)
			if err != nil {
				return err
			}
			p := e.progress(quiet)
			digest, err := m.Push(cmd.Context(), a[0], a[len(a)-1], p.event)
			p.done()
			if err != nil {
				return err
			}
			fmt.Fprintln(e.Stdout, digest)
			return nil
		},
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "no progress on stderr")
	return cmd
}

func (e *Env) pull() *cobra.Command {
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
		Args: one("REF"),
		RunE: func(cmd *cobra.Command, a []string) error {
			m, err := sandbox.ManageImages(e.Images)
			if err != nil {
				return err
			}
			p := e.progress(quiet)
			im, err := m.Pull(cmd.Context(), a[0], sandbox.PullOptions{Platform: platform, Progress: p.event})
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
	cmd.Flags().StringVar(&platform, "platform", "", "the `OS/ARCH` to get (default: this machine's)")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "no progress on stderr")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (e *Env) tag() *cobra.Command {
	return &cobra.Command{
		Use:     "tag REF NAME",
		Short:   "Give an image of the store another name",
		Example: `  kitbox tag kitbox.local/hello:1 ghcr.io/me/kits/hello:1`,
		Args: func(cmd *cobra.Command, a []string) error {
			if len(a) != 2 {
				return usageError(cmd, "tag takes REF and NAME")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, a []string) error {
			m, err := sandbox.ManageImages(e.Images)
			if err != nil {
				return err
			}
			if err := imageName(cmd, a[1]); err != nil {
				return err
			}
			return m.TagImage(cmd.Context(), a[0], a[1])
		},
	}
}

// imageName judges a name that an image is to get.
func imageName(cmd *cobra.Command, name string) error {
	im, err := constraint.ParseImage(name)
	if err == nil && im.Digest != "" {
		err = fmt.Errorf("%s: a digest belongs to what has it and cannot be given: leave it out", name)
	}
	if err != nil {
		return usageError(cmd, "%v", err)
	}
	return nil
}

func (e *Env) image() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "image",
		Short: "Look at, save, load and remove images of the store",
		Args:  group,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	list := e.images()
	list.Use, list.Aliases = "ls", []string{"list"}
	cmd.AddCommand(list, e.imageInspect(), e.imageRemove(), e.imagePrune(), e.imageSave(), e.imageLoad())
	return cmd
}

func (e *Env) imageInspect() *cobra.Command {
	return alwaysJSON(&cobra.Command{
		Use:     "inspect REF",
		Short:   "Print what an image says of itself, as JSON",
		Example: `  kitbox image inspect kitbox.local/hello:1 | jq .descriptor.capabilities`,
		Args:    one("REF"),
		RunE: func(cmd *cobra.Command, a []string) error {
			m, err := sandbox.ManageImages(e.Images)
			if err != nil {
				return err
			}
			d, err := m.InspectImage(cmd.Context(), a[0])
			if err != nil {
				return err
			}
			return writeJSON(e.Stdout, d)
		},
	})
}

func (e *Env) imageRemove() *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME…",
		Short: "Take names out of the store",
		Long: `Takes names out of the store. What they stood for stays until 'kitbox image
prune'; sandboxes that exist keep what they need in any case.`,
		Args: atLeastOne("NAME"),
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

func (e *Env) imagePrune() *cobra.Command {
	var (
		grace  time.Duration
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "prune [options]",
		Short: "Delete what no name, build record or sandbox leads to",
		Args:  none,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := notNegative(cmd, "grace", grace); err != nil {
				return err
			}
			m, err := sandbox.ManageImages(e.Images)
			if err != nil {
				return err
			}
			p, err := m.PruneImages(cmd.Context(), grace)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(e.Stdout, p)
			}
			fmt.Fprintf(e.Stdout, "%d blobs and %d unpacked layers, %s\n", p.Blobs, p.Layers, bytesText(p.Bytes))
			return nil
		},
	}
	cmd.Flags().DurationVar(&grace, "grace", time.Hour, "keep what was used within this time; it has to be longer than any build or pull that runs")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (e *Env) imageSave() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "save [options] REF…",
		Short: "Write images as the tar of an OCI image layout",
		Long: `Writes images of the store, with the platforms that are there, as a tar that image
load, docker load, skopeo (oci-archive, docker-archive) and crane read.`,
		Example: `  kitbox image save -o hello.tar kitbox.local/hello:1
  kitbox image save kitbox.local/hello:1 | ssh there kitbox image load`,
		Args: atLeastOne("REF"),
		RunE: func(cmd *cobra.Command, a []string) error {
			m, err := sandbox.ManageImages(e.Images)
			if err != nil {
				return err
			}
			if output == "" {
				if f := fileOf(e.Stdout); f != nil && term.IsTerminal(int(f.Fd())) {
					return usageError(cmd, "an archive is nothing for a terminal: name a file with --output")
				}
				return m.SaveImages(cmd.Context(), a, e.Stdout)
			}
			return saveTo(cmd.Context(), m, a, output)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "write to `FILE` instead of stdout")
	return cmd
}

// saveTo writes beside the file and renames, so that there is never half an
// archive of that name.
func saveTo(ctx context.Context, m sandbox.ImageManager, refs []string, name string) error {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-*")
	if err != nil {
		return asked(name, err)
	}
	defer os.Remove(f.Name()) // after the rename there is nothing of that name
	err = m.SaveImages(ctx, refs, f)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return asked(name, err)
	}
	return asked(name, os.Rename(f.Name(), name))
}

// asked makes an error of the file beside name, which nobody has heard of, one of
// name.
func asked(name string, err error) error {
	var p *fs.PathError
	var l *os.LinkError
	switch {
	case errors.As(err, &p) && strings.HasPrefix(filepath.Base(p.Path), "."+filepath.Base(name)+"-"):
		return &fs.PathError{Op: p.Op, Path: name, Err: p.Err}
	case errors.As(err, &l):
		return &fs.PathError{Op: l.Op, Path: name, Err: l.Err}
	}
	return err
}

func (e *Env) imageLoad() *cobra.Command {
	var input string
	cmd := &cobra.Command{
		Use:   "load [options]",
		Short: "Read the tar of an OCI image layout into the store",
		Long: `Reads a tar as image save, docker save and buildx (type=oci) write it, or with
--input the directory of an OCI image layout, and prints the names that it brought.
Every blob is verified, and nothing gets a name unless all of them are right.`,
		Example: `  kitbox image load -i hello.tar
  docker save hello:1 | kitbox image load`,
		Args: none,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := sandbox.ManageImages(e.Images)
			if err != nil {
				return err
			}
			r := e.Stdin
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
				fmt.Fprintln(e.Stdout, printable(n))
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
