package kitcmd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/internal/cli/argument"
	"github.com/kitbox-dev/kitbox/internal/cli/output"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/format"
)

func formatting() *cobra.Command {
	var write, list, showDiff, checkOnly bool
	cmd := &cobra.Command{
		Use:   "fmt [FILE|DIR...]",
		Short: "Lay out descriptors",
		Long: `Lays out descriptors: the top-level keys in the order of the specification, two
blanks of indentation, no trailing blanks, at most one empty line in a row.
Lines are moved and indented and otherwise left as they are, comments, quotes and
flow style included; what the descriptor says does not change.

Like gofmt, it prints the result unless told to write it back with -w; without
arguments, or for "-", it reads standard input. Of a Dockerfile with a
descriptor in its head only the descriptor is laid out.

Exit status: 0, 1 something could not be read or written, 2 a file is no valid
YAML or, with --check, is laid out otherwise.`,
		Example: `  kitbox kit fmt -w .
  kitbox kit fmt --check --diff kits/
  kitbox kit fmt < kit.yaml`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				args = []string{"-"}
			}
			f := &formatter{cmd: cmd, out: cmd.OutOrStdout(), write: write, list: list || checkOnly && !showDiff, diff: showDiff, silent: checkOnly}
			var failed error
			for _, arg := range args {
				files, err := find(arg)
				failed = errors.Join(failed, err)
				for _, name := range files {
					if name == stdin && write {
						return argument.Mistake(cmd, "-w cannot write to standard input")
					}
					failed = errors.Join(failed, f.file(name, cmd.InOrStdin()))
				}
			}
			if failed != nil {
				return failed
			}
			if f.refused || checkOnly && f.changed {
				return kiterr.ExitStatus(kiterr.StatusRefused)
			}
			return nil
		},
	}
	cmd.Flags().BoolVarP(&write, "write", "w", false, "write the result back into the file")
	cmd.Flags().BoolVarP(&list, "list", "l", false, "print the names of the files that change")
	cmd.Flags().BoolVarP(&showDiff, "diff", "d", false, "print what changes")
	cmd.Flags().BoolVar(&checkOnly, "check", false, "print the names of the files that would change, and fail if there are any")
	return cmd
}

type formatter struct {
	cmd                       *cobra.Command
	out                       io.Writer
	write, list, diff, silent bool

	changed bool
	refused bool // a file is no YAML; the others are laid out all the same
}

func (f *formatter) file(name string, in io.Reader) error {
	src, err := read(name, in)
	if err != nil {
		return err
	}
	res, err := format.Source(src)
	if invalid := (*spec.InvalidError)(nil); errors.As(err, &invalid) {
		for i := range invalid.Findings {
			invalid.Findings[i].File = name
		}
		f.refused = true
		_ = refuse(f.cmd, invalid.Findings)
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if !bytes.Equal(src, res) {
		f.changed = true
		if f.list {
			fmt.Fprintln(f.out, output.Printable(name))
		}
		if f.diff {
			if _, err := f.out.Write(diff.Diff(name+".orig", src, name, res)); err != nil {
				return err
			}
		}
		if f.write {
			if err := replace(name, res); err != nil {
				return fmt.Errorf("%s: %w", name, reason(err))
			}
		}
	}
	if !f.write && !f.list && !f.diff && !f.silent {
		_, err = f.out.Write(res)
	}
	return err
}

// replace puts data in the place of a file, all or nothing, and keeps its mode.
// A link stays and its target changes.
func replace(name string, data []byte) error {
	target, err := filepath.EvalSymlinks(name)
	if err != nil {
		return err
	}
	st, err := os.Stat(target)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(target), ".kitfmt-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(data)
	if err == nil {
		err = tmp.Chmod(st.Mode().Perm())
	}
	if err == nil {
		err = tmp.Sync()
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), target)
}
