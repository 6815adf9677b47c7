package artifact

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kitbox-dev/kitbox/tck"
)

// The exit statuses of the commands.
const (
	exitOK       = 0
	exitFindings = 1
	exitUnjudged = 3 // a wrong call, or an artifact that cannot be read
)

// settings are the flags of a command.
type settings struct {
	Options
	ref, format, color string
	verbose            bool
	dockerfile         bool // inspect: the staged recipe alone
}

func parse(name string, args []string, stderr io.Writer) (*settings, error) {
	s := &settings{color: "auto"}
	f := flag.NewFlagSet("kit-tck "+name, flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&s.Layout, "layout", "", "take REF, a tag or digest, from the OCI image layout `DIR`")
	f.BoolVar(&s.PlainHTTP, "plain-http", false, "speak HTTP without TLS; on this machine's loopback that is the rule")
	f.StringVar(&s.format, "format", "text", "text or json")
	switch name {
	case "validate":
		f.StringVar(&s.Platform, "platform", "", "judge only `OS/ARCH[/VARIANT]` of an index")
		f.BoolVar(&s.Kits, "kits", false, "of a set, also read the manifests of its Kits from their registries; in a layout they are found without")
		f.BoolVar(&s.verbose, "verbose", false, "also list what passed, was skipped or waived")
		f.StringVar(&s.color, "color", "auto", "auto, always or never")
	case "inspect":
		f.StringVar(&s.Platform, "platform", "", "show only `OS/ARCH[/VARIANT]` of an index")
		f.BoolVar(&s.dockerfile, "dockerfile", false, "print the recipe that the Kit stages, byte for byte, and nothing else")
	}
	f.Usage = func() {
		fmt.Fprintf(stderr, "usage: kit-tck %s REF [flags]\n", name)
		f.PrintDefaults()
	}
	var refs []string
	for { // flags may stand behind REF
		if err := f.Parse(args); err != nil {
			return nil, err
		}
		if f.NArg() == 0 {
			break
		}
		refs, args = append(refs, f.Arg(0)), f.Args()[1:]
	}
	switch {
	case len(refs) != 1:
		return nil, fmt.Errorf("name exactly one artifact; usage: kit-tck %s REF [--layout DIR]", name)
	case s.format != "text" && s.format != "json":
		return nil, fmt.Errorf("--format is text or json, not %q", s.format)
	case s.dockerfile && s.format != "text":
		return nil, errors.New("--dockerfile prints the recipe alone; --format json without it has the recipe too")
	case s.color != "auto" && s.color != "always" && s.color != "never":
		return nil, fmt.Errorf("--color is auto, always or never, not %q", s.color)
	}
	s.ref = refs[0]
	return s, nil
}

// Validate is the command that judges one artifact. It returns 0 if nothing
// binding is broken, 1 if something is, 3 if the artifact could not be judged.
func Validate(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	s, err := parse("validate", args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	var r *Report
	if err == nil {
		r, err = judgeRef(ctx, s)
	}
	if err != nil {
		fmt.Fprintf(stderr, "kit-tck: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
		return exitUnjudged
	}
	if s.format == "json" {
		err = writeJSON(stdout, r)
	} else {
		err = r.write(stdout, s.verbose, colored(s.color, stdout))
	}
	if err != nil {
		fmt.Fprintf(stderr, "kit-tck: %v\n", err)
		return exitUnjudged
	}
	for _, why := range r.Unread {
		fmt.Fprintf(stderr, "kit-tck: --kits: %s\n", printable(strings.ReplaceAll(why, "\n", "; ")))
	}
	switch {
	case !r.OK():
		return exitFindings
	case len(r.Unread) > 0: // asked for, and not judged
		return exitUnjudged
	}
	return exitOK
}

func judgeRef(ctx context.Context, s *settings) (*Report, error) {
	a, err := Open(ctx, s.ref, s.Options)
	if err != nil {
		return nil, err
	}
	return Judge(ctx, a)
}

func writeJSON(w io.Writer, v any) error {
	b, err := json.Marshal(v, json.Deterministic(true), jsontext.WithIndent("  "))
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// colored decides about color. A pipe gets none, nor who asks for none by
// NO_COLOR.
func colored(mode string, w io.Writer) bool {
	if mode != "auto" {
		return mode == "always"
	}
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && terminal(w)
}

func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}

var colors = map[tck.Outcome]string{tck.Fail: "31", tck.Warn: "33", tck.Pass: "32", tck.Skipped: "2", tck.Waived: "2"}

// write prints findings, warnings apart, and a tally at the end.
func (r *Report) write(w io.Writer, verbose, color bool) error {
	var b strings.Builder
	paint := func(o tck.Outcome) string {
		s := fmt.Sprintf("%-6s", o)
		if color {
			return "\x1b[" + colors[o] + "m" + s + "\x1b[0m"
		}
		return s
	}
	kind := r.Kind
	if kind == "" {
		kind = "image"
	}
	fmt.Fprintf(&b, "kit-tck %s\n", tck.Stamp())
	fmt.Fprintf(&b, "%s  %s  %s  %s\n", printable(r.Ref), r.Digest, kind, printable(strings.Join(r.Platforms, ", ")))
	if verbose {
		for _, v := range r.Verdicts {
			if v.Outcome == tck.Fail || v.Outcome == tck.Warn {
				continue
			}
			fmt.Fprintf(&b, "%s %s: %s", paint(v.Outcome), v.Statement, v.Check)
			if v.Message != "" {
				fmt.Fprintf(&b, " (%s)", printable(v.Message))
			}
			b.WriteByte('\n')
		}
	}
	for _, o := range []tck.Outcome{tck.Fail, tck.Warn} {
		for _, f := range r.Findings {
			if f.Outcome != o {
				continue
			}
			fmt.Fprintf(&b, "%s %s", paint(o), f.Statement)
			if f.Platform != "" {
				fmt.Fprintf(&b, " [%s]", printable(f.Platform))
			}
			if f.At != "" {
				fmt.Fprintf(&b, " %s", printable(f.At))
			}
			fmt.Fprintf(&b, ": %s\n", printable(f.Message))
		}
	}
	t := r.Tally
	fmt.Fprintf(&b, "%d passed, %d failed, %d warnings, %d skipped, %d waived\n", t.Passed, t.Failed, t.Warnings, t.Skipped, t.Waived)
	_, err := io.WriteString(w, b.String())
	return err
}

// printable keeps what an artifact says from steering a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '�'
		}
		return r
	}, s)
}
