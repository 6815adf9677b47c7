package agent

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/guest/protocol"
)

// What the agent does on streams is tested beside its peer, in package client,
// and what it does as PID 1 in internal/driver/drivertest.

func TestFamilyIsTheSessionAndAllDescendants(t *testing.T) {
	ps := []process{
		{1, 0, 1, false},
		{10, 1, 10, false},  // the command
		{11, 10, 10, false}, // its child
		{12, 11, 12, false}, // a grandchild in a session of its own
		{13, 12, 12, false}, // and its child
		{14, 1, 10, false},  // an orphan of the session
		{15, 1, 15, false},  // a daemon: nobody's
		{16, 10, 10, true},  // ended
		{20, 1, 20, false},  // another command
		{21, 20, 20, false},
	}
	got := family(ps, 10)
	slices.Sort(got)
	if want := []int{10, 11, 12, 13, 14}; !slices.Equal(got, want) {
		t.Errorf("family %v, want %v", got, want)
	}
	// Even of a family that holds PID 1's children, never PID 1.
	if slices.Contains(family(ps, 1), 1) {
		t.Error("the guest would end itself")
	}
}

func TestOrphansAreOfAnEndedCommandOnly(t *testing.T) {
	ps := []process{{1, 0, 1, false}, {11, 1, 10, false}, {12, 1, 10, true}, {20, 1, 20, false}}
	if got := orphans(ps, 10); !slices.Equal(got, []int{11}) {
		t.Errorf("got %v", got)
	}
	// The number has a new owner: whatever is in its session is the owner's.
	if got := orphans(append(ps, process{10, 1, 10, false}), 10); got != nil {
		t.Errorf("got %v", got)
	}
}

func TestACommandIsFoundAsExecvpWould(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"a/tool": 0o755, "a/plain": 0o644, "b/plain": 0o755, "b/other": 0o755} {
		p := filepath.Join(dir, name)
		os.MkdirAll(filepath.Dir(p), 0o755)
		os.WriteFile(p, nil, mode)
	}
	os.Mkdir(filepath.Join(dir, "a/other"), 0o755) // a directory is no command
	env := []string{"PATH=/nothing", "PATH=" + dir + "/a:" + dir + "/b:rel:"}
	for name, want := range map[string]string{
		"tool": dir + "/a/tool", "plain": dir + "/b/plain", "other": dir + "/b/other",
		"/abs": "/abs", "./here": dir + "/here", "sub/x": dir + "/sub/x",
	} {
		got, err := lookPath(&protocol.Exec{Argv: []string{name}, Env: env, Dir: dir})
		if err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, want)
		}
	}
	if got, err := lookPath(&protocol.Exec{Argv: []string{"nope"}, Env: env, Dir: dir}); err != errNotFound {
		t.Errorf("nope: %q, %v", got, err)
	}
	if _, err := lookPath(&protocol.Exec{Argv: []string{"plain"}, Env: []string{"PATH=" + dir + "/a"}, Dir: dir}); err == nil || err == errNotFound {
		t.Errorf("a file that is not executable: %v", err)
	}
}

func TestBadExecRequestsAreJudged(t *testing.T) {
	for name, c := range map[string]struct {
		r      protocol.Exec
		passed int
		want   protocol.FaultCode
	}{
		"no argv":              {protocol.Exec{}, 0, protocol.FaultCannotStart},
		"unannounced":          {protocol.Exec{Argv: []string{"/bin/sh"}}, 1, protocol.FaultInvalid},
		"announced and lost":   {protocol.Exec{Argv: []string{"/bin/sh"}, Passed: []int{1}}, 0, protocol.FaultInvalid},
		"out of order":         {protocol.Exec{Argv: []string{"/bin/sh"}, Passed: []int{1, 0}}, 2, protocol.FaultInvalid},
		"twice":                {protocol.Exec{Argv: []string{"/bin/sh"}, Passed: []int{1, 1}}, 2, protocol.FaultInvalid},
		"out of range":         {protocol.Exec{Argv: []string{"/bin/sh"}, Passed: []int{3}}, 1, protocol.FaultInvalid},
		"with a terminal":      {protocol.Exec{Argv: []string{"/bin/sh"}, Passed: []int{0}, TTY: true}, 1, protocol.FaultInvalid},
		"a relative directory": {protocol.Exec{Argv: []string{"/bin/sh"}, Dir: "x"}, 0, protocol.FaultCannotStart},
	} {
		if _, fault := prepare(&c.r, c.passed); fault == nil || fault.Code != c.want {
			t.Errorf("%s: %+v", name, fault)
		}
	}
}
