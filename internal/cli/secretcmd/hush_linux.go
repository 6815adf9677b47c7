package secretcmd

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// hush makes a terminal show nothing of what is typed, also of what is typed
// before something reads it.
func hush(f *os.File) error {
	t, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		return err
	}
	t.Lflag &^= unix.ECHO
	return unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, t)
}

// readLine reads a line of a terminal that is hushed, without its end. It leaves
// the terminal's settings alone: whoever gives up on it has put them back.
func readLine(f *os.File) ([]byte, error) {
	var line []byte
	var b [1]byte
	for {
		n, err := f.Read(b[:])
		switch {
		case n == 1 && b[0] == '\n':
			return line, nil
		case n == 1:
			line = append(line, b[0])
		case err == io.EOF && len(line) > 0:
			return line, nil
		case err != nil:
			return nil, err
		}
	}
}
