// Package programs finds the programs that belong together: each is small, and
// starts those that it needs.
package programs

import (
	"os"
	"path/filepath"
)

// Dirs are the directories in which programs of ours may be: the one that
// KITBOX_LIBEXEC names, that of this program, and the one beside it where an
// installation puts them.
func Dirs() []string {
	var dirs []string
	if d := os.Getenv("KITBOX_LIBEXEC"); d != "" {
		dirs = append(dirs, d)
	}
	if exe, err := os.Executable(); err == nil {
		dir := filepath.Dir(exe)
		dirs = append(dirs, dir, filepath.Join(filepath.Dir(dir), "libexec", "kitbox"))
	}
	return dirs
}

// Find returns the path of the program called name in the first of dirs that has
// it; empty lets whoever needs it say what is missing.
func Find(dirs []string, name string) string {
	for _, d := range dirs {
		p := filepath.Join(d, name)
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return p
		}
	}
	return ""
}
