package front

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// What the front links is made ready before each command, whether it is needed or
// not.
func TestTheFrontLinksLittle(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "github.com/kitbox-dev/kitbox/cmd/kitbox").Output()
	if err != nil {
		t.Fatal(err)
	}
	heavy := []string{"net/http", "crypto/tls", "crypto/x509", "oras.land/", "github.com/opencontainers/", "github.com/klauspost/", "go.yaml.in/", "github.com/vishvananda/",
		"github.com/google/nftables", "github.com/miekg/dns", "golang.org/x/net", "golang.org/x/text", "github.com/moby/"}
	pkgs := strings.Fields(string(out))
	if len(pkgs) < 100 {
		t.Fatalf("go list knows %d packages", len(pkgs))
	}
	for _, p := range pkgs {
		for _, h := range heavy {
			if strings.HasPrefix(p, h) {
				t.Errorf("%s is linked", p)
			}
		}
	}
}

func TestWhatIsCarriedOutHere(t *testing.T) {
	for args, want := range map[string]string{
		"":                        "",
		"version":                 "",
		"--help":                  "",
		"--no-input":              "",
		"help exec":               "",
		"__complete exec ":        "",
		"run --rm k -- exec":      "",
		"exec t -- true":          "exec",
		"--no-input exec t true":  "exec",
		"exec -it -u root t sh":   "exec",
		"exec -e A=d t -- ls -d":  "exec",
		"exec --env=d t true":     "exec",
		"exec -d t -- true":       "",
		"exec -id t -- true":      "",
		"exec --detach t -- true": "",
		"exec -u root -d t true":  "",
		"exec":                    "exec", // which says what is missing
		"exec --help":             "exec",
		"stop t":                  "stop",
		"stop -q --grace 0s t":    "stop",
		"stop --grace=5s t":       "", // as good, and longer to look at
		"stop t u":                "",
		"stop":                    "",
		"stop --grace t":          "",
		"stop --help":             "",
		"stop --json t":           "",
		"start t":                 "start",
		"start -q t":              "start",
		"start -q":                "",
		"start t u":               "",
		"restart t":               "",
		"stopp t":                 "",
	} {
		got := ""
		if i := pick(strings.Fields(args)); i >= 0 {
			got = quick[i].command.Names[0]
		}
		if got != want {
			t.Errorf("%q: %q, want %q", args, got, want)
		}
	}
}

// A signal that comes just before this program becomes the whole one is for the
// command, too.
func TestNoSignalIsLostOnTheWayToTheWholeProgram(t *testing.T) {
	t.Setenv("KITBOX_LIBEXEC", "/nonexistent")
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for i := range 2000 {
		_, h := hear()
		if i%2 == 0 {
			// This thread has it before the call returns.
			if err := unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGTERM); err != nil {
				t.Fatal(err)
			}
		}
		if got := h.end(); got != (i%2 == 0) {
			t.Fatalf("round %d: a signal was heard: %v", i, got)
		}
	}
	ctx, h := hear()
	if err := unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if err := h.succeed([]string{"kitbox", "stop", "t"}); !errors.Is(err, context.Canceled) || ctx.Err() == nil {
		t.Errorf("the whole program is started in spite of a signal: %v, %v", err, ctx.Err())
	}
}

// Where the whole program should be there can be this one, by a link or a copy of the
// wrong file.
func TestItDoesNotBecomeItselfForEver(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(self, filepath.Join(dir, Engine)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KITBOX_LIBEXEC", dir)
	// This test's own program would be started otherwise, and fail for its arguments.
	if got := become([]string{"kitbox", "--not-for-tests"}); got != kiterr.StatusFailed {
		t.Errorf("status %d", got)
	}
}

// Without the whole program an exec has not started its command, and no other command
// has a status for that.
func TestAMissingProgramIsACommandThatWasNotStarted(t *testing.T) {
	t.Setenv("KITBOX_LIBEXEC", t.TempDir())
	t.Setenv("KITBOX_HOME", t.TempDir())
	for args, want := range map[string]int{
		"exec t true": kiterr.StatusCannotExec, "--no-input exec t true": kiterr.StatusCannotExec, "exec -d t true": kiterr.StatusCannotExec,
		"stop t": kiterr.StatusFailed, "run exec": kiterr.StatusFailed, "": kiterr.StatusFailed,
	} {
		if got := Main(append([]string{"kitbox"}, strings.Fields(args)...)); got != want {
			t.Errorf("%q: status %d, want %d", args, got, want)
		}
	}
}

// A box can be asked for whatever a command may turn out to need.
func TestWhatOnlyTheWholeProgramCanDoIsLeftToIt(t *testing.T) {
	left := errors.New("left to the whole program")
	b := &box{whole: func() error { return left }}
	d, err := sandbox.Detach(b)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Detach(t.Context(), &sandbox.Cmd{}); !errors.Is(err, left) {
		t.Errorf("Detach = %v", err)
	}
}
