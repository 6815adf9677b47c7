// Package rulebook keeps the rules that the operator of a machine wrote: one
// file for all sandboxes and one in the directory of each that has its own.
//
// A book is what was asked for. How it is merged with the rules of Kits is in
// internal/oversight, and what a rule means in package egress beside this one.
package rulebook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// Version is the version of the file. A reader refuses any other: rules that
// are half understood are not rules.
const Version = 1

// The sources of the operator's rules, as users are shown them.
const (
	Everywhere = "operator (all sandboxes)"
	Here       = "operator (this sandbox)"
)

// maxRules bounds a book. It is far above what a person writes, and keeps a
// script that runs wild from filling every boundary.
const maxRules = 10_000

type book struct {
	Version int               `json:"version"`
	Rules   []plan.EgressRule `json:"rules"`
}

// Read returns the rules of the book at path in the order they were written,
// each with the given source. A book that does not exist is empty. One that
// cannot be understood is an error, never an empty book: it may hold denials.
func Read(path, source string) ([]plan.EgressRule, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, durable.Explain(path, err)
	}
	var b book
	if err := json.Unmarshal(data, &b); err != nil {
		return nil, fmt.Errorf("%s: %w; mend or delete the file", path, err)
	}
	if b.Version != Version {
		return nil, fmt.Errorf("%s: version %d is not one this kitbox knows: %w", path, b.Version, kiterr.ErrUnsupported)
	}
	for i := range b.Rules {
		b.Rules[i].Source = source
	}
	if _, err := egress.New(b.Rules); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return b.Rules, nil
}

// Change replaces the rules of the book at path by what edit makes of them, and
// holds off other writers meanwhile. Rules that cannot be understood are
// [kiterr.ErrRefused] and leave the book as it was. Sources are not kept.
func Change(ctx context.Context, path string, edit func([]plan.EgressRule) ([]plan.EgressRule, error)) error {
	l, err := durable.AcquireLock(ctx, path+".lock", durable.Exclusive)
	if err != nil {
		return err
	}
	defer l.Unlock()
	const source = "operator"
	rules, err := Read(path, source)
	if err != nil {
		return err
	}
	if rules, err = edit(slices.Clone(rules)); err != nil {
		return err
	}
	if len(rules) > maxRules {
		return fmt.Errorf("%s: more than %d rules: %w", path, maxRules, kiterr.ErrRefused)
	}
	for i := range rules {
		rules[i].Source = source
	}
	if _, err := egress.New(rules); err != nil {
		return err
	}
	for i := range rules {
		rules[i].Source = ""
	}
	data, err := json.MarshalIndent(book{Version, append([]plan.EgressRule{}, rules...)}, "", "  ")
	if err != nil {
		return err
	}
	return durable.Explain(path, durable.WriteFile(path, append(data, '\n'), 0o600))
}

// Add returns rules with r at the end, unless it is there already.
func Add(rules []plan.EgressRule, r plan.EgressRule) []plan.EgressRule {
	if slices.ContainsFunc(rules, func(have plan.EgressRule) bool { return Same(have, r) }) {
		return rules
	}
	return append(rules, r)
}

// Same reports whether a and b say the same, whoever wrote them.
func Same(a, b plan.EgressRule) bool {
	return a.Phase == b.Phase && a.Allow == b.Allow && a.Pattern == b.Pattern &&
		slices.Equal(a.Methods, b.Methods) && slices.Equal(a.Paths, b.Paths)
}
