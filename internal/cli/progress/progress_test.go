package progress

import (
	"bytes"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/cli/world"
	"github.com/kitbox-dev/kitbox/sandbox"
)

func TestEveryKitThatIsBuiltHasOneLine(t *testing.T) {
	var errs bytes.Buffer
	p := New(&world.Env{Stderr: &errs}, false)
	for _, kit := range []string{"./w", "./m"} {
		for _, line := range []string{"building " + kit, "#1 RUN x", "#1 done"} {
			p.Event(sandbox.Event{Step: "build", Of: kit, Detail: line})
		}
	}
	p.Event(sandbox.Event{Step: "start", Detail: "t"})
	if want := "kitbox: building ./w\nkitbox: building ./m\nkitbox: start t\n"; errs.String() != want {
		t.Errorf("%q, want %q", errs.String(), want)
	}
}
