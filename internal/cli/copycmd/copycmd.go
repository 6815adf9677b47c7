// Package copycmd is "kitbox cp", which copies files into and out of sandboxes.
//
// The sandbox is not trusted: what comes out of one is unpacked by
// internal/guest/tarball, which writes nothing outside of where it is told.
package copycmd

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/internal/cli/argument"
	"github.com/kitbox-dev/kitbox/internal/cli/option"
	"github.com/kitbox-dev/kitbox/internal/cli/output"
	"github.com/kitbox-dev/kitbox/internal/cli/terminal"
	"github.com/kitbox-dev/kitbox/internal/cli/world"
	"github.com/kitbox-dev/kitbox/internal/guest/tarball"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// copying are the options of cp.
type copying struct {
	preserve bool
	follow   bool
	quiet    bool
	user     string
	most     string
	maxBytes int64
}

// maxEntries is how many files one copy out of a sandbox may make.
const maxEntries = 2_000_000

// New makes "kitbox cp".
func New(e *world.Env) *cobra.Command {
	var c copying
	cmd := &cobra.Command{
		Use:   "cp [options] SRC DST",
		Short: "Copy files into or out of a running sandbox",
		Long: `Copies SRC to DST; one of the two is NAME:PATH, a path of the sandbox NAME that is
absolute or below its workspace. A file goes to the file DST or into the directory
DST. A directory goes into a directory that is there, or becomes DST; with "/." at
the end of SRC, what is in it goes into DST. "-" is a tar: on stdin as SRC, for a
directory DST, or on stdout as DST.

What is copied into a sandbox belongs to the image's user and is written with that
user's rights, or with those of -u; what is copied out belongs to you. With -a,
owners and all modes are kept, which takes root.

The sandbox is not trusted: nothing is written outside of DST, links out of what is
copied are left out (-a keeps them and writes through none), and devices and pipes
always are; the first five are named.`,
		Example: `  kitbox cp notes.txt t:
  kitbox cp t:/data/result ./out
  kitbox cp t:/etc/. ./etc
  kitbox cp t:/work - | tar t`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return argument.Mistake(cmd, "cp takes SRC and DST, %d given", len(args))
			}
			return nil
		},
		ValidArgsFunction: namesWithColon(e),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if c.maxBytes, err = option.Bytes(c.most); err != nil {
				return argument.Mistake(cmd, "--max-size %q: %v", c.most, err)
			}
			from, src, out := place(args[0])
			to, dst, in := place(args[1])
			if out == in {
				return argument.Mistake(cmd, "one of SRC and DST is NAME:PATH, and the other a path of this machine; ./ in front makes a name with a colon one")
			}
			if c.preserve && c.user != "" {
				return argument.Mistake(cmd, "-a and -u exclude each other")
			}
			name := from + to
			sb, err := e.Runtime.Open(cmd.Context(), name)
			if err != nil {
				return err
			}
			files, err := sandbox.Files(sb)
			if err != nil {
				return err
			}
			switch {
			case out && dst == "-":
				return c.toStream(cmd.Context(), e, files, src)
			case out:
				return c.toHost(cmd.Context(), e, files, src, dst)
			case src == "-":
				return files.Unpack(cmd.Context(), dst, sandbox.UnpackOptions{User: c.user, Preserve: c.preserve}, e.Stdin)
			}
			return c.toSandbox(cmd.Context(), files, src, dst)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&c.preserve, "archive", "a", false, "keep owners, set-id bits and links that lead out")
	f.BoolVarP(&c.follow, "follow-link", "L", false, "copy what SRC leads to when it is a symbolic link")
	f.BoolVarP(&c.quiet, "quiet", "q", false, "do not name what is left out")
	f.StringVarP(&c.user, "user", "u", "", "write with the rights of `USER[:GROUP]` of the sandbox, to whom it then belongs")
	f.StringVar(&c.most, "max-size", "64g", "stop copying out after `SIZE`, lest a sandbox fill the disk")
	return cmd
}

// place takes NAME:PATH apart. A path with a slash before its first colon, or one
// that begins with a dot, is of this machine.
func place(s string) (name, p string, inside bool) {
	name, p, ok := strings.Cut(s, ":")
	// One that is only too long is meant as a name, and its length is what is wrong.
	if !ok || sandbox.CheckName(name[:min(len(name), sandbox.MaxName)]) != nil {
		return "", s, false
	}
	if p == "" {
		p = "."
	}
	return name, p, true
}

// contents reports whether p names what is in a directory.
func contents(p string) bool { return p == "." || strings.HasSuffix(p, "/.") }

// A target is where something is written: as name in the directory dir, or with
// ".", all of it directly in there.
type target struct{ dir, name string }

// aim decides where src goes, which is a directory or not, when at DST there is a
// directory, something else, or nothing.
func aim(src, dst string, srcDir, dstThere, dstDir bool) (target, error) {
	base := path.Base(path.Clean(src))
	switch {
	case srcDir && dstDir && contents(src):
		return target{dst, "."}, nil
	case dstDir:
		if base == "/" || base == "." || base == ".." {
			return target{dst, "."}, nil
		}
		return target{dst, base}, nil
	case srcDir && dstThere:
		return target{}, fmt.Errorf("%s is a directory and %s is not", src, dst)
	case !srcDir && strings.HasSuffix(dst, "/"):
		return target{}, fmt.Errorf("there is no directory %s; make it first", dst)
	}
	clean := path.Clean(dst)
	return target{path.Dir(clean), path.Base(clean)}, nil
}

