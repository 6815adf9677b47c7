//go:build !race

package lint_test

const slowdown = 1
