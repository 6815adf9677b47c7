package lifecmd

import (
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/sandbox"
)

func TestWhatIsUnsavedIsRescuedByWhatCarriesIt(t *testing.T) {
	commits, files := []sandbox.Commit{{ID: "1"}}, []string{"f"}
	if s := rescue("t", &sandbox.Unsaved{Files: files}); strings.Contains(s, "bundle") || !strings.Contains(s, "kitbox cp t:FILE") {
		t.Error(s)
	}
	if s := rescue("t", &sandbox.Unsaved{Commits: commits}); !strings.Contains(s, "bundle t") || strings.Contains(s, "cp") {
		t.Error(s)
	}
	if s := rescue("t", &sandbox.Unsaved{Commits: commits, Files: files}); !strings.Contains(s, "bundle t") || !strings.Contains(s, "cp t:") {
		t.Error(s)
	}
}
