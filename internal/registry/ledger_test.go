package registry

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/kitbox-dev/kitbox/internal/store/durable"
)

// A sandbox can begin and break off a push for ever.
func TestWhatIsForgottenDoesNotFillTheLedger(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	l, _, err := openLedger(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	kept := digest.FromString("kept")
	if err := l.add(kept, 7); err != nil {
		t.Fatal(err)
	}
	// As many broken pushes as it takes, without waiting for the disk each time.
	one := []byte(`{"digest":"` + digest.FromString("lost").String() + `","bytes":1}` + "\n")
	l.lines = 2 * maxKnown
	if err := durable.WriteCache(path, bytes.Repeat(one, l.lines)); err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"a", "b"} {
		d := digest.FromString(s)
		if err := l.add(d, 1); err != nil {
			t.Fatal(err)
		}
		delete(l.bytes, d)
	}
	lines, err := durable.Lines(path)
	if err != nil || len(lines) != 3 || l.lines != 3 || !bytes.Contains(lines[0], []byte(kept)) {
		t.Errorf("%d lines, %d counted, %v: %.200s", len(lines), l.lines, err, lines)
	}
}
