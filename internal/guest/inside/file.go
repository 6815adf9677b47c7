package inside

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/internal/guest/keystore"
)

// maxAppend bounds a file that is appended to, in bytes; the largest store of
// certificates has half a megabyte.
const maxAppend = 16 << 20

// Program opens this program for files that are it; nil if none of fs is. It has
// to be called where /proc is.
func Program(fs []File) (*os.File, error) {
	if !slices.ContainsFunc(fs, func(f File) bool { return f.Program }) {
		return nil, nil
	}
	p, err := os.Open("/proc/self/exe")
	if err != nil {
		return nil, fmt.Errorf("this program cannot read itself: %w", err)
	}
	return p, nil
}

// WriteFiles writes fs, in order, into what this process sees as its root.
// program is as [Program] returns it, and closed.
func WriteFiles(fs []File, program *os.File) error {
	if program != nil {
		defer program.Close()
	}
	for _, f := range fs {
		var err error
		switch {
		case f.Java:
			javaStores(f)
		case f.Link:
			err = linkTo(f)
		case f.Program:
			err = copyProgram(f, program)
		default:
			err = writeFile(f)
		}
		if err != nil {
			return fmt.Errorf("writing %s: %w", f.Path, err)
		}
	}
	return nil
}

// linkTo makes a link to f.Content. Whatever has the name already keeps it.
func linkTo(f File) error {
	if err := os.MkdirAll(path.Dir(f.Path), 0o755); err != nil {
		return err
	}
	if err := os.Symlink(f.Content, f.Path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// copyProgram makes f.Path this program, unless it has its size already: a start
// need not write it anew.
func copyProgram(f File, program *os.File) error {
	want, err := program.Stat()
	if err != nil {
		return err
	}
	if have, err := os.Lstat(f.Path); err == nil && have.Mode().IsRegular() && have.Size() == want.Size() && have.Mode().Perm() == 0o755 {
		return nil
	}
	return replace(f.Path, 0o755, func(w io.Writer) error {
		if _, err := program.Seek(0, io.SeekStart); err != nil {
			return err
		}
		_, err := io.Copy(w, program)
		return err
	})
}

// maxStores bounds how many key stores are looked at.
const maxStores = 64

// javaStores adds certificates to the key stores that match. None has to be there,
// and one that cannot be read is no reason not to start.
func javaStores(f File) {
	found, err := filepath.Glob(f.Path)
	seen := map[string]bool{}
	for _, p := range found[:min(len(found), maxStores)] {
		at, lerr := filepath.EvalSymlinks(p)
		if lerr != nil || seen[at] {
			continue
		}
		seen[at] = true
		if hidden, merr := inMount(File{Path: at}); merr != nil || hidden {
			continue // not the machine's own
		}
		if jerr := javaStore(at, f.Content); jerr != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", p, jerr))
		}
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "kit-guest: Java does not trust what the sandbox trusts: %v\n", err)
	}
}

func javaStore(at, certs string) error {
	st, err := os.Stat(at)
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() || st.Size() > maxAppend {
		return errors.New("no key store")
	}
	have, err := os.ReadFile(at)
	if err != nil {
		return err
	}
	changed, err := keystore.Add(have, certs)
	if err != nil || bytes.Equal(have, changed) {
		return err
	}
	return replace(at, st.Mode().Perm(), func(w io.Writer) error {
		_, err := w.Write(changed)
		return err
	})
}

// writeFile replaces what is at f.Path, a link too: many images link
// /etc/resolv.conf to a file of a daemon that does not run here.
func writeFile(f File) error {
	if f.Append || f.Optional {
		at, err := filepath.EvalSymlinks(f.Path)
		switch {
		case err == nil:
			f.Path = at
		case f.Optional:
			return nil // missing, or a link to nowhere
		}
	}
	if f.Append {
		st, err := os.Stat(f.Path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return err
		case !st.Mode().IsRegular() || st.Size() > maxAppend:
			return nil // not what it is taken for; a device could not be read to its end
		default:
			have, err := os.ReadFile(f.Path)
			if err != nil {
				return err
			}
			if strings.Contains(string(have), f.Content) {
				return nil
			}
			if len(have) > 0 && have[len(have)-1] != '\n' {
				have = append(have, '\n')
			}
			f.Content, f.Mode = string(have)+f.Content, uint32(st.Mode().Perm())
		}
	}
	mode := os.FileMode(f.Mode & 0o777)
	if mode == 0 {
		mode = 0o644
	}
	return replace(f.Path, mode, func(w io.Writer) error {
		_, err := io.WriteString(w, f.Content)
		return err
	})
}

// replace makes name a file that write has written, in one step.
func replace(name string, mode os.FileMode, write func(io.Writer) error) error {
	if err := os.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	tmp := path.Join(path.Dir(name), ".kitbox-boot")
	// Whatever the sandbox has put there would keep it from booting.
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	w, err := os.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = write(w)
	if err == nil {
		err = w.Chmod(mode)
	}
	if cerr := w.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp, name)
	}
	if err != nil {
		os.Remove(tmp)
	}
	return err
}
