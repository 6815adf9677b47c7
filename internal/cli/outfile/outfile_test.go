package outfile

import (
	"io"
	"os"
	"strings"
	"testing"
)

func TestAnErrorNamesTheFileThatWasAskedFor(t *testing.T) {
	write := func(f *os.File) error { _, err := io.WriteString(f, "x"); return err }
	if err := Write("/nodir/y", write); err == nil || err.Error() != "open /nodir/y: no such file or directory" {
		t.Error(err)
	}
	dir := t.TempDir()
	if err := Write(dir, write); err == nil || !strings.Contains(err.Error(), dir+":") {
		t.Error(err)
	}
}

func TestAFileThatFailsHalfWayLeavesTheOldOne(t *testing.T) {
	dir := t.TempDir()
	name := dir + "/x"
	if err := os.WriteFile(name, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := Write(name, func(f *os.File) error {
		_, _ = io.WriteString(f, "half")
		return io.ErrUnexpectedEOF
	})
	if b, rerr := os.ReadFile(name); err == nil || rerr != nil || string(b) != "old" {
		t.Errorf("%v; %q, %v", err, b, rerr)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left %v, %v", left, err)
	}
	if err := Write(name, func(f *os.File) error { _, err := io.WriteString(f, "new"); return err }); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(name); err != nil || string(b) != "new" {
		t.Errorf("%q, %v", b, err)
	}
}
