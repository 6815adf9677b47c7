package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

func (e *Env) secret() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "secret",
		Short: "Keep secrets for the services that Kits authenticate to",
		Long: `Kits say which services they authenticate to, by name; the secrets for them are
kept on this host, sealed, and no sandbox ever holds one. At most a text that
stands for the secret is inside; the boundary puts the secret into the requests
that the Kit declared, and into no others.

Of several secrets for a service the most specific is presented: that of the
sandbox, else that of the Kit, else the one for all. What changes holds from the
next request on, in running sandboxes as well.`,
		Example: `  gh auth token | kitbox secret set github
  kitbox secret set github --command 'gh auth token' --approve
  kitbox secret ls`,
		Args: group,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(e.secretSet(), e.secretList(), e.secretRemove(), e.secretImport())
	return cmd
}

// whose are the options that say whom a secret is for.
type whose struct{ sandbox, kit, registry string }

func (w *whose) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&w.sandbox, "sandbox", "", "only for the sandbox `NAME`, which need not exist yet; it goes when that is removed")
	cmd.Flags().StringVar(&w.kit, "kit", "", "only for the Kit `REF`, whatever its version")
	cmd.MarkFlagsMutuallyExclusive("sandbox", "kit")
}

// registries is for commands that take the login of a registry, too, in which no
// service is named.
func (w *whose) registries(cmd *cobra.Command) {
	cmd.Flags().StringVar(&w.registry, "registry", "", "your login USER:PASSWORD for the image registry `HOST`, for no sandbox; SERVICE is left out")
	cmd.MarkFlagsMutuallyExclusive("sandbox", "kit", "registry")
}

func (w *whose) of(service string) sandbox.SecretRef {
	return sandbox.SecretRef{Service: service, Sandbox: w.sandbox, Kit: w.kit, Registry: w.registry}
}

func (e *Env) secretSet() *cobra.Command {
	var (
		who                whose
		file, command, env string
		approve, oauth     bool
	)
	cmd := &cobra.Command{
		Use:   "set [options] SERVICE",
		Short: "Keep a secret for a service",
		Long: `Keeps the secret for SERVICE, in the place of the one there may be. It is read from
stdin: typed without being shown on a terminal, else to the end of input. --file,
--env and --command read it elsewhere; an argument is never a secret, since other
users and your shell's history can see it. One newline at its end is not kept.

With --command the secret is what the command prints, each time a sandbox needs
one: the token alone, or {"token": "...", "expiresAt": "2030-01-02T15:04:05Z"} (or
"expiresIn", in seconds). It is run by sh on this host, as you, outside every
sandbox, for 30 seconds at most, and asked again when its token is about to end,
or after five minutes if it does not say when that is. That needs your word:
--approve, or yes on a terminal; without it nothing is kept and the exit status is 3.
The command is run once to see that it works.

With --oauth the secret is a JSON document with the tokens of an OAuth server, such
as a tool's own credential file: accessToken, and if there are any refreshToken,
expiresAt and scopes, in this spelling or that of OAuth (access_token).`,
		Example: `  kitbox secret set github                          type it
  gh auth token | kitbox secret set github
  kitbox secret set openai --env OPENAI_API_KEY
  kitbox secret set github --sandbox t --file ~/.config/token
  kitbox secret set cloud --command 'cloud-cli print-token' --approve
  kitbox secret set claude --oauth --file ~/.claude/.credentials.json
  printf 'me:%s' "$TOKEN" | kitbox secret set --registry ghcr.io`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usageError(cmd, "set takes the name of a SERVICE and no secret: what stands in arguments is seen by others; give it on stdin, or by --file, --env or --command")
			}
			if who.registry != "" {
				return none(cmd, args)
			}
			return one("SERVICE")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := sandbox.SecretsOf(e.Runtime)
			if err != nil {
				return err
			}
			ref := who.of("the registry")
			if who.registry == "" {
				ref.Service = args[0]
			}
			in := sandbox.SecretInput{OAuth: oauth}
			switch {
			case command != "":
				if oauth {
					return usageError(cmd, "--oauth and --command exclude each other")
				}
				if err := e.consent(cmd, approve, ref.Service); err != nil {
					return err
				}
				in.Command, in.Errors, in.Getenv = command, e.Stderr, e.getenv
			case env != "":
				value := e.getenv(env)
				if value == "" {
					return fmt.Errorf("the variable %s is empty or not set; nothing is kept", env)
				}
				in.Value, in.Source = strings.NewReader(value), "env "+env
			case file != "":
				f, err := os.Open(file)
				if err != nil {
					return err
				}
				defer f.Close()
				in.Value, in.Source = f, "file"
			default:
				if in.Value, in.Source, err = e.typed(cmd, ref.Service); err != nil {
					return err
				}
			}
			return k.SetSecret(cmd.Context(), ref, in)
		},
	}
	who.flags(cmd)
	who.registries(cmd)
	cmd.Flags().StringVar(&file, "file", "", "read the secret from `FILE`")
	cmd.Flags().StringVar(&env, "env", "", "read it from the variable `NAME` of this command's environment")
	cmd.Flags().StringVar(&command, "command", "", "run `COMMAND` with sh whenever a token is needed")
	cmd.Flags().BoolVar(&approve, "approve", false, "let the command of --command run on this host")
	cmd.Flags().BoolVar(&oauth, "oauth", false, "the secret is a JSON document with tokens")
	cmd.MarkFlagsMutuallyExclusive("file", "env", "command")
	return cmd
}

