package workspace

import (
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/kitbox-dev/kitbox/internal/plan"
)

// Warnings are what a user should know of p's host directories, one line each.
func Warnings(p *plan.Plan) (out []string) {
	for _, m := range p.Machine.Mounts {
		if len(m.Covers) > 0 && !m.ReadOnly && m.Owner != nil {
			out = append(out, gitWarnings(m.Source)...)
		}
	}
	return out
}

// maxGitConfig bounds what is read of a repository's configuration, in bytes.
const maxGitConfig = 1 << 20

// gitWarnings finds settings of the repository in dir that lead git to files which
// the sandbox can write although the configuration itself is protected.
func gitWarnings(dir string) (out []string) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil
	}
	defer root.Close()
	f, err := root.OpenFile(".git/config", os.O_RDONLY|syscall.O_NONBLOCK, 0) // a sandbox may have made it a pipe
	if err != nil {
		return nil
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil
	}
	b, err := io.ReadAll(io.LimitReader(f, maxGitConfig))
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(strings.ToLower(strings.TrimSpace(line)), "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		switch {
		case key == "hookspath":
			out = append(out, fmt.Sprintf("workspace %s: your git takes its hooks from %s (core.hooksPath); make sure that the sandbox cannot write there, or use --clone", dir, strings.Trim(value, `"`)))
		case strings.HasPrefix(key, "[include"):
			out = append(out, fmt.Sprintf("workspace %s: its Git configuration includes other files; make sure that the sandbox cannot write those, or use --clone", dir))
		}
	}
	return out
}
