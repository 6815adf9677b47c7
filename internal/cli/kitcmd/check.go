package kitcmd

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/internal/authoring"
	"github.com/kitbox-dev/kitbox/internal/cli/argument"
	"github.com/kitbox-dev/kitbox/internal/cli/option"
	"github.com/kitbox-dev/kitbox/internal/cli/output"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/constraint"
	"github.com/kitbox-dev/kitbox/spec/content"
	"github.com/kitbox-dev/kitbox/spec/lint"
)

// A finding is one about a file. ID is set for what can be silenced.
type finding struct {
	Severity  spec.Severity `json:"severity"`
	Stage     string        `json:"stage"`
	Path      string        `json:"path"`
	Message   string        `json:"message"`
	File      string        `json:"file"`
	Line      int           `json:"line"`
	Column    int           `json:"column"`
	Statement string        `json:"statement"`
	ID        string        `json:"id,omitzero"`

	excerpt string
}

func asFinding(d spec.Diagnostic, id string) finding {
	return finding{d.Severity, d.Stage, d.Path, d.Message, d.File, d.Line, d.Column, d.Statement, id, d.Excerpt}
}

// A judge checks descriptors.
type judge struct {
	form   capability.Form
	ignore []string
	in     io.Reader

	findings []finding
	failed   bool // something could not be read
	files    int
}

func parseForm(s string) (capability.Form, bool) {
	for _, f := range []capability.Form{capability.Authored, capability.Published, capability.Effective} {
		if s == f.String() {
			return f, true
		}
	}
	return 0, false
}

