// Package lockcmd is "kitbox lock" and "kitbox update".
package lockcmd

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/internal/cli/argument"
	"github.com/kitbox-dev/kitbox/internal/cli/lockfile"
	"github.com/kitbox-dev/kitbox/internal/cli/option"
	"github.com/kitbox-dev/kitbox/internal/cli/output"
	"github.com/kitbox-dev/kitbox/internal/cli/progress"
	"github.com/kitbox-dev/kitbox/internal/cli/world"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// Lock makes "kitbox lock".
func Lock(e *world.Env) *cobra.Command {
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
  kitbox lock -o - ./hello | jq .surface`,
		Args: argument.One("KIT"),
		RunE: func(cmd *cobra.Command, a []string) error {
			o := sandbox.CreateOptions{Kits: append([]string{a[0]}, kits...), Pull: when}
			var err error
			if o.Args, err = option.Pairs(cmd, "--arg", args); err != nil {
				return err
			}
			if err := option.Pull(cmd, when); err != nil {
				return err
			}
			if o.BuildNetwork, err = option.BuildNetwork(cmd, net); err != nil {
				return err
			}
			l, _, err := makeLock(cmd.Context(), e, o, quiet)
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
			if err := lockfile.Write(file, l); err != nil {
				return err
			}
			fmt.Fprintln(e.Stdout, file)
			return nil
		},
	}
	f := cmd.Flags()
	option.KitVar(cmd, &kits)
	option.ArgVar(cmd, &args)
	f.StringVarP(&file, "output", "o", lockfile.Name, "write to `FILE`; - is stdout")
	option.PullVar(cmd, &when, "always")
	option.BuildNetworkVar(cmd, &net)
	option.QuietVar(cmd, &quiet, "no progress on stderr")
	return cmd
}

func makeLock(ctx context.Context, e *world.Env, o sandbox.CreateOptions, quiet bool) (*sandbox.Lock, sandbox.Locker, error) {
	m, err := sandbox.ManageLocks(e.Runtime)
	if err != nil {
		return nil, nil, err
	}
	p := progress.New(e, quiet)
	o.Progress = p.Event
	l, err := m.Lock(ctx, o)
	p.Done()
	return l, m, err
}

// Update makes "kitbox update".
func Update(e *world.Env) *cobra.Command {
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
		Args: argument.None,
		RunE: func(cmd *cobra.Command, _ []string) error {
			network, err := option.BuildNetwork(cmd, net)
			if err != nil {
				return err
			}
			old, err := lockfile.Read(file)
			if err != nil {
				return err
			}
			o := sandbox.CreateOptions{Args: old.Args, Pull: "always", BuildNetwork: network}
			for _, k := range old.Kits {
				o.Kits = append(o.Kits, k.Ref)
			}
			l, m, err := makeLock(cmd.Context(), e, o, quiet)
			if err != nil {
				return err
			}
			c, err := m.CompareLocks(old, l)
			if err != nil {
				return err
			}
			stop := len(c.Widenings) > 0 && !approve
			if asJSON {
				err = output.JSON(e.Stdout, struct {
					sandbox.LockChanges
					Written bool `json:"written"`
				}{c, !stop && !dry})
			} else {
				showChanges(e, c)
			}
			switch {
			case err != nil:
				return err
			case stop:
				return fmt.Errorf("%s is left as it is: its Kits ask for more than before; read what, and approve it with --approve: %w", file, kiterr.ErrWidening)
			case dry:
				return nil
			}
			return lockfile.Write(file, l)
		},
	}
	f := cmd.Flags()
	f.StringVar(&file, "lock", lockfile.Name, "renew the lock `FILE`")
	f.BoolVar(&approve, "approve", false, "approve what the Kits ask for that they did not before")
	f.BoolVarP(&dry, "dry-run", "n", false, "show what is new and write nothing")
	option.BuildNetworkVar(cmd, &net)
	option.QuietVar(cmd, &quiet, "no progress on stderr")
	option.JSONVar(cmd, &asJSON)
	return cmd
}

// showChanges prints Kits and authority, what is new with a plus.
func showChanges(e *world.Env, c sandbox.LockChanges) {
	for _, k := range c.Kits {
		fmt.Fprintf(e.Stdout, "%s: %s → %s\n", output.Printable(k.Ref), shortOr(k.From, "new"), shortOr(k.To, "gone"))
	}
	for _, w := range c.Widenings {
		fmt.Fprintf(e.Stdout, "+ %s %s\n", output.Printable(w.Category), output.Printable(w.Detail))
	}
	for _, n := range c.Narrowings {
		fmt.Fprintf(e.Stdout, "- %s %s\n", output.Printable(n.Category), output.Printable(n.Detail))
	}
	if len(c.Kits)+len(c.Widenings)+len(c.Narrowings) == 0 {
		fmt.Fprintln(e.Stdout, "nothing has changed")
	}
}

func shortOr(digest, otherwise string) string {
	if digest == "" {
		return otherwise
	}
	return output.Digest(digest)
}
