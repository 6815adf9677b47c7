package world

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// terminals returns both ends of a terminal: where somebody types, and where a program
// reads it.
func terminals(t *testing.T) (person, program *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { person.Close() })
	n, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return person, program
}

func TestAQuestionIsAskedOfSomebodyWhoSeesIt(t *testing.T) {
	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	cmd.Flags().Bool("no-input", false, "")
	for answer, want := range map[string]bool{"y\n": true, "yes\n": true, "n\n": false, "\n": false} {
		person, program := terminals(t)
		if _, err := person.WriteString(answer); err != nil {
			t.Fatal(err)
		}
		yes, asked, err := (&Env{Stdin: program, Stderr: program}).Confirm(cmd, "Sure?")
		if yes != want || !asked || err != nil {
			t.Errorf("%q: %v, %v, %v", answer, yes, asked, err)
		}
	}
	_, program := terminals(t)
	var seen bytes.Buffer
	for what, e := range map[string]*Env{
		"a question that goes into a file": {Stdin: program, Stderr: &seen},
		"nobody who types":                 {Stdin: strings.NewReader("y\n"), Stderr: program},
	} {
		if yes, asked, err := e.Confirm(cmd, "Sure?"); yes || asked || err != nil || seen.Len() > 0 {
			t.Errorf("%s: %v, %v, %v, %q", what, yes, asked, err, &seen)
		}
	}
	if err := cmd.Flags().Set("no-input", "true"); err != nil {
		t.Fatal(err)
	}
	if yes, asked, err := (&Env{Stdin: program, Stderr: program}).Confirm(cmd, "Sure?"); yes || asked || err != nil {
		t.Errorf("--no-input: %v, %v, %v", yes, asked, err)
	}
}
