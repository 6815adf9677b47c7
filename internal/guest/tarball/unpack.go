package tarball

import (
	"archive/tar"
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// UnpackOptions say what of a stream is taken, and how. The zero value takes
// nothing that leads out of the directory.
type UnpackOptions struct {
	// Base is the only name that may appear at the top; empty allows any.
	Base string

	// Preserve keeps owners and set-id bits. Otherwise files belong to who
	// makes them.
	Preserve bool

	// Links keeps symbolic links that lead out of the directory, or might.
	// Nothing is ever written through one.
	Links bool

	// MaxBytes and MaxEntries bound what is written; 0: no bound.
	MaxBytes, MaxEntries int64

	// Left is told what is left out, one line each; nil discards.
	Left func(string)
}

// Unpack writes the tar r into dir, which exists. Nothing is written outside of
// it, whatever r says and whatever links there are. A file is replaced as a whole;
// what was written before an error stays.
func Unpack(r io.Reader, dir string, o UnpackOptions) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	u := &unpacker{root: root, o: o}
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("the stream is no tar, or damaged: %w", err)
		}
		if err := u.entry(h, t); err != nil {
			return err
		}
	}
	if _, err := io.Copy(io.Discard, io.LimitReader(r, maxTail)); err != nil {
		return err
	}
	return u.finish()
}

// maxTail is how much padding behind the end of a tar is read, in bytes.
const maxTail = 1 << 20

type unpacker struct {
	root    *os.Root
	o       UnpackOptions
	entries int64
	bytes   int64
	dirs    []*tar.Header // whose modes are set at the end: a read-only one is filled first
}

// local turns the name of an entry into a path below the directory.
func (u *unpacker) local(name string) (string, error) {
	p := strings.TrimLeft(name, "/")
	if p = strings.TrimRight(p, "/"); p == "" {
		p = "."
	}
	if !filepath.IsLocal(p) || strings.ContainsRune(p, 0) {
		return "", fmt.Errorf("%q leads out of the directory and is refused", name)
	}
	p = path.Clean(p)
	if first, _, _ := strings.Cut(p, "/"); u.o.Base != "" && first != u.o.Base {
		return "", fmt.Errorf("%q is not what was asked for, which is %q; refused", name, u.o.Base)
	}
	return p, nil
}

func (u *unpacker) left(format string, args ...any) {
	if u.o.Left != nil {
		u.o.Left(fmt.Sprintf(format, args...))
	}
}

func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if u.entries++; u.o.MaxEntries > 0 && u.entries > u.o.MaxEntries {
		return fmt.Errorf("the stream has more than %d entries", u.o.MaxEntries)
	}
	p, err := u.local(h.Name)
	if err != nil {
		return err
	}
	if err := u.parents(p); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		err = u.dir(p, h)
	case tar.TypeReg:
		err = u.file(p, h, content)
	case tar.TypeSymlink:
		err = u.symlink(p, h)
	case tar.TypeLink:
		err = u.link(p, h)
	default:
		u.left("%s is a device, a pipe or something else that is no file", h.Name)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", h.Name, err)
	}
	return nil
}

// parents makes the directories above p. A link among them is refused: what seems
// to be below it would be elsewhere.
func (u *unpacker) parents(p string) error {
	dir := path.Dir(p)
	if dir == "." {
		return nil
	}
	at := ""
	for _, e := range strings.Split(dir, "/") {
		at = path.Join(at, e)
		st, err := u.root.Lstat(at)
		if errors.Is(err, fs.ErrNotExist) {
			if err = u.root.Mkdir(at, 0o755); err == nil {
				continue
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		if !st.IsDir() {
			return fmt.Errorf("%s: %s is no directory", p, at)
		}
	}
	return nil
}

func (u *unpacker) dir(p string, h *tar.Header) error {
	if p != "." {
		st, err := u.root.Lstat(p)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if err := u.root.Mkdir(p, 0o700); err != nil {
				return err
			}
		case err != nil:
			return err
		case !st.IsDir():
			return errors.New("there is something else than a directory already")
		default:
			return nil // keeps its mode
		}
		u.dirs = append(u.dirs, h)
	}
	return nil
}

// clear makes room for something that is no directory.
func (u *unpacker) clear(p string) error {
	st, err := u.root.Lstat(p)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.IsDir() {
		return errors.New("there is a directory already")
	}
	return inPlace(u.root.Remove(p))
}

func (u *unpacker) file(p string, h *tar.Header, content io.Reader) (err error) {
	if u.bytes += h.Size; u.o.MaxBytes > 0 && u.bytes > u.o.MaxBytes {
		return fmt.Errorf("the stream has more than %d bytes; --max-size raises the bound", u.o.MaxBytes)
	}
	if st, err := u.root.Lstat(p); err == nil && st.IsDir() {
		return errors.New("there is a directory already")
	}
	tmp := path.Join(path.Dir(p), ".kitbox-"+strings.ToLower(rand.Text()[:12]))
	f, err := u.root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = u.root.Remove(tmp)
		}
	}()
	err = sparsely(f, content)
	if err == nil && u.o.Preserve {
		err = f.Chown(h.Uid, h.Gid)
	}
	if err == nil {
		err = f.Chmod(u.mode(h)) // after the owner, which clears bits of it
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = u.root.Chtimes(tmp, h.ModTime, h.ModTime)
	}
	if err == nil {
		err = inPlace(u.root.Rename(tmp, p))
	}
	return err
}

