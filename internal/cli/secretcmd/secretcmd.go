// Package secretcmd is "kitbox secret", which keeps secrets for services. A secret passes through it as a reader: it is
// shown nowhere, and never an argument.
package secretcmd

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/internal/cli/argument"
	"github.com/kitbox-dev/kitbox/internal/cli/option"
	"github.com/kitbox-dev/kitbox/internal/cli/output"
	"github.com/kitbox-dev/kitbox/internal/cli/world"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// New makes "kitbox secret".
func New(e *world.Env) *cobra.Command {
	return argument.Holder(&cobra.Command{
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
	}, secretSet(e), secretList(e), secretRemove(e), secretImport(e))
}

// whose are the options that say whom a secret is for.
type whose struct{ sandbox, kit, registry string }

func (w *whose) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&w.sandbox, "sandbox", "", "only for the sandbox `NAME`, which need not exist yet; it goes when that is removed")
	cmd.Flags().StringVar(&w.kit, "kit", "", "only for the Kit `REF`, whatever its version")
	option.Exclusive(cmd, "sandbox", "kit")
}

// registries is for commands that take the login of a registry, too, in which no
// service is named.
func (w *whose) registries(cmd *cobra.Command) {
	cmd.Flags().StringVar(&w.registry, "registry", "", "your login USER:PASSWORD for the image registry `HOST`, for no sandbox; SERVICE is left out")
	option.Exclusive(cmd, "sandbox", "registry")
	option.Exclusive(cmd, "kit", "registry")
}

func (w *whose) of(service string) sandbox.SecretRef {
	return sandbox.SecretRef{Service: service, Sandbox: w.sandbox, Kit: w.kit, Registry: w.registry}
}

func secretSet(e *world.Env) *cobra.Command {
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
				return argument.Mistake(cmd, "set takes the name of a SERVICE and no secret: what stands in arguments is seen by others; give it on stdin, or by --file, --env or --command")
			}
			if who.registry != "" {
				return argument.None(cmd, args)
			}
			return argument.One("SERVICE")(cmd, args)
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
					return argument.Mistake(cmd, "--oauth and --command exclude each other")
				}
				if err := consent(e, cmd, approve, ref.Service); err != nil {
					return err
				}
				in.Command, in.Errors, in.Getenv = command, e.Stderr, e.Variable
			case env != "":
				value := e.Variable(env)
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
				if in.Value, in.Source, err = typed(e, cmd, ref.Service); err != nil {
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
	option.Exclusive(cmd, "file", "env", "command")
	return cmd
}

func secretList(e *world.Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List what is kept, never what it is",
		Long: `Lists every secret that is kept: for which service and for whom, where it came
from, and how old it is. Nothing shows a secret itself.`,
		Example: `  kitbox secret ls
  kitbox secret ls --json | jq -r '.[] | select(.scope == "sandbox") | .for'`,
		Args: argument.None,
		RunE: func(cmd *cobra.Command, _ []string) error {
			k, err := sandbox.SecretsOf(e.Runtime)
			if err != nil {
				return err
			}
			// One that cannot be read is an error beside the others.
			secrets, failed := k.Secrets(cmd.Context())
			if asJSON {
				err = output.JSON(e.Stdout, secrets)
			} else {
				w := output.Table(e.Stdout, "SERVICE", "FOR", "FORM", "SOURCE", "SET")
				for _, s := range secrets {
					to := "all sandboxes"
					if s.Scope != "global" {
						to = s.Scope + " " + s.For
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s ago\n", output.Printable(s.Service), output.Printable(to), s.Form, output.Printable(s.Source), output.Age(time.Since(s.Set)))
				}
				err = w.Flush()
			}
			return errors.Join(failed, err)
		},
	}
	option.JSONVar(cmd, &asJSON)
	return cmd
}

func secretRemove(e *world.Env) *cobra.Command {
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
		ValidArgsFunction: who.services(e),
		Args: func(cmd *cobra.Command, args []string) error {
			if who.registry != "" {
				return argument.None(cmd, args)
			}
			return argument.AtLeastOne("SERVICE")(cmd, args)
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

// services completes the service of a secret that is kept for whom the options say.
func (w *whose) services(e *world.Env) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if w.registry != "" {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		k, err := sandbox.SecretsOf(e.Runtime)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		// One that cannot be read keeps none of the others from being offered.
		secrets, _ := k.Secrets(cmd.Context())
		scope, of := "global", ""
		switch {
		case w.sandbox != "":
			scope, of = "sandbox", w.sandbox
		case w.kit != "":
			scope, of = "kit", w.kit
		}
		var offered []string
		for _, s := range secrets {
			if s.Scope == scope && (of == "" || scope == "kit" || s.For == of) && !slices.Contains(args, s.Service) {
				offered = append(offered, s.Service)
			}
		}
		slices.Sort(offered)
		return slices.Compact(offered), cobra.ShellCompDirectiveNoFileComp
	}
}

func secretImport(e *world.Env) *cobra.Command {
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
				return argument.Mistake(cmd, "import takes a FILE and what to take of it, as NAME=SERVICE")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			names := map[string]string{}
			for _, a := range args[1:] {
				name, service, ok := strings.Cut(a, "=")
				if !ok || name == "" || service == "" {
					return argument.Mistake(cmd, "%q is not NAME=SERVICE", a)
				}
				names[name] = service
			}
			k, err := sandbox.SecretsOf(e.Runtime)
			if err != nil {
				return err
			}
			in := cmd.InOrStdin()
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
