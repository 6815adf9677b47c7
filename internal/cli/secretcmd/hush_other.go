//go:build !linux

package secretcmd

import (
	"os"

	"golang.org/x/term"
)

// hush leaves it to the reading: what is typed early is shown.
func hush(*os.File) error { return nil }

func readLine(f *os.File) ([]byte, error) { return term.ReadPassword(int(f.Fd())) }
