package test

import (
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

// onTerminal starts c on a terminal of that size and returns our end of it.
func onTerminal(t *testing.T, c *exec.Cmd, size unix.Winsize) *os.File {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	must(err)
	fd := int(ours.Fd())
	must(unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	must(err)
	theirs, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	must(err)
	defer theirs.Close()
	must(unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &size))
	c.Stdin, c.Stdout, c.Stderr = theirs, theirs, theirs
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	must(c.Start())
	return ours
}

// session is a command of ours on a terminal, and what has come out of it.
type session struct {
	t    *testing.T
	tty  *os.File
	seen strings.Builder
	more chan string
}

func (s *session) read() {
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

// expect waits until text has come out since the last call.
func (s *session) expect(text string) {
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

func (s *session) say(text string) {
	s.t.Helper()
	if _, err := io.WriteString(s.tty, text); err != nil {
		s.t.Fatal(err)
	}
}

func TestATerminalHasASizeChangesItAndPassesKeys(t *testing.T) {
	h := newHost(t)
	h.push("w:1", `{"schemaVersion":"3","kind":"workload","provides":["w@1"]}`)
	c := h.command("run", "-q", "--rm", "--exec", "w:1", "--", "sh")
	tty := onTerminal(t, c, unix.Winsize{Row: 33, Col: 101})
	defer tty.Close()
	s := &session{t: t, tty: tty, more: make(chan string, 100)}
	go s.read()
	s.say("stty size; tty; echo $((40+2))\r")
	s.expect("33 101")
	s.expect("/dev/pts/")
	s.expect("42")
	if err := unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 20, Col: 70}); err != nil {
		t.Fatal(err)
	}
	s.say("until test \"$(stty size)\" = '20 70'; do sleep 0.05; done; echo re''sized\r")
	s.expect("resized")
	// Ctrl-C is a key of the command's, not the end of ours.
	s.say("sleep 1000; echo status $?\r")
	time.Sleep(100 * time.Millisecond) // a key typed before the command runs is the shell's
	s.say("\x03")
	s.say("echo after $((1+1))\r")
	s.expect("after 2")
	s.say("exit 9\r")
	for range s.more {
	}
	c.Wait()
	if code := c.ProcessState.ExitCode(); code != 9 {
		t.Errorf("exit %d", code)
	}
}
