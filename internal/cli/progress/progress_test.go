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
		for _, line := range []string{"building " + kit, "#1 RUN x", "#1 0.1 warning: of a step", "#1 done", "warning: " + kit + ": it has\tno shell", "warning: and more"} {
			p.Event(sandbox.Event{Step: "build", Of: kit, Detail: line})
		}
	}
	p.Event(sandbox.Event{Step: "start", Detail: "t"})
	if want := "kitbox: building ./w\nkitbox: warning: ./w: it has no shell\nkitbox: warning: and more\n" +
		"kitbox: building ./m\nkitbox: warning: ./m: it has no shell\nkitbox: warning: and more\nkitbox: start t\n"; errs.String() != want {
		t.Errorf("%q, want %q", errs.String(), want)
	}
}
