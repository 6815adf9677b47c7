package e2e

import (
	"os"
	"syscall"
	"testing"
)

func readOwned(t *testing.T, path string) ([]byte, int) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return b, int(st.Sys().(*syscall.Stat_t).Uid)
}

func callerUID() int { return os.Getuid() }
