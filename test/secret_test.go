package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// typing runs a command on a terminal of its own.
func typing(t *testing.T, h *host, args ...string) (s *session, wait func() int) {
	t.Helper()
	c := h.command(args...)
	tty := onTerminal(t, c, unix.Winsize{Row: 24, Col: 80})
	s = &session{t: t, tty: tty, more: make(chan string, 100)}
	go s.read()
	return s, func() int {
		t.Helper()
		_ = c.Wait() // its status says more
		tty.Close()
		for m := range s.more {
			s.seen.WriteString(m)
		}
		return c.ProcessState.ExitCode()
	}
}

func TestASecretIsTypedWithoutBeingShown(t *testing.T) {
	h := newHost(t)
	s, wait := typing(t, h, "secret", "set", "svc")
	s.expect("secret for svc (not shown): ")
	s.say("tok-31337\r")
	if code := wait(); code != 0 || strings.Contains(s.seen.String(), "31337") {
		t.Errorf("status %d, shown %q", code, s.seen.String())
	}
	if out, err := h.command("secret", "ls").Output(); err != nil || !strings.Contains(string(out), "terminal") {
		t.Errorf("%s, %v", out, err)
	}

	// Ctrl-C gives the terminal back as it was.
	c := h.command("secret", "set", "other")
	tty := onTerminal(t, c, unix.Winsize{Row: 24, Col: 80})
	defer tty.Close()
	before, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	s = &session{t: t, tty: tty, more: make(chan string, 100)}
	go s.read()
	s.expect("(not shown): ")
	s.say("half\x03")
	_ = c.Wait()
	after, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	if code := c.ProcessState.ExitCode(); code != 130 || after.Lflag != before.Lflag {
		t.Errorf("status %d, terminal flags %x before and %x after", code, before.Lflag, after.Lflag)
	}
	if out, err := h.command("secret", "ls").Output(); err != nil || strings.Contains(string(out), "other") {
		t.Errorf("%s, %v", out, err)
	}
}

func TestACommandForASecretNeedsAYes(t *testing.T) {
	h := newHost(t)
	ran := filepath.Join(t.TempDir(), "ran")
	for answer, want := range map[string]int{"\r": 3, "no\r": 3, "y\r": 0, "y\x03": 130} {
		os.Remove(ran)
		s, wait := typing(t, h, "secret", "set", "svc", "--command", "touch "+ran+"; echo tok")
		s.expect("Allow that? [y/N] ")
		s.say(answer)
		code := wait()
		_, err := os.Stat(ran)
		if code != want || (err == nil) != (want == 0) {
			t.Errorf("answer %q: status %d, ran: %v\n%s", answer, code, err == nil, s.seen.String())
		}
	}
	if s, wait := typing(t, h, "secret", "set", "svc", "--no-input"); wait() != 1 || !strings.Contains(s.seen.String(), "nothing may be asked") {
		t.Errorf("with --no-input: %q", s.seen.String())
	}
}
