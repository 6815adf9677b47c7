package sandbox_test

import (
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

func TestNamesAreFileNamesAndHostNameLabels(t *testing.T) {
	for _, name := range []string{"a", "T", "0", "a.b_c-d", strings.Repeat("x", sandbox.MaxName)} {
		if err := sandbox.CheckName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", ".", "..", "-x", "_x", ".x", "a/b", "a b", "ä", "a\n", "a\x00", strings.Repeat("x", sandbox.MaxName+1)} {
		err := sandbox.CheckName(name)
		if err == nil || kiterr.ExitCode(err) != kiterr.StatusFailed || strings.Contains(err.Error(), "\n") || len(err.Error()) > 200 {
			t.Errorf("%q: %v", name, err)
		}
	}
}
