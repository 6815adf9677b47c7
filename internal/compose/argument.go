package compose

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/expand"
)

// explainArgs adds to errors about arguments what the user typed and what would
// have been admitted. Package expand tells no values, since it also sees those
// that nobody typed.
func explainArgs(err error, declared map[string]spec.Arg, supplied map[string]string) error {
	if err == nil {
		return nil
	}
	var f *expand.FieldError
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		// A list holds field errors; a field error holds what is wrong with it.
		of := many.Unwrap()
		if slices.ContainsFunc(of, func(e error) bool { return errors.As(e, &f) }) {
			errs := make([]error, 0, len(of))
			for _, e := range of {
				errs = append(errs, explainArgs(e, declared, supplied))
			}
			return errors.Join(errs...)
		}
	}
	if !errors.As(err, &f) {
		return err
	}
	name := strings.TrimPrefix(f.Path, "args.")
	value, typed := supplied[name]
	a := declared[name]
	switch {
	case typed && errors.Is(f.Err, spec.ErrPatternMismatch):
		return &argError{fmt.Sprintf("arg %s=%q %v: %s", name, value, spec.ErrPatternMismatch, a.Pattern), err}
	case typed && errors.Is(f.Err, spec.ErrNotInEnum):
		return &argError{fmt.Sprintf("arg %s=%q is none of %s", name, value, strings.Join(a.Enum, ", ")), err}
	}
	return err
}

// argError has a text of its own, and the families of the error it explains.
type argError struct {
	text string
	err  error
}

func (e *argError) Error() string { return e.text }
func (e *argError) Unwrap() error { return e.err }

// declaredArgs says which args there are instead of one that nobody declares.
func declaredArgs(known map[string]bool) string {
	const most = 20
	names := slices.Sorted(maps.Keys(known))
	switch {
	case len(names) == 0:
		return "none is declared at all"
	case len(names) > most:
		return fmt.Sprintf("those declared are %s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return "those declared are " + strings.Join(names, ", ")
}
