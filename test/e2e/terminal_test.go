package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/typist"
)

// The first that a command asks of its terminal is its size: it has to be right before the
// command begins, and not soon afterwards.
func TestExecHasTheSizeOfTheWindowFromTheFirstByte(t *testing.T) {
	create(t, "sized", "-q", probe)
	for i := range uint16(10) {
		s := typist.Start(t, command(t.Context(), "kitbox", "exec", "-it", "sized", "--", "stty", "size"), 30+i, 90+i)
		if out, status := s.End(); status != 0 || out != fmt.Sprintf("%d %d\r\n", 30+i, 90+i) {
			t.Errorf("status %d, %q in a window of %d by %d", status, out, 30+i, 90+i)
		}
	}
	// One that is told of another size sees it, too. A shell with prompts would have its
	// children told.
	s := typist.Start(t, command(t.Context(), "kitbox", "exec", "-it", "sized", "--", "sh", "-c",
		"trap 'echo told' WINCH; stty size; until test \"$(stty size)\" = '50 132'; do sleep 0.05; done; echo resized; exit 4"), 24, 80)
	s.Expect("24 80")
	s.Resize(50, 132)
	if out, status := s.End(); status != 4 || !strings.Contains(out, "told") || !strings.Contains(out, "resized") {
		t.Errorf("after the window has changed: status %d, %q", status, out)
	}
	// Without a terminal of its own a command has none, whatever ours is.
	s = typist.Start(t, command(t.Context(), "kitbox", "exec", "sized", "--", "sh", "-c", "tty; stty size 2>&1; test -t 1 || echo pipe"), 24, 80)
	if out, _ := s.End(); !strings.Contains(out, "not a tty") || !strings.Contains(out, "pipe") || strings.Contains(out, "24 80") {
		t.Errorf("without -t: %q", out)
	}
}

// A session with a terminal takes the interactive tail, and one without the image's own
// command; arguments follow either.
func TestTheInteractiveTailIsForTerminals(t *testing.T) {
	tail := "  - type: com.docker.sandbox/lifecycle@1\n    config:\n      interactive: [the, tail]\n"
	dir := write(t, map[string]string{"kit.yaml": head + strings.Replace(recipe, "ENTRYPOINT [\"/bin/echo\"]", "ENTRYPOINT [\"/bin/echo\", \"launch\"]\n  CMD [\"of-the-image\"]", 1) + "capabilities:\n" + tail})
	create(t, "tailed", "-q", dir)
	for _, c := range []struct{ args, want string }{
		{"attach tailed", "launch the tail"},
		{"attach tailed -- more", "launch the tail more"},
		{"attach -T tailed", "launch of-the-image"},
		{"attach -T tailed -- more", "launch of-the-image more"},
		{"run -q --rm " + dir, "launch the tail"},
		{"run -q --rm -T " + dir, "launch of-the-image"},
		{"run -q --rm " + dir + " -- more", "launch the tail more"},
	} {
		s := typist.Start(t, command(t.Context(), "kitbox", strings.Fields(c.args)...), 24, 80)
		if out, status := s.End(); status != 0 || out != c.want+"\r\n" {
			t.Errorf("%s: status %d, %q; want %q", c.args, status, out, c.want)
		}
	}
	// The control has no terminal.
	for args, want := range map[string]string{"attach tailed": "launch of-the-image\n", "run -q --rm " + dir: "launch of-the-image\n", "attach -t tailed": "launch the tail\r\n"} {
		if got := ok(t, strings.Fields(args)...); got != want {
			t.Errorf("%s without a terminal: %q, want %q", args, got, want)
		}
	}
}

// An archive is nothing that anybody types, and nobody would know what is waited for.
func TestAnArchiveIsNotReadFromATerminal(t *testing.T) {
	s := typist.Start(t, command(t.Context(), "kitbox", "image", "load"), 24, 80)
	if out, status := s.End(); status != 1 || !strings.Contains(out, "name a file with --input") {
		t.Errorf("status %d, %q", status, out)
	}
}
