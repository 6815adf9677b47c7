// Package archtest is the import law of the module, as a table with reasons.
// Its test reads the table over `go list`; nothing imports this package.
//
// Rows stand from the ground up, and an import may only point to an earlier
// row. A package without a row fails the test, and so does a row that matches
// no package: a rule for a package that was renamed away guards nothing.
package archtest

import "strings"

// A Row is one place in the order.
type Row struct {
	// Pkg is an import path relative to the module, or "dir/*" for every
	// package directly or deeper below dir that no row of its own names.
	Pkg string

	// Why says what the place protects; it is printed when an import breaks
	// the law.
	Why string

	// Only, when set, lists the packages that may be imported, instead of
	// every earlier one. Patterns are as in Pkg.
	Only []string

	// Siblings lets the packages that one "dir/*" row matches import each
	// other. The zero value keeps them apart: what meets, meets above.
	Siblings bool
}

// Matches reports whether the row is the one for package pkg.
func (r Row) Matches(pkg string) bool { return match(r.Pkg, pkg) }

func match(pattern, pkg string) bool {
	if dir, ok := strings.CutSuffix(pattern, "/*"); ok {
		return strings.HasPrefix(pkg, dir+"/")
	}
	return pattern == pkg
}

// A Heavy row says who may import a third-party module directly.
type Heavy struct {
	Module string // import path prefix
	Only   []string
	Why    string
}
