package child

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMain is also a program that lives on.
func TestMain(m *testing.M) {
	if os.Getenv("CHILD_TEST_LIVE_ON") == "" {
		os.Exit(m.Run())
	}
	own, err := os.Open(os.DevNull)
	if err == nil {
		err = CloseInherited(4, 6)
	}
	if err == nil {
		_, err = own.Stat()
	}
	for fd := 3; fd <= 6 && err == nil; fd++ {
		if _, ferr := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); ferr == nil {
			_, err = io.WriteString(os.Stdout, string(rune('0'+fd)))
		}
	}
	if err != nil {
		panic(err)
	}
}

func TestWhatWasInheritedIsClosedButForWhatIsKept(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	lock, err := os.Create(filepath.Join(t.TempDir(), "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "CHILD_TEST_LIVE_ON=1")
	cmd.ExtraFiles = []*os.File{lock, lock, lock, lock}
	cmd.Stderr = os.Stderr
	if out, err := cmd.Output(); err != nil || strings.TrimSpace(string(out)) != "36" {
		t.Errorf("it has %q, %v; want 3 and 6", out, err)
	}
}
