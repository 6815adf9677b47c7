package test

import (
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/typist"
)

func TestATerminalHasASizeChangesItAndPassesKeys(t *testing.T) {
	h := newHost(t)
	h.push("w:1", `{"schemaVersion":"3","kind":"workload","provides":["w@1"]}`)
	s := typist.Start(t, h.command("run", "-q", "--rm", "--exec", "w:1", "--", "sh"), 33, 101)
	s.Say("stty size; tty; echo $((40+2))\r")
	s.Expect("33 101")
	s.Expect("/dev/pts/")
	s.Expect("42")
	s.Resize(20, 70)
	s.Say("until test \"$(stty size)\" = '20 70'; do sleep 0.05; done; echo re''sized\r")
	s.Expect("resized")
	// Ctrl-C is a key of the command's, not the end of ours.
	s.Say("sleep 1000; echo status $?\r")
	time.Sleep(100 * time.Millisecond) // a key typed before the command runs is the shell's
	s.Say("\x03")
	s.Say("echo after $((1+1))\r")
	s.Expect("after 2")
	s.Say("exit 9\r")
	if _, code := s.End(); code != 9 {
		t.Errorf("exit %d", code)
	}
}
