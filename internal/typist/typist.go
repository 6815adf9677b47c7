// Package typist sits at a terminal for tests: it starts a command there, types, waits for
// what comes out, and changes the size of the window.
package typist

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A Session is a command on a terminal. Its methods end the test when they fail and are
// not called concurrently.
type Session struct {
	t    testing.TB
	cmd  *exec.Cmd
	tty  *os.File // our end
	seen strings.Builder
	more chan string
}

// Start starts c on a terminal of that size, which ends with the test.
func Start(t testing.TB, c *exec.Cmd, rows, cols uint16) *Session {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close() })
	s := &Session{t: t, cmd: c, tty: ours, more: make(chan string, 100)}
	fd := int(ours.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	err = errors.Join(err, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	s.Resize(rows, cols)
	c.Stdin, c.Stdout, c.Stderr = theirs, theirs, theirs
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	go s.read()
	return s
}

func (s *Session) read() {
	b := make([]byte, 4096)
	for {
		n, err := s.tty.Read(b)
		if n > 0 {
			s.more <- string(b[:n])
		}
		if err != nil {
			close(s.more)
			return
		}
	}
}

// Resize gives the window another size.
func (s *Session) Resize(rows, cols uint16) {
	s.t.Helper()
	if err := unix.IoctlSetWinsize(int(s.tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}); err != nil {
		s.t.Fatal(err)
	}
}

// Flags are those of the terminal that say how what is typed is treated: whether it is
// shown, for one.
func (s *Session) Flags() uint32 {
	s.t.Helper()
	t, err := unix.IoctlGetTermios(int(s.tty.Fd()), unix.TCGETS)
	if err != nil {
		s.t.Fatal(err)
	}
	return t.Lflag
}

// Expect waits until text has come out since the last call.
func (s *Session) Expect(text string) {
	s.t.Helper()
	late := time.After(time.Minute)
	for !strings.Contains(s.seen.String(), text) {
		select {
		case m, ok := <-s.more:
			if !ok {
				s.t.Fatalf("the terminal ended before %q: %q", text, s.seen.String())
			}
			s.seen.WriteString(m)
		case <-late:
			s.t.Fatalf("gave up waiting for %q: %q", text, s.seen.String())
		}
	}
	rest := s.seen.String()
	s.seen.Reset()
	s.seen.WriteString(rest[strings.Index(rest, text)+len(text):])
}

// Say types text.
func (s *Session) Say(text string) {
	s.t.Helper()
	if _, err := io.WriteString(s.tty, text); err != nil {
		s.t.Fatal(err)
	}
}

// End waits for the end of the command, and returns what came out since the last
// Expect, and its status.
func (s *Session) End() (rest string, status int) {
	s.t.Helper()
	late := time.AfterFunc(time.Minute, func() { _ = s.cmd.Process.Kill() })
	defer late.Stop()
	for m := range s.more {
		s.seen.WriteString(m)
	}
	err := s.cmd.Wait()
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		s.t.Fatal(err)
	}
	return s.seen.String(), s.cmd.ProcessState.ExitCode()
}
