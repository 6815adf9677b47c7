package needs

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestWhatIsLackingSkipsAndFailsUnderCI(t *testing.T) {
	if inner := os.Getenv("NEEDS_TEST_INNER"); inner != "" { // this test again, which needs something
		switch inner {
		case "program":
			Program(t, "no-such-program", "apt-get install nothing")
		case "file":
			File(t, "/no/such/file", "make it")
		default:
			if Program(t, "sh", "apt-get install dash") == "" || File(t, "/", "") != "/" {
				t.Error("what is there is not named")
			}
		}
		t.Log("went on")
		return
	}
	for _, c := range []struct {
		name, ci string
		want     string
		fails    bool
	}{
		{"program", "", "--- SKIP", false},
		{"program", "1", "no no-such-program: apt-get install nothing; nothing may be left out", true},
		{"file", "", "--- SKIP", false},
		{"file", "true", "no /no/such/file: make it; nothing may be left out", true},
		{"nothing", "1", "went on", false},
	} {
		cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), "NEEDS_TEST_INNER="+c.name, "CI="+c.ci)
		out, err := cmd.CombinedOutput()
		if (err != nil) != c.fails || !strings.Contains(string(out), c.want) || c.name != "nothing" && strings.Contains(string(out), "went on") {
			t.Errorf("%s with CI=%q: %v\n%s", c.name, c.ci, err, out)
		}
	}
}
