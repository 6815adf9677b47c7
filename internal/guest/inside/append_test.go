package inside

import (
	"os"
	"path/filepath"
	"testing"
)

func TestAppendingKeepsWhatIsThere(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
		return p
	}
	store := write("store", "one") // without a final newline
	link := filepath.Join(dir, "link")
	if err := os.Symlink("store", link); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time it is there already
		for _, p := range []string{store, link} {
			if err := writeFile(File{Path: p, Content: "two\n", Append: true}); err != nil {
				t.Fatal(err)
			}
		}
	}
	b, err := os.ReadFile(store)
	if err != nil || string(b) != "one\ntwo\n" {
		t.Errorf("%q, %v", b, err)
	}
	if st, err := os.Stat(store); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	if to, err := os.Readlink(link); err != nil || to != "store" {
		t.Errorf("the link is gone: %q, %v", to, err)
	}

	missing := filepath.Join(dir, "no", "where")
	if err := writeFile(File{Path: missing, Content: "x", Append: true, Optional: true}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(missing); err == nil {
		t.Error("an optional file was made")
	}
	if err := writeFile(File{Path: missing, Content: "x", Append: true}); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(missing); err != nil || string(b) != "x" {
		t.Errorf("%q, %v", b, err)
	}
	// What is no file is left alone.
	if err := writeFile(File{Path: dir, Content: "x", Append: true}); err != nil {
		t.Error(err)
	}
}

func TestWhatASandboxPutsInTheWayIsRemoved(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(dir, "outside")
	if err := os.WriteFile(outside, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	way := filepath.Join(dir, "etc", ".kitbox-boot")
	for what, put := range map[string]func() error{
		"directory": func() error { return os.MkdirAll(filepath.Join(way, "full"), 0o700) },
		"link":      func() error { return os.Symlink(outside, way) },
		"file":      func() error { return os.WriteFile(way, []byte("x"), 0o400) },
	} {
		if err := os.MkdirAll(filepath.Dir(way), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := put(); err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(dir, "etc", "hosts")
		if err := writeFile(File{Path: name, Content: what}); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if b, err := os.ReadFile(name); err != nil || string(b) != what {
			t.Errorf("%s: %q, %v", what, b, err)
		}
		if _, err := os.Lstat(way); !os.IsNotExist(err) {
			t.Errorf("%s: it is still there: %v", what, err)
		}
	}
	if b, err := os.ReadFile(outside); err != nil || len(b) != 0 {
		t.Errorf("a link was followed: %q, %v", b, err)
	}
}
