package layer_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/kitbox-dev/kitbox/internal/store/inventory"
	"github.com/kitbox-dev/kitbox/internal/store/layer"
	"github.com/kitbox-dev/kitbox/internal/store/untar"
)

// TestMain lets the test binary be the process that is killed while it unpacks.
func TestMain(m *testing.M) {
	if file := os.Getenv("LAYER_TEST_UNPACK"); file != "" {
		os.Exit(unpackAndTell(file, os.Getenv("LAYER_TEST_STORE")))
	}
	os.Exit(m.Run())
}

// unpackAndTell unpacks the tar at file and says after each part that it read
// how far it is; when it is done, it says so.
func unpackAndTell(file, dir string) int {
	s, err := layer.Open(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	data, err := os.ReadFile(file)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	err = s.Unpack(context.Background(), digest.FromBytes(data), func() (io.ReadCloser, error) {
		return io.NopCloser(&telling{r: bytes.NewReader(data)}), nil
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("done")
	return 0
}

type telling struct{ r io.Reader }

func (t *telling) Read(p []byte) (int, error) {
	n, err := t.r.Read(p[:min(len(p), 64<<10)])
	fmt.Println("read", n)
	return n, err
}

// Whenever an unpacking process is killed, the layer is either whole or not
// there, and the next process makes it whole.
func TestKillNineLeavesNoHalfLayer(t *testing.T) {
	needRoot(t)
	var entries []tar.Header
	for i := range 300 {
		entries = append(entries, sized(fmt.Sprintf("d%d/f%d", i%7, i), 5000))
	}
	data := makeTar(t, entries...)
	id := digest.FromBytes(data)
	file := filepath.Join(t.TempDir(), "tar")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t)
	dir := filepath.Dir(filepath.Dir(s.Dir(id)))
	killed := 0
	for after := 1; ; after += 3 {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
		cmd.Env = append(os.Environ(), "LAYER_TEST_UNPACK="+file, "LAYER_TEST_STORE="+dir)
		cmd.Stderr = os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines, done := bufio.NewScanner(out), false
		for n := 0; n < after && lines.Scan(); n++ {
			done = done || lines.Text() == "done"
		}
		cmd.Process.Kill()
		for lines.Scan() {
			done = done || lines.Text() == "done"
		}
		cmd.Wait()
		has, err := s.Has(t.Context(), id)
		if err != nil || done && !has {
			t.Fatalf("Has = %v, %v; done %v", has, err, done)
		}
		if !has {
			killed++
			continue
		}
		m, err := s.Meta(id)
		if err != nil || m.Entries != 307 {
			t.Fatalf("%d entries, %v", m.Entries, err)
		}
		for i := range 300 {
			if st, err := os.Stat(filepath.Join(s.Dir(id), fmt.Sprintf("d%d/f%d", i%7, i))); err != nil || st.Size() != 5000 {
				t.Fatal(st, err)
			}
		}
		break
	}
	if killed == 0 {
		t.Error("no process was killed in the middle")
	}
	left := rubbish(t, s)
	if len(left) == 0 {
		t.Error("nobody left anything: the test kills too late")
	}
	old := time.Now().Add(-2 * time.Hour)
	for _, n := range left {
		os.Chtimes(filepath.Join(dir, n), old, old)
	}
	if _, _, err := s.Sweep(t.Context(), func(string, digest.Digest) bool { return true }, time.Hour); err == nil {
		// Rubbish is nobody's, whatever keep says of layers.
		if left := rubbish(t, s); len(left) > 0 {
			t.Errorf("%q left after a sweep", left)
		}
	} else {
		t.Error(err)
	}
}

// FuzzUnpack throws bytes at the unpacker. Whatever they are, nothing appears
// beside the layer, and what is accepted is what the inventory says.
func FuzzUnpack(f *testing.F) {
	if os.Geteuid() != 0 {
		f.Skip("needs root: layers keep their owners")
	}
	t := &testing.T{}
	for _, entries := range [][]tar.Header{
		{file("a"), dir("d", 0o755, 0), file("d/b"), link("l", "d"), file("l/c"), hard("h", "a"), file("d/.wh.x"), file("d/.wh..wh..opq")},
		{link("l", "/etc"), file("l/x"), hard("m", "l/x")},
		{file("a"), dir("a", 0o700, 3), link("a", ".."), file("a/b")},
	} {
		f.Add(makeTar(t, entries...))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		outer := t.TempDir()
		s, err := layer.Open(filepath.Join(outer, "home", "layers"))
		if err != nil {
			t.Fatal(err)
		}
		s.Limits = untar.Limits{Entries: 200, Bytes: 1 << 20}
		id := digest.FromBytes(data)
		err = s.Unpack(t.Context(), id, opener(data))
		if es, _ := os.ReadDir(outer); len(es) != 1 {
			t.Fatalf("outside there is %v", es)
		}
		if es, _ := os.ReadDir(filepath.Join(outer, "home")); len(es) != 1 {
			t.Fatalf("outside there is %v", es)
		}
		if left := rubbish(t, s); len(left) > 0 {
			t.Fatalf("%q left behind", left)
		}
		if err != nil {
			return
		}
		inv, err := s.Inventory(id)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		root := s.Dir(id)
		filepath.WalkDir(root, func(p string, d os.DirEntry, err error) error {
			if err != nil {
				t.Fatal(err)
			}
			if p == root {
				return nil
			}
			n++
			e, ok := inv.Find(strings.TrimPrefix(p, root+"/"))
			if !ok || (e.Kind == inventory.Dir) != d.IsDir() || (e.Kind == inventory.Whiteout) != (d.Type()&os.ModeCharDevice != 0) {
				t.Fatalf("%s is %v, the inventory says %+v", p, d.Type(), e)
			}
			return nil
		})
		if n != len(inv) {
			t.Fatalf("%d paths, the inventory lists %d", n, len(inv))
		}
	})
}
