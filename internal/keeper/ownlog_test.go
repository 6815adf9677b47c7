package keeper

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/keeper/link"
)

func TestAKeepersOwnLogIsBoundedWhileItRuns(t *testing.T) {
	dir := t.TempDir()
	out, err := link.OpenLog(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	other, err := link.OpenLog(dir) // where the Go runtime writes when it gives up
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	log := slog.New(slog.NewTextHandler(&ownLog{dir: dir, out: []*os.File{out, other}}, nil))
	const messages = 20000
	for i := range messages {
		log.Warn("covering what appeared", "number", i, "err", "there is no room for another mount")
	}
	if _, err := other.WriteString("panic: at last\n"); err != nil {
		t.Fatal(err)
	}
	es, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	total := int64(0)
	for _, e := range es {
		st, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		total += st.Size()
	}
	if total > 3*link.MaxLog || len(es) != 2 {
		t.Errorf("%d files of %d bytes in all", len(es), total)
	}
	b, err := os.ReadFile(filepath.Join(dir, link.LogName))
	if err != nil || !bytes.Contains(b, fmt.Appendf(nil, "number=%d ", messages-1)) || !bytes.HasSuffix(b, []byte("panic: at last\n")) {
		t.Errorf("the newest messages are not at the end, %v", err)
	}
}
