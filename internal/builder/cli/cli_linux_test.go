package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/frontend"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// A builder that is asked to stay for less than no time stayed for the default.
func TestABuilderLastsNoNegativeTime(t *testing.T) {
	none := t.TempDir() + "/none"
	for _, c := range []struct{ args, in, want string }{
		{"serve -dir " + none + " --idle -5s", "", "idle: -5s is no time"},
		{"serve -dir " + none + " --cache-bytes -1", "", "cache-bytes: -1"},
		{"build --idle=-1m " + none, "", "idle: -1m0s is no time"},
		{"build --cache-bytes=-1 " + none, "", "cache-bytes: -1"},
		{"build --request -", `{"context":"` + none + `","idleSeconds":-3}`, "idle: -3s is no time"},
		{"build --idle 0s --cache-bytes 0 " + none, "", none + ": "}, // the default, and then what is missing
	} {
		var out, errs bytes.Buffer
		status := Main(frontend.Builder{}, strings.Fields(c.args), strings.NewReader(c.in), &out, &errs)
		if status == 0 || !strings.Contains(out.String()+errs.String(), c.want) || strings.Count(errs.String(), "\n") > 1 {
			t.Errorf("%s: status %d, %q, %q", c.args, status, &out, &errs)
		}
	}
}

// A time that is none is said where a request's answer is looked for, too.
func TestATimeThatIsNoneIsRefused(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "soon")
	for _, c := range []struct{ args, in string }{{"build .", ""}, {"build --request -", `{"context":"."}`}} {
		var out, errs bytes.Buffer
		status := Main(frontend.Builder{}, strings.Fields(c.args), strings.NewReader(c.in), &out, &errs)
		if status != kiterr.StatusRefused || !strings.Contains(out.String(), `"error":`) || !strings.Contains(out.String(), "no number of seconds since 1970") {
			t.Errorf("%s: status %d, %q, %q", c.args, status, &out, &errs)
		}
	}
}
