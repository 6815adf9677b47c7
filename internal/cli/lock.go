package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// lockName is the file of a lock unless another is named.
const lockName = "kitbox.lock"

func (e *Env) lock() *cobra.Command {
	var (
		kits, args []string
		file, when string
		net        string
		quiet      bool
	)
	cmd := &cobra.Command{
		Use:   "lock [options] KIT",
		Short: "Write down exactly which Kits a sandbox is made of",
		Long: `Resolves KIT and the Kits given with --kit and writes kitbox.lock: for each its
reference and digest, the args, and everything that they ask of the host. Nothing of
this machine is in it, and the same Kits give the same bytes, so that it can be kept
with your sources. run, create and plan take it with --locked; update renews it.

Directories are written relative to the file. What a directory is built to depends
on the platform; Kits of a registry do not.`,
		Example: `  kitbox lock ghcr.io/me/kits/shell:1 --kit ghcr.io/me/kits/gh:2
  kitbox run --locked .
  kitbox lock --file - ./hello | jq .surface`,
		Args: one("KIT"),
		RunE: func(cmd *cobra.Command, a []string) error {
			o := sandbox.CreateOptions{Kits: append([]string{a[0]}, kits...), Pull: when}
			var err error
			if o.Args, err = pairs(cmd, "--arg", args); err != nil {
				return err
			}
			if err := pullPolicy(cmd, when); err != nil {
				return err
			}
			if o.BuildNetwork, err = buildNetwork(cmd, net); err != nil {
				return err
			}
			l, _, err := e.makeLock(cmd.Context(), o, quiet)
			if err != nil {
				return err
			}
			if file == "-" {
				b, err := l.Encode()
				if err == nil {
					_, err = e.Stdout.Write(b)
				}
				return err
			}
			if err := writeLock(file, l); err != nil {
				return err
			}
			fmt.Fprintln(e.Stdout, file)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&kits, "kit", nil, "add another `KIT` (repeatable)")
	f.StringArrayVar(&args, "arg", nil, "`NAME=VALUE` for the arg NAME (repeatable)")
	f.StringVarP(&file, "file", "f", lockName, "write `FILE`; - is stdout")
	pullFlag(cmd, &when, "always")
	buildNetworkFlag(cmd, &net)
	f.BoolVarP(&quiet, "quiet", "q", false, "no progress on stderr")
	return cmd
}

func (e *Env) makeLock(ctx context.Context, o sandbox.CreateOptions, quiet bool) (*sandbox.Lock, sandbox.Locker, error) {
	m, err := sandbox.ManageLocks(e.Runtime)
	if err != nil {
		return nil, nil, err
	}
	p := e.progress(quiet)
	o.Progress = p.event
	l, err := m.Lock(ctx, o)
	p.done()
	return l, m, err
}

func (e *Env) update() *cobra.Command {
	var (
		file, net                   string
		approve, dry, quiet, asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "update [options]",
		Short: "Renew a lock, unless its Kits ask for more than before",
		Long: `Asks what the references of kitbox.lock stand for today, shows which Kits have
changed and what they ask for that they did not, and writes the lock anew. When they
ask for more, it is left as it is and the exit status is 3, unless --approve is
given. Sandboxes that exist do not change; recreate makes them anew.`,
		Example: `  kitbox update
  kitbox update --dry-run --json | jq .widenings
  kitbox update --approve`,
		Args: none,
		RunE: func(cmd *cobra.Command, _ []string) error {
			network, err := buildNetwork(cmd, net)
			if err != nil {
				return err
			}
			old, err := readLock(file)
			if err != nil {
				return err
			}
			o := sandbox.CreateOptions{Args: old.Args, Pull: "always", BuildNetwork: network}
			for _, k := range old.Kits {
				o.Kits = append(o.Kits, k.Ref)
			}
			l, m, err := e.makeLock(cmd.Context(), o, quiet)
			if err != nil {
				return err
			}
			c, err := m.CompareLocks(old, l)
			if err != nil {
				return err
			}
			stop := len(c.Widenings) > 0 && !approve
			if asJSON {
				err = writeJSON(e.Stdout, struct {
					sandbox.LockChanges
					Written bool `json:"written"`
				}{c, !stop && !dry})
			} else {
				e.showChanges(c)
			}
			switch {
			case err != nil:
				return err
			case stop:
				return fmt.Errorf("%s is left as it is: its Kits ask for more than before; read what, and approve it with --approve: %w", file, kiterr.ErrWidening)
			case dry:
				return nil
			}
			return writeLock(file, l)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&file, "file", "f", lockName, "the `FILE` of the lock")
	f.BoolVar(&approve, "approve", false, "approve what the Kits ask for that they did not before")
	f.BoolVarP(&dry, "dry-run", "n", false, "show what is new and write nothing")
	buildNetworkFlag(cmd, &net)
	f.BoolVarP(&quiet, "quiet", "q", false, "no progress on stderr")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// showChanges prints Kits and authority, what is new with a plus.
func (e *Env) showChanges(c sandbox.LockChanges) {
	for _, k := range c.Kits {
		fmt.Fprintf(e.Stdout, "%s: %s → %s\n", printable(k.Ref), shortOr(k.From, "new"), shortOr(k.To, "gone"))
	}
	for _, w := range c.Widenings {
		fmt.Fprintf(e.Stdout, "+ %s %s\n", printable(w.Category), printable(w.Detail))
	}
	for _, n := range c.Narrowings {
		fmt.Fprintf(e.Stdout, "- %s %s\n", printable(n.Category), printable(n.Detail))
	}
	if len(c.Kits)+len(c.Widenings)+len(c.Narrowings) == 0 {
		fmt.Fprintln(e.Stdout, "nothing has changed")
	}
}

func shortOr(digest, otherwise string) string {
	if digest == "" {
		return otherwise
	}
	return shortDigest(digest)
}

// isPathRef reports whether a Kit is named by where it is.
func isPathRef(ref string) bool {
	return ref == "." || ref == ".." || strings.HasPrefix(ref, "./") || strings.HasPrefix(ref, "../")
}

// moved returns l with its relative directories, which are seen from one
// directory, as seen from another.
func moved(l *sandbox.Lock, from, to string) (*sandbox.Lock, error) {
	out := *l
	out.Kits = slices.Clone(l.Kits)
	for i, k := range out.Kits {
		if !isPathRef(k.Ref) {
			continue
		}
		a, err := filepath.Abs(filepath.Join(from, k.Ref))
		if err != nil {
			return nil, err
		}
		b, err := filepath.Abs(to)
		if err != nil {
			return nil, err
		}
		rel, err := filepath.Rel(b, a)
		if err != nil {
			return nil, err
		}
		if rel = filepath.ToSlash(rel); !isPathRef(rel) {
			rel = "./" + rel
		}
		out.Kits[i].Ref = rel
	}
	return &out, nil
}

func writeLock(name string, l *sandbox.Lock) error {
	l, err := moved(l, ".", filepath.Dir(name))
	if err != nil {
		return err
	}
	b, err := l.Encode()
	if err != nil {
		return err
	}
	if old, err := os.ReadFile(name); err == nil && string(old) == string(b) {
		return nil // whoever watches the file has nothing to do
	}
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-*")
	if err != nil {
		return asked(name, err)
	}
	defer os.Remove(f.Name()) // after the rename there is nothing of that name
	_, err = f.Write(b)
	if err := errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return asked(name, err)
	}
	return asked(name, os.Rename(f.Name(), name))
}

func readLock(name string) (*sandbox.Lock, error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no %s: 'kitbox lock KIT' writes one: %w", name, kiterr.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	l, err := sandbox.DecodeLock(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return moved(l, filepath.Dir(name), ".")
}

// locking are the options of commands that take a lock.
type locking struct {
	file   string
	locked bool
}

func (k *locking) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&k.file, "lock", "", "make it of exactly the Kits in the lock `FILE`; KIT can be left out")
	cmd.Flags().BoolVar(&k.locked, "locked", false, "the same with "+lockName+" in this directory")
}

// read returns the lock that was asked for, or nil.
func (k *locking) read(cmd *cobra.Command) (*sandbox.Lock, error) {
	switch {
	case k.locked && k.file != "":
		return nil, usageError(cmd, "--locked is --lock %s; give one of them", lockName)
	case k.locked:
		return readLock(lockName)
	case k.file != "":
		return readLock(k.file)
	}
	return nil, nil
}

// spelled returns how the lock writes ref, which may be another way to a
// directory.
func spelled(l *sandbox.Lock, ref string) (string, bool) {
	for _, k := range l.Kits {
		if k.Ref == ref || isPathRef(k.Ref) && isPathRef(ref) && filepath.Clean(k.Ref) == filepath.Clean(ref) {
			return k.Ref, true
		}
	}
	return ref, false
}
