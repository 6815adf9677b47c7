//go:build race

package spec_test

// raceFactor is how much slower the race detector makes everything.
const raceFactor = 20