func check() *cobra.Command {
	var form string
	var ignore []string
	var asJSON, strict, rules bool
	cmd := &cobra.Command{
		Use:   "check FILE|DIR...",
		Short: "Judge descriptors, and warn of what will surprise",
		Long: `Judges descriptors and prints every finding with its place. Errors are what the
format refuses. Warnings are about what is valid and will not do what its author
thinks; each has an id, and can be silenced by --ignore ID or by a comment in the
descriptor:

  # kit:ignore hook-env-undeclared the base image sets it

A directory is searched, with all below it, for descriptors. Of a descriptor as
authored, the files that it names are looked for too; that a workload has no
recipe is an error in a directory and a warning for a file named alone. "-" is
standard input.

Exit status: 0 no errors, 1 something could not be read, 2 errors, or warnings
with --strict.`,
		Example: `  kitbox kit check ./my-kit
  kitbox kit check --strict --ignore workload-base kits/
  kitbox kit check --json . | jq -r '.findings[] | select(.severity == "error") | .message'
  kitbox kit check --rules`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if rules {
				return listRules(cmd.OutOrStdout(), asJSON)
			}
			if len(args) == 0 {
				return argument.Mistake(cmd, "check takes a file or a directory")
			}
			j := &judge{ignore: ignore, in: cmd.InOrStdin()}
			var ok bool
			if j.form, ok = parseForm(form); !ok {
				return argument.Mistake(cmd, "--form %q is none of authored, published and effective", form)
			}
			for _, id := range ignore {
				if !lint.Known(id) {
					return argument.Mistake(cmd, "--ignore %q names no rule", id)
				}
			}
			for _, arg := range args {
				j.arg(arg)
			}
			// What was not read for an interruption is no finding.
			if err := cmd.Context().Err(); err != nil {
				return err
			}
			errs, warnings := j.count()
			bad := errs > 0 || strict && warnings > 0
			if asJSON {
				if j.findings == nil {
					j.findings = []finding{}
				}
				report := struct {
					OK       bool      `json:"ok"`
					Findings []finding `json:"findings"`
				}{!bad && !j.failed, j.findings}
				if err := output.JSON(cmd.OutOrStdout(), report); err != nil {
					return err
				}
			} else {
				for _, f := range j.findings {
					writeFinding(cmd.OutOrStdout(), f)
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s, %s\n", plural(j.files, "descriptor"), plural(errs, "error"), plural(warnings, "warning"))
			}
			switch {
			case j.failed:
				return kiterr.ExitStatus(kiterr.StatusFailed)
			case bad:
				return kiterr.ExitStatus(kiterr.StatusRefused)
			}
			return nil
		},
	}
	option.JSONVar(cmd, &asJSON)
	cmd.Flags().StringVar(&form, "form", "authored", formUsage)
	cmd.Flags().StringSliceVar(&ignore, "ignore", nil, "leave out the warnings of rule `ID` (repeatable)")
	cmd.Flags().BoolVar(&strict, "strict", false, "let warnings fail like errors")
	cmd.Flags().BoolVar(&rules, "rules", false, "list the rules that warn, with their ids")
	return cmd
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func listRules(w io.Writer, asJSON bool) error {
	if asJSON {
		type rule struct {
			ID        string `json:"id"`
			Summary   string `json:"summary"`
			Statement string `json:"statement,omitzero"`
		}
		out := []rule{}
		for _, r := range lint.Rules() {
			out = append(out, rule(r))
		}
		return output.JSON(w, out)
	}
	for _, r := range lint.Rules() {
		fmt.Fprintf(w, "%-34s %s\n", r.ID, r.Summary)
	}
	return nil
}

func (j *judge) count() (errs, warnings int) {
	for _, f := range j.findings {
		if f.Severity == spec.Error {
			errs++
		} else {
			warnings++
		}
	}
	return errs, warnings
}

func (j *judge) arg(arg string) {
	files, err := find(arg)
	alone := len(files) == 1 && files[0] == arg
	for _, f := range files {
		j.file(f, alone)
	}
	if err != nil {
		j.unreadable(arg, err)
	}
}

// unreadable notes that there was nothing to judge. For readers of the JSON
// form it is a finding of the stage that it kept from happening.
func (j *judge) unreadable(name string, err error) {
	j.failed = true
	message := strings.ReplaceAll(strings.TrimPrefix(err.Error(), name+": "), "\n", "; ")
	j.findings = append(j.findings, finding{Severity: spec.Error, Stage: spec.StageDecode, Message: "could not be read: " + message, File: name})
}

// file judges one descriptor. One that was named alone may yet get a companion,
// one found in a Kit's directory has had its chance.
func (j *judge) file(name string, alone bool) {
	data, err := read(name, j.in)
	if err != nil {
		j.unreadable(name, err)
		return
	}
	j.files++
	d, ds := spec.Decode(data, spec.Options{File: name, Form: j.form})
	if d == nil {
		j.add(ds, nil)
		return
	}
	ds = append(ds, d.Validate()...)
	silenced := lint.Ignored(d)
	c := layers{}
	if j.form == capability.Authored && len(data) <= spec.MaxBytes {
		c, err = layersOf(d, name)
		if alone && errors.Is(err, content.ErrNoContent) {
			err = nil
			j.warn(d, silenced, lint.WorkloadWithoutContent, "kind", noContent(name))
		}
		judged := ds
		for _, dg := range besides(d, err, name) {
			if !slices.ContainsFunc(judged, func(g spec.Diagnostic) bool { return g.Path == dg.Path }) {
				ds = append(ds, dg)
			}
		}
	}
	j.add(ds, silenced)
	if c.unused != "" {
		at := "kind"
		for key, stated := range map[string]bool{"build": d.Build != "", "dockerfile": d.Dockerfile != "", "kits": d.Kits != nil} {
			if stated {
				at = key
			}
		}
		j.warn(d, silenced, lint.CompanionUnused, at, fmt.Sprintf("%s lies beside this descriptor and is not used: remove it, or leave %s out", c.unused, at))
	}
	for _, f := range lint.Check(d, lint.Options{Names: names(name), Recipe: c.recipe, Ignore: j.ignore}) {
		j.findings = append(j.findings, asFinding(f.Diagnostic, f.ID))
	}
}

// warn adds a warning about files, unless it is silenced.
func (j *judge) warn(d *spec.Document, silenced map[string]bool, id, at, message string) {
	if silenced[id] || slices.Contains(j.ignore, id) {
		return
	}
	j.findings = append(j.findings, asFinding(d.Place(spec.Diagnostic{Severity: spec.Warning, Stage: spec.StageValidate, Path: at, Message: message}), id))
}

func noContent(name string) string {
	return fmt.Sprintf("a workload must have content: write the recipe %s, or put it into build", path.Base(authoring.Companion(name)))
}

// add takes over findings of package spec. Its warnings can be silenced like
// those of the linter.
func (j *judge) add(ds spec.Diagnostics, silenced map[string]bool) {
	for _, d := range ds {
		id := lint.ID(d)
		if id == "" || !silenced[id] && !slices.Contains(j.ignore, id) {
			j.findings = append(j.findings, asFinding(d, id))
		}
	}
}

// besides judges the files that a descriptor, as authored, depends on. Missing
// is what the search for its content came to.
func besides(d *spec.Document, missing error, name string) spec.Diagnostics {
	if name == stdin {
		return nil
	}
	var ds spec.Diagnostics
	fail := func(at, statement, message string) {
		ds = append(ds, d.Place(spec.Diagnostic{Severity: spec.Error, Stage: spec.StageValidate, Path: at, Statement: statement, Message: message}))
	}
	switch {
	case errors.Is(missing, content.ErrNoRecipe) && filepath.IsLocal(filepath.FromSlash(d.Dockerfile)):
		fail("dockerfile", "", fmt.Sprintf("there is no recipe %q beside the descriptor", d.Dockerfile))
	case errors.Is(missing, content.ErrNoContent):
		fail("kind", "SPEC-v3 §3.5/workload-has-content", noContent(name))
	}
	_, files, err := content.Stage(d.Descriptor, authoring.Stem(name))
	for _, f := range files {
		if !beside(name, f.From) {
			fail(f.At, "", fmt.Sprintf("there is no file %q beside the descriptor", f.From))
		}
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			at, message, _ := strings.Cut(e.Error(), ": ")
			fail(at, "", message)
		}
	}
	return ds
}

