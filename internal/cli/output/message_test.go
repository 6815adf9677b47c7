package output

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"
)

func TestTheNameOfASystemCallIsNotShown(t *testing.T) {
	_, open := os.Open("/no such/x")
	_, lstat := os.Lstat("/no such/x")
	_, stat := os.Stat("/no such/x")
	for _, err := range []error{open, lstat, stat} {
		if got, want := Message(err), "kitbox: /no such/x: no such file or directory"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if got, want := Message(fmt.Errorf("sandbox t: %w", err)), "kitbox: sandbox t: /no such/x: no such file or directory"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	// What was tried tells these apart.
	for err, want := range map[error]string{
		os.Mkdir("/no such/x", 0o700):                                   "kitbox: mkdir /no such/x: no such file or directory",
		&fs.PathError{Op: "write", Path: "/x", Err: errors.New("full")}: "kitbox: write /x: full",
	} {
		if got := Message(err); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
