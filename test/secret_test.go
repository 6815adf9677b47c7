package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/typist"
)

// typing runs a command on a terminal of its own.
func typing(t *testing.T, h *host, args ...string) *typist.Session {
	t.Helper()
	return typist.Start(t, h.command(args...), 24, 80)
}

func TestASecretIsTypedWithoutBeingShown(t *testing.T) {
	h := newHost(t)
	s := typing(t, h, "secret", "set", "svc")
	s.Expect("secret for svc (not shown): ")
	s.Say("tok-31337\r")
	if shown, code := s.End(); code != 0 || strings.Contains(shown, "31337") {
		t.Errorf("status %d, shown %q", code, shown)
	}
	if out, err := h.command("secret", "ls").Output(); err != nil || !strings.Contains(string(out), "terminal") {
		t.Errorf("%s, %v", out, err)
	}

	// Ctrl-C gives the terminal back as it was.
	s = typing(t, h, "secret", "set", "other")
	before := typing(t, h, "version").Flags() // as a terminal begins
	s.Expect("(not shown): ")
	s.Say("half\x03")
	if _, code := s.End(); code != 130 || s.Flags() != before {
		t.Errorf("status %d, terminal flags %x before and %x after", code, before, s.Flags())
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
		s := typing(t, h, "secret", "set", "svc", "--command", "touch "+ran+"; echo tok")
		s.Expect("Allow that? [y/N] ")
		s.Say(answer)
		shown, code := s.End()
		_, err := os.Stat(ran)
		if code != want || (err == nil) != (want == 0) {
			t.Errorf("answer %q: status %d, ran: %v\n%s", answer, code, err == nil, shown)
		}
	}
	if shown, code := typing(t, h, "secret", "set", "svc", "--no-input").End(); code != 1 || !strings.Contains(shown, "nothing may be asked") {
		t.Errorf("with --no-input: %q", shown)
	}
}
