package argv_test

import (
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/kitbox-dev/kitbox/capability/argv"
)

// true is a program to whoever writes a command and a truth value to YAML.
func TestWhatIsNoTextIsToBeQuoted(t *testing.T) {
	for _, value := range []string{"true", "3", `["sleep", 3]`, `["a", true]`} {
		var c argv.Command
		if err := json.Unmarshal([]byte(value), &c); err == nil || !strings.Contains(err.Error(), "in quotes") {
			t.Errorf("%s: %v", value, err)
		}
	}
}
