//go:build !race

package spec_test

const raceFactor = 1