// consent asks for the word that a command may run, unless it was given.
func (e *Env) consent(cmd *cobra.Command, given bool, service string) error {
	if given {
		return nil
	}
	const what = "the command will run on this host, as you and outside every sandbox, whenever a sandbox needs a token"
	in := e.asking(cmd)
	if in == nil {
		return fmt.Errorf("secret %s: %s; give --approve to allow that: %w", service, what, kiterr.ErrWidening)
	}
	fmt.Fprintf(e.Stderr, "kitbox: %s. Allow that? [y/N] ", what)
	ok, err := yes(cmd.Context(), in)
	if err != nil {
		fmt.Fprintln(e.Stderr)
		return err
	}
	if !ok {
		return fmt.Errorf("secret %s: nothing is kept: %w", service, kiterr.ErrWidening)
	}
	return nil
}

// asking returns the terminal on which something may be asked; nil: none.
func (e *Env) asking(cmd *cobra.Command) *os.File {
	if no, err := cmd.Flags().GetBool("no-input"); err == nil && no {
		return nil
	}
	return terminal(e.Stdin)
}

// typed is stdin as the source of a secret: hidden while it is typed.
func (e *Env) typed(cmd *cobra.Command, service string) (io.Reader, string, error) {
	if terminal(e.Stdin) == nil {
		return e.Stdin, "stdin", nil
	}
	in := e.asking(cmd)
	if in == nil {
		return nil, "", fmt.Errorf("secret %s: nothing may be asked; give it on stdin, or by --file, --env or --command", service)
	}
	b, err := readHidden(cmd.Context(), in, func() { fmt.Fprintf(e.Stderr, "secret for %s (not shown): ", service) })
	fmt.Fprintln(e.Stderr)
	if err != nil {
		return nil, "", err
	}
	return strings.NewReader(string(b)), "terminal", nil
}

// maxTyped is the longest line that a terminal passes on, in bytes.
const maxTyped = 4095

