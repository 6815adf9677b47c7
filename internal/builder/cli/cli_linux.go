// Package cli is the command line of kit-builder: it reads flags and requests,
// calls package builder, and says what came of it. Results are JSON documents on
// standard output, one per run; progress and errors go to standard error.
package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/opencontainers/go-digest"
	"github.com/sirupsen/logrus"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/builder"
	"github.com/kitbox-dev/kitbox/internal/child"
	"github.com/kitbox-dev/kitbox/internal/driver/namespace/rootless"
	"github.com/kitbox-dev/kitbox/internal/frontend"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec/annotation"
)

const usage = `kit-builder builds Kits with a private BuildKit that starts when it is needed.

Usage:
  kit-builder build [flags] DIR     build the Kit in DIR into the image store
  kit-builder build --request -     the same, with the request as JSON on stdin
  kit-builder status                say whether a builder runs, and its cache
  kit-builder stop                  end it, and the builds it runs; fine if none runs
  kit-builder prune                 drop the build cache that is not in use
  kit-builder serve                 run a builder in the foreground

The image store and the builder are in $KITBOX_HOME (--home), by default
$XDG_STATE_HOME/kitbox. Steps of a recipe have no network unless you give them
one: --network public lets them reach hosts by name at public addresses, and
--network host all that this machine can, services on its loopback included.

A builder ends five minutes after its last build (--idle). Its cache is kept
below 10 GiB (--cache-bytes): what has not been used for long is dropped a minute
after a build at the latest, and when the builder ends.

Exit status: 0 done, 2 the Kit is refused, 130 interrupted, 1 anything else.
Run "kit-builder COMMAND --help" for the flags.
`

// Main runs the command line args and returns its exit status. What stamp says is
// put on the images.
func Main(stamp frontend.Builder, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	logrus.SetLevel(logrus.ErrorLevel) // the libraries' remarks are not for users
	err := run(ctx, stamp, args, stdin, stdout, stderr)
	var told *toldError
	switch {
	case err == nil || errors.As(err, &told) || errors.Is(err, flag.ErrHelp):
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "kit-builder: interrupted")
		err = context.Canceled
	default:
		fmt.Fprintln(stderr, "kit-builder:", err)
	}
	if errors.Is(err, flag.ErrHelp) {
		return kiterr.StatusOK
	}
	return kiterr.ExitCode(err)
}

// A toldError has been shown already.
type toldError struct{ error }

func (e *toldError) Unwrap() error { return e.error }

func run(ctx context.Context, stamp frontend.Builder, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return &toldError{errors.New("no command")}
	}
	command, args := args[0], args[1:]
	fs := flag.NewFlagSet("kit-builder "+command, flag.ContinueOnError)
	fs.SetOutput(stderr)
	home := fs.String("home", defaultHome(), "directory of the image store and the builder")
	switch command {
	case "help", "--help", "-h":
		fmt.Fprint(stdout, usage)
		return nil
	case "build":
		return build(ctx, stamp, fs, home, args, stdin, stdout, stderr)
	case "version", "--version":
		v := stamp.Version
		if v == "" {
			v = "dev"
		}
		fmt.Fprintln(stdout, "kit-builder", v, stamp.Revision)
		return nil
	case "serve":
		return serve(ctx, stamp, fs, home, args)
	case "status", "stop", "prune":
		if err := parse(fs, args, 0); err != nil {
			return err
		}
		dir, err := builder.Dir(*home)
		if err != nil {
			return err
		}
		switch command {
		case "stop":
			err := builder.Stop(ctx, dir)
			if errors.Is(err, kiterr.ErrNotRunning) {
				fmt.Fprintf(stderr, "kit-builder: no builder runs in %s\n", dir)
				return nil // what was asked for is so
			}
			return err
		case "prune":
			freed, err := builder.Prune(ctx, dir)
			if err != nil {
				return err
			}
			return writeJSON(stdout, struct {
				FreedBytes int64 `json:"freedBytes"`
			}{freed})
		}
		s, err := builder.ReadStatus(ctx, dir)
		if err != nil {
			return err
		}
		return writeJSON(stdout, s)
	}
	fmt.Fprint(stderr, usage)
	return fmt.Errorf("there is no command %q", command)
}