// toHost copies out of the sandbox.
func (c *copying) toHost(ctx context.Context, e *world.Env, files sandbox.Copier, src, dst string) error {
	st, err := files.StatFile(ctx, src, c.follow)
	if err != nil {
		return err
	}
	at, err := os.Stat(dst)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	t, err := aim(src, dst, st.Dir, err == nil, err == nil && at.IsDir())
	if err != nil {
		return err
	}
	if _, err := os.Stat(t.dir); err != nil {
		return fmt.Errorf("there is no directory %s; make it first", t.dir)
	}
	o := tarball.UnpackOptions{Preserve: c.preserve, Links: c.preserve, MaxBytes: c.maxBytes, MaxEntries: maxEntries}
	if t.name != "." {
		o.Base = t.name
	}
	left := leftOut{e: e, quiet: c.quiet}
	defer left.total()
	o.Left = left.add
	return join(func(w io.Writer) error { return files.Pack(ctx, src, t.name, c.follow, w) },
		func(r io.Reader) error { return tarball.Unpack(r, t.dir, o) })
}

// toSandbox copies into it.
func (c *copying) toSandbox(ctx context.Context, files sandbox.Copier, src, dst string) error {
	stat := os.Lstat
	if c.follow {
		stat = os.Stat
	}
	st, err := stat(src)
	if err != nil {
		return err
	}
	at, err := files.StatFile(ctx, dst, true)
	if err != nil && !errors.Is(err, kiterr.ErrNotFound) {
		return err
	}
	abs, aerr := filepath.Abs(src)
	if aerr != nil {
		return aerr
	}
	name := abs
	if contents(src) {
		name = abs + "/."
	}
	t, err := aim(name, dst, st.IsDir(), err == nil, at.Dir)
	if err != nil {
		return err
	}
	return join(func(w io.Writer) error {
		return tarball.Pack(w, src, tarball.PackOptions{Name: t.name, Follow: c.follow})
	},
		func(r io.Reader) error {
			return files.Unpack(ctx, t.dir, sandbox.UnpackOptions{User: c.user, Preserve: c.preserve}, r)
		})
}

// toStream copies out of the sandbox, onto stdout. The entries are written anew,
// so that a program that reads them meets no name that leads anywhere else.
func (c *copying) toStream(ctx context.Context, e *world.Env, files sandbox.Copier, src string) error {
	if terminal.Of(e.Stdout) != nil {
		return errors.New("a tar is no text; send stdout to a file or a program")
	}
	left := leftOut{e: e, quiet: c.quiet}
	defer left.total()
	name := path.Base(path.Clean(src))
	if contents(src) || name == "/" || name == ".." {
		name = "."
	}
	return join(func(w io.Writer) error { return files.Pack(ctx, src, name, c.follow, w) },
		func(r io.Reader) error {
			t, w := tar.NewReader(r), tar.NewWriter(e.Stdout)
			for {
				h, err := t.Next()
				if errors.Is(err, io.EOF) {
					return w.Close()
				}
				if err != nil {
					return fmt.Errorf("what the sandbox sends is no tar: %w", err)
				}
				local := filepath.IsLocal(strings.TrimSuffix(h.Name, "/")) && (h.Typeflag != tar.TypeLink || filepath.IsLocal(h.Linkname))
				switch h.Typeflag {
				case tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink:
				default:
					local = false
				}
				if !local {
					left.add(h.Name + " is no file, or leads elsewhere")
					continue
				}
				h.Format = tar.FormatPAX
				if err := w.WriteHeader(h); err != nil {
					return err
				}
				if _, err := io.Copy(w, t); err != nil {
					return err
				}
			}
		})
}

// leftOut tells what a copy leaves out: the first few, and how many more.
type leftOut struct {
	e     *world.Env
	quiet bool
	n     int
}

// firstLeft is how many are named.
const firstLeft = 5

func (l *leftOut) add(what string) {
	if l.n++; l.n <= firstLeft && !l.quiet {
		fmt.Fprintln(l.e.Stderr, "kitbox: left out: "+output.Printable(what))
	}
}

func (l *leftOut) total() {
	if l.n > firstLeft && !l.quiet {
		fmt.Fprintf(l.e.Stderr, "kitbox: left out: %d more like these\n", l.n-firstLeft)
	}
}

// join runs a writer into a reader. The error of the side that broke first is the
// one that says why.
func join(write func(io.Writer) error, read func(io.Reader) error) error {
	pr, pw := io.Pipe()
	wrote := make(chan error, 1)
	go func() {
		err := write(pw)
		pw.CloseWithError(err) // nil is the end
		wrote <- err
	}()
	err := read(pr)
	pr.CloseWithError(errStopped)
	werr := <-wrote
	if werr != nil && !errors.Is(werr, errStopped) {
		return werr
	}
	return err
}

// errStopped is what a writer gets whose reader has ended.
var errStopped = errors.New("nobody reads any more")

// namesWithColon completes the name of a sandbox in front of a path, and leaves
// everything else to the shell.
func namesWithColon(e *world.Env) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		ns, d := e.Names(cmd, nil, typed)
		if d == cobra.ShellCompDirectiveError {
			return nil, cobra.ShellCompDirectiveDefault
		}
		for i := range ns {
			ns[i] += ":"
		}
		return ns, cobra.ShellCompDirectiveDefault | cobra.ShellCompDirectiveNoSpace
	}
}
