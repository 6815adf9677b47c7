package builder_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/builder"
	"github.com/kitbox-dev/kitbox/internal/needs"
)

// TestTheCacheIsBelowItsBoundWhenTheBuilderEnds fills a small cache and lets the
// builder end by itself.
func TestTheCacheIsBelowItsBoundWhenTheBuilderEnds(t *testing.T) {
	b := newBench(t)
	const bound = 12 << 20
	big := strings.Repeat("0123456789abcdef", 8<<20/16)
	for _, n := range []string{"a", "b", "c"} {
		dir := b.kit(map[string]string{"hello.yaml": "schemaVersion: \"3\"\nkind: mixin\nprovides: [\"h@1.0\"]\n",
			"hello.dockerfile": "FROM scratch\nCOPY big /opt/h/" + n + "\n", "big": n + big})
		b.mustBuild(builder.Request{Context: dir, CacheBytes: bound, IdleSeconds: 0.2})
	}
	b.eventually("the builder ends", func() bool { return len(processes(b.home)) == 0 })
	if got := b.status().CacheBytes; got > 2*bound {
		t.Errorf("the cache has %d bytes on disk, its bound is %d", got, bound)
	}
	log, err := os.ReadFile(b.dir() + "/builder.log")
	if err != nil || strings.Contains(string(log), "may be larger") {
		t.Errorf("%v\n%s", err, log)
	}
	// It is what is left that the next builder works with.
	b.mustBuild(builder.Request{Context: b.kit(map[string]string{"hello.yaml": workload, "hello.dockerfile": recipe, "note.txt": "note\n"})})
}

func TestStoppingNoBuilderIsFine(t *testing.T) {
	b := newBench(t)
	stop := func() (string, error) {
		cmd := exec.Command(os.Args[0], "stop", "--home", b.home)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		err := cmd.Run()
		return errs.String(), err
	}
	if said, err := stop(); err != nil || !strings.Contains(said, "no builder runs in "+b.dir()) {
		t.Errorf("none: %v, %q", err, said)
	}
	b.mustBuild(builder.Request{Context: b.kit(map[string]string{"hello.yaml": declaration})})
	if said, err := stop(); err != nil || said != "" || b.status().Running {
		t.Errorf("one: %v, %q", err, said)
	}
}

// TestProgressModes looks at what a build shows where.
func TestProgressModes(t *testing.T) {
	b := newBench(t)
	dir := b.kit(map[string]string{"hello.yaml": workload, "hello.dockerfile": "FROM kitbox.local/base:1\nUSER root\nRUN echo from the step\nCMD [\"sh\"]\n"})
	for mode, c := range map[string]struct{ has, lacks string }{
		"auto":  {"] RUN echo from the step\n", "\x1b["}, // no terminal: plain lines
		"plain": {"from the step\n", "\x1b["},
		"json":  {`"vertexes":[`, "\x1b["},
		"quiet": {"", "RUN"},
	} {
		var shown bytes.Buffer
		_, err := builder.Build(context.Background(), builder.Request{Home: b.home, Context: dir, NoCache: true}, builder.Progress{Mode: mode, Out: &shown})
		if err != nil || !strings.Contains(shown.String(), c.has) || strings.Contains(shown.String(), c.lacks) {
			t.Errorf("%s: %v\n%s", mode, err, &shown)
		}
	}
	if err := (builder.Progress{Mode: "loud"}).Check(); err == nil || !strings.Contains(err.Error(), "loud") {
		t.Errorf("loud: %v", err)
	}
	// On a terminal, script's, it moves the cursor as buildx does.
	script := needs.Program(t, "script", "apt-get install bsdutils")
	cmd := exec.Command(script, "-qec", os.Args[0]+" build --home "+b.home+" --no-cache "+dir, "/dev/null")
	cmd.Env = append(os.Environ(), "TERM=xterm", "NO_COLOR=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("\x1b[1A")) || !bytes.Contains(out, []byte("RUN echo from the step")) {
		t.Errorf("on a terminal: %v\n%q", err, out)
	}
}