// defaultHome is the home that kitbox uses, or empty if there is none.
func defaultHome() string {
	if h := os.Getenv("KITBOX_HOME"); h != "" {
		return h
	}
	if s := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(s) {
		return filepath.Join(s, "kitbox")
	}
	if h, err := os.UserHomeDir(); err == nil {
		return filepath.Join(h, ".local", "state", "kitbox")
	}
	return ""
}

func parse(fs *flag.FlagSet, args []string, most int) error {
	if err := fs.Parse(args); err != nil {
		return &toldError{err}
	}
	if fs.NArg() > most {
		return fmt.Errorf("unexpected argument %q", fs.Arg(most))
	}
	return nil
}

func writeJSON(w io.Writer, v any) error {
	b, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// A document is what build prints. Exactly one of its fields is set.
type document struct {
	Result *builder.Result  `json:"result,omitzero"`
	Error  *builder.Failure `json:"error,omitzero"`
}

func build(ctx context.Context, stamp frontend.Builder, fs *flag.FlagSet, home *string, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	r := builder.Request{Args: map[string]string{}, Labels: map[string]string{}}
	request := fs.String("request", "", "read the request as JSON from this `file`, - is stdin; other flags but --progress are ignored")
	progress := fs.String("progress", "auto", "how to show progress: auto, tty, plain, json, quiet")
	fs.StringVar(&r.Descriptor, "descriptor", "", "descriptor `file` in DIR (default: found by name)")
	fs.StringVar(&r.Layout, "layout", "", "OCI layout `directory` to build into (default: images in the home)")
	fs.StringVar(&r.Tag, "tag", "", "`name` of the image in the layout")
	fs.StringVar(&r.Platform, "platform", "", "OCI `platform`, or several with commas between (default: this machine's)")
	fs.Func("pull", "`when` to ask registries about images of the recipe: always (default), missing or never", func(s string) error {
		r.Pull = fetch.Policy(s)
		return nil
	})
	const network = "`network` of RUN steps: none, public (hosts by name, not this machine), or host"
	fs.StringVar(&r.Network, "network", builder.NetworkNone, network)
	fs.StringVar(&r.Network, "build-network", builder.NetworkNone, "the same as --network")
	fs.StringVar(&r.Builder, "builder", "", "`address` of another BuildKit, unix://… or tcp://…")
	fs.BoolVar(&r.NoCache, "no-cache", false, "run every step again")
	fs.Func("idle", "how long, `5m`, a builder started for this stays unused", func(s string) error {
		d, err := time.ParseDuration(s)
		r.IdleSeconds = d.Seconds()
		return err
	})
	fs.Int64Var(&r.CacheBytes, "cache-bytes", 0, "size of the cache of a builder started for this")
	fs.Var(pairs(r.Args), "arg", "value of a Kit arg, `NAME=VALUE`, repeatable")
	fs.Var(pairs(r.Labels), "label", "label of the image, `NAME=VALUE`, repeatable")
	fs.Func("context", "image for FROM, `NAME=DIR@sha256:…` of an OCI layout, repeatable", func(s string) error {
		name, rest, _ := strings.Cut(s, "=")
		i := strings.LastIndexByte(rest, '@')
		if name == "" || i <= 0 {
			return errors.New("want NAME=DIR@sha256:…")
		}
		r.Contexts = append(r.Contexts, builder.NamedContext{Name: name, Layout: rest[:i], Digest: digest.Digest(rest[i+1:])})
		return nil
	})
	if err := parse(fs, args, 1); err != nil {
		return err
	}
	r.Home, r.Context = *home, fs.Arg(0)
	if *request != "" {
		in := stdin
		if *request != "-" {
			f, err := os.Open(*request)
			if err != nil {
				return err
			}
			defer f.Close()
			in = f
		}
		r = builder.Request{}
		if err := json.UnmarshalRead(in, &r, json.RejectUnknownMembers(true)); err != nil {
			return fmt.Errorf("reading the request: %w", err)
		}
	}
	if err := lasting(time.Duration(r.IdleSeconds*float64(time.Second)), r.CacheBytes); err != nil {
		return err
	}
	show := builder.Progress{Mode: *progress, Out: stderr}
	if err := show.Check(); err != nil {
		return err
	}
	r.Frontend = stamp
	var res *builder.Result
	epoch, err := annotation.ParseEpoch(os.Getenv("SOURCE_DATE_EPOCH"))
	if err == nil {
		if r.SourceDateEpoch == nil {
			r.SourceDateEpoch = epoch // a request comes with the environment of whoever makes it
		}
		res, err = builder.Build(ctx, r, show)
	}
	if err == nil {
		return writeJSON(stdout, document{Result: res})
	}
	f := builder.AsFailure(err)
	if werr := writeJSON(stdout, document{Error: f}); werr != nil {
		return errors.Join(err, werr)
	}
	if *request != "" {
		return &toldError{err} // the program that asked tells it
	}
	if ctx.Err() == nil {
		fmt.Fprint(stderr, f.Excerpt)
	}
	return err
}

// pairs is a flag that collects NAME=VALUE.
type pairs map[string]string

func (p pairs) String() string { return "" }

func (p pairs) Set(s string) error {
	name, v, ok := strings.Cut(s, "=")
	if !ok || name == "" {
		return errors.New("want NAME=VALUE")
	}
	p[name] = v
	return nil
}

// lasting judges how long a builder stays and what its cache may take. Zero is the
// default; less would be it too, which nobody who writes it means.
func lasting(idle time.Duration, cacheBytes int64) error {
	switch {
	case idle < 0:
		return fmt.Errorf("idle: %v is no time to wait; give one such as 5m, or 0 for %v", idle, builder.DefaultIdle)
	case cacheBytes < 0:
		return fmt.Errorf("cache-bytes: %d bounds nothing; give a number of bytes, or 0 for %d", cacheBytes, int64(builder.DefaultCacheBytes))
	}
	return nil
}

func serve(ctx context.Context, stamp frontend.Builder, fs *flag.FlagSet, home *string, args []string) error {
	o := builder.ServeOptions{Frontend: stamp}
	fs.StringVar(&o.Dir, "dir", "", "directory of the builder (default: builder in the home)")
	fs.DurationVar(&o.Idle, "idle", builder.DefaultIdle, "how long to stay with no client")
	fs.Int64Var(&o.CacheBytes, "cache-bytes", builder.DefaultCacheBytes, "bound of the build cache")
	readyFD := fs.Int("ready-fd", -1, "for the program that starts a builder: where to say that it is up")
	if err := parse(fs, args, 0); err != nil {
		return err
	}
	if err := lasting(o.Idle, o.CacheBytes); err != nil {
		return err
	}
	if o.Dir == "" {
		dir, err := builder.Dir(*home)
		if err != nil {
			return err
		}
		o.Dir = dir
	}
	if os.Getpid() != 1 {
		return builder.Foreground(ctx, o)
	}
	// Of whoever wants something built: not to be held for as long as a builder waits
	// for the next.
	if err := child.CloseInherited(3, *readyFD, rootless.LifeFD()); err != nil {
		return err
	}
	if *readyFD >= 0 {
		syscall.CloseOnExec(*readyFD)
		o.Ready = os.NewFile(uintptr(*readyFD), "ready")
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	start := time.Now()
	err := builder.Serve(ctx, o)
	slog.Info("builder ended", "after", time.Since(start).Round(time.Millisecond), "err", err)
	return err
}
