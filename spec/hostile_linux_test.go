package spec_test

import (
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/spec"
)

// hostile returns inputs that make careless readers slow, large or dead. size
// is about how many bytes each has.
func hostile(size int) map[string]string {
	rep := func(s string) string { return strings.Repeat(s, size/len(s)) }
	const head = "schemaVersion: \"3\"\nkind: mixin\n"
	laughs := head + "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
	for c := 'b'; c < 'm'; c++ {
		laughs += fmt.Sprintf("%c: &%c [%s*%c]\n", c, c, strings.Repeat(fmt.Sprintf("*%c, ", c-1), 9), c-1)
	}
	merges := head + "m0: &m0 {k: v}\n"
	for i := 1; i < 400; i++ {
		merges += fmt.Sprintf("m%d: &m%d {<<: [*m%d, *m%d], k%d: v}\n", i, i, i-1, i-1, i)
	}
	var stairs strings.Builder
	for i := 0; stairs.Len() < size; i++ {
		stairs.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return map[string]string{
		"brackets":          rep("["),
		"braces":            rep("{a: "),
		"balanced brackets": strings.Repeat("[", size/2) + strings.Repeat("]", size/2),
		"json brackets":     `{"a":` + strings.Repeat("[", size/2) + strings.Repeat("]", size/2) + "}",
		"ten thousand deep": head + "description: " + strings.Repeat("[", 10000) + strings.Repeat("]", 10000),
		"deep json":         `{"a":` + strings.Repeat(`{"a":`, 10000) + "1" + strings.Repeat("}", 10001),
		"block sequences":   rep("- "),
		"stairs":            stairs.String(),
		"list":              "[" + rep("a,") + "]",
		"maps":              "[" + rep("{},") + "]",
		"pairs":             "{" + rep("a: b,") + "}",
		"json pairs":        `{"a":1` + rep(`,"a":1`) + "}",
		"json list":         `{"a":[1` + rep(`,1`) + "]}",
		"keys":              rep("a:\n"),
		"quoted keys":       rep("\"a\":\n"),
		"anchors":           rep("&a "),
		"tags":              rep("!"),
		"tag handles":       rep("!a!b "),
		"directives":        rep("%YAML 1.2\n"),
		"documents":         rep("---\n"),
		"comments":          rep("#\n"),
		"long lines":        head + "licenses: [" + rep("\"é\",") + "\"é\"]\n",
		"open quote":        "\"" + rep("\\n"),
		"question marks":    rep("? "),
		"colons":            rep(": "),
		"plain words":       rep("a b "),
		"tabs":              rep("\t"),
		"blank lines":       head + rep("\n") + "x: y",
		"nul":               rep("\x00"),
		"not utf-8":         rep("\xff"),
		"byte order marks":  rep("\ufeff"),
		"many aliases":      head + "a: &a [x, y]\nb: [" + rep("*a, ") + "]",
		"laughs":            laughs,
		"long text, often":  head + "x: &x " + strings.Repeat("q", size/2) + "\ny: [" + strings.Repeat("*x,", min(size/8, 12000)) + "]\n",
		"merge keys":        merges,
		"self":              head + "a: &a [*a]\n",
		"self merge":        head + "a: &a\n  <<: *a\n",
		"unknown keys":      head + numbered("k%d: v\n", size),
		"many entries":      head + "capabilities:\n" + rep("- type: com.example/x@1\n"),
		"different entries": head + "capabilities:\n" + numbered("- {type: com.example/x@1, config: {a: %d}}\n", size),
		"many volumes":      head + "capabilities:\n" + numbered("- {type: com.docker.sandbox/volume@1, config: {path: /v%d}}\n", size),
		"many groups":       head + "capabilities:\n" + rep("- group: {capabilities: [{type: com.example/x@1}]}\n"),
		"many args":         head + "args:\n" + numbered("  a%d: {default: x}\n", size),
		"many provides":     head + "provides:\n" + numbered("- p%d@1\n", size),
		"references":        head + "description: \"" + rep("${{ kit.args.x }}") + "\"",
		"open references":   head + "description: \"" + rep("${{ kit.") + "\"",
		"long version":      head + "requires: [\"a > " + strings.Repeat("1.", size/2) + "1, < 2\"]",
		"long bounds":       head + "requires: [\"a > 1." + strings.Repeat("9a.", size/8) + "1, < 1." + strings.Repeat("9a.", size/8) + "2\"]",
		"many bounds":       head + "requires: [\"a >= 1" + rep(", >= 1.2") + ", < 3\"]",
		"different bounds":  head + "requires: [\"a >= 0" + numbered(", >= %d", size) + "\"]",
		"odd bounds":        head + "requires:\n" + rep("- a > 1.1111111111a, < 1.11111111111, > 1.111111111, < 1.111111111c\n"),
		"greedy pattern":    head + "args: {x: {default: a, pattern: \"" + rep("(a{0,500}){0,2}") + "\"}}",
		"many patterns":     head + "args:\n" + numbered("  a%d: {default: a, pattern: \"(a{0,99}){0,99}\"}\n", size),
		"large pattern":     head + "args: {x: {default: a, pattern: \"" + rep("(a{1,9}){1,9}") + "\"}}",
		"comment block":     "# kit:\n" + rep("#   a: b\n"),
	}
}

func numbered(format string, size int) string {
	var b strings.Builder
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// cpuTime returns the processor time of this process. The clock would measure
// what else the machine is doing.
func cpuTime(t *testing.T) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestHostileInputIsBounded holds the promise of the package: nothing of a
// mebibyte, however nested or aliased, panics, hangs or fills the memory. What
// is allocated in total bounds what is held at a time.
func TestHostileInputIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	for _, size := range []int{400 << 10, 1 << 20} {
		for name, src := range hostile(size) {
			t.Run(fmt.Sprintf("%s/%dKiB", name, size>>10), func(t *testing.T) {
				for _, form := range []capability.Form{capability.Authored, capability.Published, capability.Effective} {
					var before, after runtime.MemStats
					runtime.ReadMemStats(&before)
					start := cpuTime(t)
					d, diags := spec.Decode([]byte(src), spec.Options{Form: form})
					if d != nil {
						diags = append(diags, d.Validate()...)
					}
					took := cpuTime(t) - start
					runtime.ReadMemStats(&after)
					if got := (after.TotalAlloc - before.TotalAlloc) >> 20; got > 256 {
						t.Errorf("%v: allocated %d MiB", form, got)
					}
					if took > time.Second*raceFactor {
						t.Errorf("%v: took %v of processor time", form, took)
					}
					for _, dg := range diags {
						if len(dg.Message) > 2000 && len(dg.Path) < 1000 {
							t.Errorf("%v: a message of %d bytes: %.100s…", form, len(dg.Message), dg.Message)
							break
						}
					}
					if len(diags) > 1010 {
						t.Errorf("%v: %d findings", form, len(diags))
					}
				}
			})
		}
	}
}
