//go:build cgo

package main

// With cgo, privileges cannot be dropped on all threads of this process.
func init() { linkedC = true }