// writeFinding prints one finding: a line with its place, and the source.
func writeFinding(w io.Writer, f finding) {
	line := f.File + ":"
	if f.Line > 0 {
		line += fmt.Sprintf("%d:%d:", f.Line, f.Column)
	}
	line += " " + string(f.Severity) + ": "
	if f.Path != "" {
		line += f.Path + ": "
	}
	line += f.Message
	switch {
	case f.ID != "":
		line += " [" + f.ID + "]"
	case f.Statement != "":
		line += " [" + f.Statement + "]"
	}
	fmt.Fprintln(w, output.Printable(line))
	if strings.TrimSpace(f.excerpt) == "^" {
		return // an empty line says nothing
	}
	for l := range strings.Lines(f.excerpt) {
		fmt.Fprintln(w, "    "+excerpt(l))
	}
}

// excerpt is a line of a file for a terminal; its tabs stay, since the mark under it
// has them, too.
func excerpt(line string) string {
	cells := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
	for i, c := range cells {
		cells[i] = output.Printable(c)
	}
	return strings.TrimRight(strings.Join(cells, "\t"), " \t")
}

// load reads one descriptor that a command is to show: a file's, or that of a
// published Kit, whose form is what it is. Findings that make it unusable are
// printed, and the error then is silent.
func (lookup Lookup) load(cmd *cobra.Command, arg string, form capability.Form) (*spec.Document, string, error) {
	name, data := arg, []byte(nil)
	var err error
	if lookup != nil && isReference(arg) {
		form = capability.Published
		if data, err = lookup(cmd.Context(), arg); err != nil {
			return nil, "", err
		}
	} else {
		if name, err = findOne(arg); err != nil {
			return nil, "", err
		}
		if data, err = read(name, cmd.InOrStdin()); err != nil {
			return nil, "", err
		}
	}
	d, ds := spec.Decode(data, spec.Options{File: name, Form: form})
	if d != nil {
		ds = append(ds, d.Validate()...)
	}
	if err := refuse(cmd, ds); err != nil {
		return nil, "", err
	}
	if d == nil {
		return nil, "", errors.New(name + ": nothing to read")
	}
	return d, name, nil
}

// isReference reports whether arg names an image of a registry: it has a registry
// in it, and there is no file of that name.
func isReference(arg string) bool {
	host, _, ok := strings.Cut(arg, "/")
	if !ok || !strings.ContainsAny(host, ".:") && host != "localhost" {
		return false
	}
	if _, err := constraint.ParseImage(arg); err != nil {
		return false
	}
	_, err := os.Lstat(arg)
	return errors.Is(err, fs.ErrNotExist)
}

// refuse prints the errors among ds on stderr. The error it returns for them is
// their exit status alone.
func refuse(cmd *cobra.Command, ds spec.Diagnostics) error {
	if !ds.HasErrors() {
		return nil
	}
	for _, dg := range ds {
		if dg.Severity == spec.Error {
			writeFinding(cmd.ErrOrStderr(), asFinding(dg, ""))
		}
	}
	return kiterr.ExitStatus(kiterr.StatusRefused)
}
