// Package needs is for tests that need something of the machine. One that lacks it
// is skipped and says what would have to be there; where CI is set it fails, since
// there nothing may be left out.
package needs

import (
	"os"
	"os/exec"
	"testing"
)

// Program returns the path of the program called name; how says what installs it.
func Program(t testing.TB, name, how string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		Lacks(t, "this machine has no %s: %s", name, how)
	}
	return path
}

// File returns name, of a file or directory that has to be there.
func File(t testing.TB, name, how string) string {
	t.Helper()
	if _, err := os.Stat(name); err != nil {
		Lacks(t, "this machine has no %s: %s", name, how)
	}
	return name
}

// Root goes on as root only; why says what takes it.
func Root(t testing.TB, why string) {
	t.Helper()
	if os.Geteuid() != 0 {
		Lacks(t, "this test needs root: %s", why)
	}
}

// Lacks ends the test, of a machine that lacks what the words say.
func Lacks(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf(format+"; nothing may be left out where CI is set", args...)
	}
	// The one place where a requirement skips: on a developer's machine, with what to install.
	t.Skipf(format, args...)
}