// readHidden reads a line of a terminal that shows nothing from before the prompt
// on, and does again afterwards, also when ctx ends first.
func readHidden(ctx context.Context, f *os.File, prompt func()) ([]byte, error) {
	before, err := term.GetState(int(f.Fd()))
	if err != nil {
		return nil, err
	}
	if err := hush(f); err != nil {
		return nil, err
	}
	defer func() { _ = term.Restore(int(f.Fd()), before) }()
	prompt()
	type line struct {
		b   []byte
		err error
	}
	got := make(chan line, 1)
	go func() { // ends with the line, or with the process
		b, err := readLine(f)
		got <- line{b, err}
	}()
	select {
	case l := <-got:
		if errors.Is(l.err, io.EOF) {
			return nil, errors.New("nothing was typed; nothing is kept")
		}
		if l.err == nil && len(l.b) >= maxTyped {
			return nil, fmt.Errorf("a terminal cuts lines after %d bytes; give the secret on stdin, or by --file", maxTyped)
		}
		return l.b, l.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (e *Env) secretList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List what is kept, never what it is",
		Long: `Lists every secret that is kept: for which service and for whom, where it came
from, and how old it is. Nothing shows a secret itself.`,
		Example: `  kitbox secret ls
  kitbox secret ls --json | jq -r '.[] | select(.scope == "sandbox") | .for'`,
		Args: none,
		RunE: func(cmd *cobra.Command, _ []string) error {
			k, err := sandbox.SecretsOf(e.Runtime)
			if err != nil {
				return err
			}
			// One that cannot be read is an error beside the others.
			secrets, failed := k.Secrets(cmd.Context())
			if asJSON {
				err = writeJSON(e.Stdout, secrets)
			} else {
				w := tabwriter.NewWriter(e.Stdout, 0, 8, 3, ' ', 0)
				fmt.Fprintln(w, "SERVICE\tFOR\tFORM\tSOURCE\tSET")
				for _, s := range secrets {
					to := "all sandboxes"
					if s.Scope != "global" {
						to = s.Scope + " " + s.For
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s ago\n", printable(s.Service), printable(to), s.Form, printable(s.Source), ageText(time.Since(s.Set)))
				}
				err = w.Flush()
			}
			return errors.Join(failed, err)
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

// ageText is d in its largest unit.
func ageText(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(int(d.Seconds()), 0))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

func (e *Env) secretRemove() *cobra.Command {
	var who whose
	cmd := &cobra.Command{
		Use:   "rm [options] SERVICE...",
		Short: "Delete secrets",
		Long: `Deletes the secret for each SERVICE that was set with the same --sandbox or --kit;
without either, the one for all sandboxes. No request that a sandbox begins after
that is given it. What was sent before, the service has: withdraw the secret there
if that matters.`,
		Example: `  kitbox secret rm github
  kitbox secret rm --sandbox t github openai`,
		Args: func(cmd *cobra.Command, args []string) error {
			if who.registry != "" {
				return none(cmd, args)
			}
			return atLeastOne("SERVICE")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := sandbox.SecretsOf(e.Runtime)
			if err != nil {
				return err
			}
			if who.registry != "" {
				return k.RemoveSecret(cmd.Context(), who.of(""))
			}
			var errs []error
			for _, service := range args {
				if err := k.RemoveSecret(cmd.Context(), who.of(service)); err != nil {
					errs = append(errs, err)
				}
			}
			return errors.Join(errs...)
		},
	}
	who.flags(cmd)
	who.registries(cmd)
	return cmd
}

func (e *Env) secretImport() *cobra.Command {
	var who whose
	cmd := &cobra.Command{
		Use:   "import [options] FILE NAME=SERVICE...",
		Short: "Keep secrets out of a file of variables",
		Long: `Reads FILE, which has lines of NAME=value as a .env file does, and keeps the value
of each NAME given as the secret for its SERVICE; nothing else of the file. FILE - is
stdin. If one NAME is missing, or its value cannot be a secret, nothing is kept.`,
		Example: `  kitbox secret import .env GH_TOKEN=github OPENAI_API_KEY=openai
  kitbox secret import --sandbox t - TOKEN=service < secrets.env`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usageError(cmd, "import takes a FILE and what to take of it, as NAME=SERVICE")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			names := map[string]string{}
			for _, a := range args[1:] {
				name, service, ok := strings.Cut(a, "=")
				if !ok || name == "" || service == "" {
					return usageError(cmd, "%q is not NAME=SERVICE", a)
				}
				names[name] = service
			}
			k, err := sandbox.SecretsOf(e.Runtime)
			if err != nil {
				return err
			}
			in := e.Stdin
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer f.Close()
				in = f
			}
			return k.ImportSecrets(cmd.Context(), who.of(""), in, names)
		},
	}
	who.flags(cmd)
	return cmd
}
