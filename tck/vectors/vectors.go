// Package vectors runs recorded inputs through the grammar libraries and holds
// the results against the recorded verdicts.
//
// A vector file is a JSON array of {id, area, input, expect, …}. The areas and
// the shape of their inputs are those of the files that ship with the
// specification. Tags that name kinds of errors belong to whoever wrote the
// file; only that there is an error, its stage and its path are compared.
package vectors

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// A Vector is one recorded input. Fields that only explain are kept out.
type Vector struct {
	ID     string         `json:"id"`
	Area   string         `json:"area"`
	Input  jsontext.Value `json:"input"`
	Expect jsontext.Value `json:"expect"`
}

// A Verdict compares one vector with what the libraries say.
type Verdict struct {
	ID   string         `json:"id"`
	OK   bool           `json:"ok"`
	Want jsontext.Value `json:"want"`
	Got  jsontext.Value `json:"got"`
}

// A result is what the libraries made of an input, under the names that
// expectations use.
type result map[string]any

// An area judges the inputs of one file.
type area struct {
	run     func(input jsontext.Value) (result, error)
	compare func(want, got map[string]any) bool // nil: every wanted key must be equal
}

// areas is the list of what can be judged.
var areas = map[string]area{
	"descriptor":  {runDescriptor, compareDescriptor},
	"version":     {runVersion, nil},
	"resolve":     {runResolve, compareResolve},
	"args":        {runArgs, compareErrors},
	"kit-args":    {runKitArgs, compareErrors},
	"selection":   {runSelection, compareErrors},
	"merge":       {runMerge, compareErrors},
	"surface":     {runSurface, compareSurface},
	"packages":    {runPackages, comparePackages},
	"annotations": {runAnnotations, compareAnnotations},
	"frontend":    {runFrontend, compareFrontend},
}

// aliases are other spellings of area names.
var aliases = map[string]string{
	"descriptors": "descriptor", "versions": "version", "kit_args": "kit-args", "annotation": "annotations",
	"arg": "args", "package": "packages",
}

// Run judges the vectors of one file. The error is about the file itself.
func Run(file []byte) ([]Verdict, error) {
	var vs []Vector
	if err := json.Unmarshal(file, &vs); err != nil {
		return nil, fmt.Errorf("not a list of vectors: %w", err)
	}
	out := make([]Verdict, len(vs))
	for i, v := range vs {
		out[i] = judge(v)
	}
	return out, nil
}

func judge(v Vector) (out Verdict) {
	out = Verdict{ID: v.ID, Want: v.Expect.Clone()}
	_ = out.Want.Compact() // what is not JSON stays as it is
	defer func() {
		if r := recover(); r != nil { // a fault here is the vector's verdict, not the end of the run
			out.OK, out.Got = false, encode(result{"panic": fmt.Sprint(r)})
		}
	}()
	name := v.Area
	if a, ok := aliases[name]; ok {
		name = a
	}
	a, ok := areas[name]
	if !ok {
		out.Got = encode(result{"unsupported": "area " + v.Area})
		return out
	}
	got, err := a.run(v.Input)
	if err != nil {
		out.Got = encode(result{"unsupported": err.Error()})
		return out
	}
	out.Got = encode(got)
	var want, have map[string]any
	if json.Unmarshal(v.Expect, &want) != nil || json.Unmarshal(out.Got, &have) != nil {
		return out
	}
	compare := a.compare
	if compare == nil {
		compare = compareKeys
	}
	out.OK = compare(want, have)
	return out
}

func encode(r result) jsontext.Value {
	b, err := json.Marshal(map[string]any(r), json.Deterministic(true))
	if err != nil {
		b, _ = json.Marshal(map[string]any{"unsupported": err.Error()})
	}
	return b
}

// read decodes an input. What it does not name is somebody else's remark.
func read[T any](input jsontext.Value) (T, error) {
	var v T
	err := json.Unmarshal(input, &v)
	return v, err
}

// Main is the command: it prints one line per vector, or with --json one
// document and nothing else, and returns 0 if all agree, 1 otherwise.
func Main(_ context.Context, args []string, stdout, stderr io.Writer) int {
	asJSON := false
	var files []string
	for _, a := range args {
		switch {
		case a == "--json" || a == "-json":
			asJSON = true
		case len(a) > 1 && a[0] == '-':
			fmt.Fprintf(stderr, "kit-tck: unknown flag %s; usage: kit-tck vectors [--json] FILE…\n", a)
			return 1
		default:
			files = append(files, a)
		}
	}
	if len(files) == 0 {
		fmt.Fprintln(stderr, "kit-tck: name at least one file; usage: kit-tck vectors [--json] FILE…")
		return 1
	}
	verdicts := []Verdict{}
	var errs []error
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err == nil {
			var vs []Verdict
			vs, err = Run(b)
			verdicts = append(verdicts, vs...)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	code := 0
	for _, v := range verdicts {
		if !v.OK {
			code = 1
		}
	}
	if asJSON {
		b, err := json.Marshal(map[string]any{"verdicts": verdicts}, json.Deterministic(true))
		if err != nil {
			errs = append(errs, err)
		}
		fmt.Fprintf(stdout, "%s\n", b)
	} else {
		print(stdout, verdicts)
	}
	if err := errors.Join(errs...); err != nil {
		fmt.Fprintf(stderr, "kit-tck: %v\n", err)
		code = 1
	}
	return code
}

func print(w io.Writer, verdicts []Verdict) {
	bad := 0
	for _, v := range verdicts {
		if v.OK {
			fmt.Fprintf(w, "ok    %s\n", v.ID)
			continue
		}
		bad++
		fmt.Fprintf(w, "FAIL  %s\n      want %s\n      got  %s\n", v.ID, v.Want, v.Got)
	}
	fmt.Fprintf(w, "%d vectors, %d differ\n", len(verdicts), bad)
}
