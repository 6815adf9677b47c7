package needs

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The tests of this binary that are run by themselves: each needs what is not there.
func TestInnerProgram(t *testing.T) {
	inner(t)
	Program(t, "no-such-program", "apt-get install nothing")
	t.Log("went on")
}

func TestInnerFile(t *testing.T) {
	inner(t)
	File(t, "/no/such/file", "make it")
	t.Log("went on")
}

func TestInnerNothing(t *testing.T) {
	inner(t)
	if Program(t, "sh", "apt-get install dash") == "" || File(t, "/", "") != "/" {
		t.Error("what is there is not named")
	}
	t.Log("went on")
}

func inner(t *testing.T) {
	if os.Getenv("NEEDS_TEST_INNER") == "" {
		t.SkipNow() // run by TestWhatIsLackingSkipsAndFailsUnderCI
	}
}

func TestWhatIsLackingSkipsAndFailsUnderCI(t *testing.T) {
	for _, c := range []struct {
		name, ci string
		want     string
		fails    bool
	}{
		{"TestInnerProgram", "", "--- SKIP", false},
		{"TestInnerProgram", "1", "no no-such-program: apt-get install nothing; nothing may be left out", true},
		{"TestInnerFile", "", "--- SKIP", false},
		{"TestInnerFile", "true", "no /no/such/file: make it; nothing may be left out", true},
		{"TestInnerNothing", "1", "went on", false},
	} {
		cmd := exec.Command(os.Args[0], "-test.run", "^"+c.name+"$", "-test.v")
		cmd.Env = append(os.Environ(), "NEEDS_TEST_INNER=1", "CI="+c.ci)
		out, err := cmd.CombinedOutput()
		if (err != nil) != c.fails || !strings.Contains(string(out), c.want) || c.name != "TestInnerNothing" && strings.Contains(string(out), "went on") {
			t.Errorf("%s with CI=%q: %v\n%s", c.name, c.ci, err, out)
		}
	}
}
