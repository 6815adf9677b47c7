// Package e2e drives the built programs as a user would: Kits from directories,
// the platform base, real namespaces, real clients. Every test shares one state
// directory, which the last test finds clean.
package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var (
	home string // KITBOX_HOME of all tests here
	bin  string // directory of the programs
	repo string // root of the module
)

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	fail := func(format string, args ...any) int {
		// In CI nothing may be missing; elsewhere say what is and go on.
		fmt.Fprintf(os.Stderr, "e2e: "+format+"\n", args...)
		if os.Getenv("CI") != "" {
			return 1
		}
		fmt.Fprintln(os.Stderr, "e2e: SKIPPED")
		return 0
	}
	bin = os.Getenv("KITBOX_LIBEXEC")
	if bin == "" {
		return fail("KITBOX_LIBEXEC does not name the built programs; run `make test`")
	}
	wd, err := os.Getwd()
	if err != nil {
		return fail("%v", err)
	}
	repo = filepath.Dir(filepath.Dir(wd))
	for _, p := range []string{"runc", "mmdebstrap"} {
		if _, err := exec.LookPath(p); err != nil {
			return fail("%s is missing; run `make deps`", p)
		}
	}
	home, err = os.MkdirTemp("", "kitbox-e2e-")
	if err != nil {
		return fail("%v", err)
	}
	defer os.RemoveAll(home)
	if err := installBase(home); err != nil {
		return fail("making the platform base: %v", err)
	}
	defer func() {
		// The builder child outlives the commands on purpose; not the tests.
		_ = command(context.Background(), "kit-builder", "stop").Run()
	}()
	return m.Run()
}

// installBase puts the platform base into home. It is made once per machine and
// kept in the user's cache, since making it downloads a distribution.
func installBase(home string) error {
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	keep := filepath.Join(cache, "kitbox-test", "base-1")
	cmd := exec.Command(filepath.Join(bin, "kitbox"), "base", "create")
	cmd.Env = append(os.Environ(), "KITBOX_HOME="+keep)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return err
	}
	return exec.Command("cp", "-al", filepath.Join(keep, "images"), filepath.Join(home, "images")).Run()
}

func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(bin, name), args...)
	cmd.Dir = repo
	cmd.Env = append(os.Environ(), "KITBOX_HOME="+home, "KITBOX_LIBEXEC="+bin, "NO_COLOR=1")
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// An outcome is how a command ended.
type outcome struct {
	Stdout, Stderr string
	Code           int
}

// kitbox runs the command with no terminal and no input.
func kitbox(t *testing.T, args ...string) outcome {
	t.Helper()
	return kitboxIn(t, nil, args...)
}

func kitboxIn(t *testing.T, stdin []byte, args ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 3*time.Minute)
	defer cancel()
	cmd := command(ctx, "kitbox", args...)
	if stdin != nil {
		cmd.Stdin = bytes.NewReader(stdin)
	}
	return finish(t, cmd)
}

func finish(t *testing.T, cmd *exec.Cmd) outcome {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, errs.String())
	}
	return outcome{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// ok is kitbox for commands that must succeed; it returns stdout.
func ok(t *testing.T, args ...string) string {
	t.Helper()
	o := kitbox(t, args...)
	if o.Code != 0 {
		t.Fatalf("kitbox %s: status %d\nstdout: %s\nstderr: %s", strings.Join(args, " "), o.Code, o.Stdout, o.Stderr)
	}
	return o.Stdout
}

// sh runs a script in sandbox name as user ("" is the image's) and returns its
// outcome.
func sh(t *testing.T, name, user, script string) outcome {
	t.Helper()
	args := []string{"exec"}
	if user != "" {
		args = append(args, "-u", user)
	}
	return kitbox(t, append(args, name, "--", "sh", "-c", script)...)
}

const probe = "./test/e2e/testdata/kits/probe"
const addon = "./test/e2e/testdata/kits/addon"

// make creates a sandbox of the probe Kit and removes it with the test.
func create(t *testing.T, name string, args ...string) {
	t.Helper()
	// Registered first: a creation whose hook fails leaves a sandbox.
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if out, err := command(ctx, "kitbox", "rm", name).CombinedOutput(); err != nil && !strings.Contains(string(out), "no sandbox") && !strings.Contains(string(out), "not found") {
			t.Errorf("kitbox rm %s: %v\n%s", name, err, out)
		}
	})
	ok(t, append([]string{"create", "--name", name}, args...)...)
}