// sparsely writes content to f, which is new, and leaves holes where long runs of it
// are zero: the image of a disk takes no more room in the copy than it holds.
func sparsely(f *os.File, content io.Reader) error {
	b, size := make([]byte, len(zeros)), int64(0)
	for {
		n, err := io.ReadFull(content, b)
		if n == len(zeros) && bytes.Equal(b, zeros[:]) {
			if _, err := f.Seek(int64(n), io.SeekCurrent); err != nil {
				return err
			}
		} else if _, err := f.Write(b[:n]); err != nil {
			return err
		}
		size += int64(n)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return f.Truncate(size) // it may end in a hole
		}
		if err != nil {
			return err
		}
	}
}

// zeros is the shortest run that is left out, several blocks of any filesystem.
var zeros [64 << 10]byte

// inPlace says in words why what has something mounted on it cannot be replaced, which
// the kernel calls a busy device.
func inPlace(err error) error {
	if errors.Is(err, syscall.EBUSY) {
		return fmt.Errorf("it is masked, protected, or mounted by itself, and cannot be replaced: %w", syscall.EBUSY)
	}
	return err
}

// mode is the mode of a new file or directory.
func (u *unpacker) mode(h *tar.Header) fs.FileMode {
	m := h.FileInfo().Mode()
	if u.o.Preserve {
		return m & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky)
	}
	return m & fs.ModePerm
}

func (u *unpacker) symlink(p string, h *tar.Header) error {
	if !u.o.Links && u.outward(p, h.Linkname) {
		u.left("%s is a link to %s, outside of what is copied", h.Name, h.Linkname)
		return nil
	}
	if err := u.clear(p); err != nil {
		return err
	}
	if err := u.root.Symlink(h.Linkname, p); err != nil {
		return err
	}
	if u.o.Preserve {
		return u.root.Lchown(p, h.Uid, h.Gid)
	}
	return nil
}

// outward reports whether a link at p to target may lead out of the directory. A
// step up behind a step down could go through another link, so only those at the
// beginning are reckoned with.
func (u *unpacker) outward(p, target string) bool {
	if target == "" || path.IsAbs(target) {
		return true
	}
	down := false
	for _, e := range strings.Split(target, "/") {
		if e == ".." && down {
			return true
		}
		down = down || e != ".." && e != "." && e != ""
	}
	to := path.Join(path.Dir(p), target)
	first, _, _ := strings.Cut(to, "/")
	return !filepath.IsLocal(to) || u.o.Base != "" && first != u.o.Base
}

func (u *unpacker) link(p string, h *tar.Header) error {
	old, err := u.local(h.Linkname)
	if err != nil {
		return err
	}
	if err := u.parents(old); err != nil {
		return err
	}
	if old == p {
		return nil
	}
	if err := u.clear(p); err != nil {
		return err
	}
	return u.root.Link(old, p)
}

// finish gives directories their modes and times, inner ones first.
func (u *unpacker) finish() error {
	for _, h := range slices.Backward(u.dirs) {
		p, err := u.local(h.Name)
		if err != nil {
			return err
		}
		// Nothing of the stream can have put a link here since: what is a
		// directory is not replaced.
		if u.o.Preserve {
			if err := u.root.Lchown(p, h.Uid, h.Gid); err != nil {
				return fmt.Errorf("%s: %w", h.Name, err)
			}
		}
		if err := u.root.Chmod(p, u.mode(h)); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
		if err := u.root.Chtimes(p, h.ModTime, h.ModTime); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
	return nil
}
