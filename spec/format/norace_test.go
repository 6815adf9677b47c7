//go:build !race

package format_test

const slowdown = 1
