//go:build race

package format_test

// slowdown divides the sizes of inputs whose time is bounded: the race detector
// costs about as much.
const slowdown = 10
