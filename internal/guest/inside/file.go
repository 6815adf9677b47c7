package inside

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// maxAppend bounds a file that is appended to, in bytes; the largest store of
// certificates has half a megabyte.
const maxAppend = 16 << 20

// WriteFiles writes fs, in order, into what this process sees as its root.
func WriteFiles(fs []File) error {
	for _, f := range fs {
		if err := writeFile(f); err != nil {
			return fmt.Errorf("writing %s: %w", f.Path, err)
		}
	}
	return nil
}

// EncodeFiles is what [ReadFiles] reads.
func EncodeFiles(fs []File) ([]byte, error) {
	b, err := json.Marshal(fs)
	if err == nil && len(b) > maxConfig {
		err = fmt.Errorf("the machine's files have %d bytes, more than %d", len(b), maxConfig)
	}
	return b, err
}

// ReadFiles reads the files of a machine that the guest did not build.
func ReadFiles(r io.Reader) ([]File, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxConfig+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxConfig {
		return nil, errors.New("oversized")
	}
	var fs []File
	return fs, json.Unmarshal(b, &fs)
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
	if err := os.MkdirAll(path.Dir(f.Path), 0o755); err != nil {
		return err
	}
	tmp := path.Join(path.Dir(f.Path), ".kitbox-boot")
	mode := f.Mode & 0o777
	if mode == 0 {
		mode = 0o644
	}
	_ = os.Remove(tmp)
	w, err := os.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = w.WriteString(f.Content)
	if err == nil {
		err = w.Chmod(os.FileMode(mode))
	}
	if cerr := w.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp, f.Path)
	}
	if err != nil {
		os.Remove(tmp)
	}
	return err
}
