// Package untar lays one layer's tar down in a directory, in the form that
// overlayfs reads: whiteouts are character devices 0/0, opaque directories carry
// the overlay attribute, owners, modes, times, hard links and extended attributes
// are the tar's.
//
// Tars come from strangers. Nothing in one can name a file outside its
// directory, smuggle overlayfs's own attributes in, make a device, or grow
// without bound. Where the directory is, and when it counts, is package layer's.
package untar

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/store/inventory"
	"github.com/kitbox-dev/kitbox/kiterr"
)

const (
	whiteoutPrefix = ".wh."
	opaqueMarker   = ".wh..wh..opq"
	aufsPrefix     = ".wh..wh." // bookkeeping of a file system that wrote such tars

	xattrPrefix = "SCHILY.xattr."

	// maxID is the largest user or group id that a machine maps (65536 ids
	// from 0). A file of another owner would be nobody's inside.
	maxID = 65535

	// maxScanned bounds the work of replacing directories: seconds.
	maxScanned = 100_000_000

	// maxHops is the kernel's own bound on symlinks in one path.
	maxHops = 40
)

// Limits bound one layer. Zero fields mean the defaults.
type Limits struct {
	Entries int   // default 2,000,000
	Bytes   int64 // of the uncompressed tar; default 64 GiB
}

const (
	defaultEntries = 2_000_000
	defaultBytes   = 64 << 30
)

// A Result is what was unpacked.
type Result struct {
	DiffID  digest.Digest // of the whole uncompressed stream
	Entries inventory.List
	Bytes   int64 // of file content

	// Implied are the directories that the tar needs and does not state,
	// parents first, relative without a leading slash; "." is the root.
	Implied []string

	// OpaqueRoot means that nothing of the layers below shows.
	OpaqueRoot bool

	// Left out on purpose: device nodes below /dev, where every machine
	// mounts its own, and extended attributes that only mean something to
	// the machine that made the tar.
	SkippedDevices    []string
	SkippedAttributes []string
}

// Unpack lays the tar in blob (plain, gzip or zstd) down in root, an empty
// directory that nobody else can reach. A tar that cannot be trusted is
// [kiterr.ErrRefused], with the entry's name. After an error root holds rubbish.
func Unpack(ctx context.Context, root string, blob io.Reader, lim Limits) (*Result, error) {
	if lim.Entries == 0 {
		lim.Entries = defaultEntries
	}
	if lim.Bytes == 0 {
		lim.Bytes = defaultBytes
	}
	s, err := newStream(ctx, blob, lim.Bytes)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	u := newUnpacker(root, lim)
	if err := u.run(s); err != nil {
		return nil, err
	}
	id, err := s.Digest()
	if err != nil {
		return nil, err
	}
	return u.result(id), nil
}

// An unpacker lays one tar down in one directory that nobody else uses.
//
// It is safe because it never asks the file system what a path is: nodes says
// so for every path that exists, every component of a path that it hands to the
// kernel is known to be a directory that it made, and symlinks in the tar's
// paths are followed in nodes, below the root.
type unpacker struct {
	root    string
	max     int              // entries
	maxSize int64            // of all content
	headers int              // seen so far, those that made nothing included
	scanned int              // nodes looked at by replace
	nodes   map[string]*node // by clean relative path; "" is the root
	white   map[string]bool  // paths to remove from the layers below
	bytes   int64
	devices []string
	attrs   map[string]bool // names of attributes that were left out
	buf     []byte
}

type node struct {
	inventory.Entry
	link   string            // target of a symlink
	mtime  time.Time         // directories: set at the end, when nothing changes them any more
	xattrs map[string]string // directories: likewise
}

func newUnpacker(root string, lim Limits) *unpacker {
	return &unpacker{
		root: root, max: lim.Entries, maxSize: lim.Bytes, white: map[string]bool{}, attrs: map[string]bool{}, buf: make([]byte, chunkBytes),
		nodes: map[string]*node{"": {Entry: inventory.Entry{Kind: inventory.Dir, Implied: true, Mode: 0o755}, mtime: time.Unix(0, 0)}},
	}
}

func refuse(name, format string, args ...any) error {
	return fmt.Errorf("entry %q %s: %w", name, fmt.Sprintf(format, args...), kiterr.ErrRefused)
}

func (u *unpacker) run(r io.Reader) error {
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return u.finish()
		}
		if err != nil {
			return fmt.Errorf("reading the tar: %w", err)
		}
		// Entries that replace each other make no node and still cost time.
		if u.headers++; u.headers > 4*u.max {
			return refuse(h.Name, "is one too many: a layer may have %d", u.max)
		}
		if err := u.entry(h, tr); err != nil {
			if errors.Is(err, kiterr.ErrRefused) {
				return err
			}
			return fmt.Errorf("entry %q: %w", h.Name, err)
		}
	}
}

// abs is the file system path of a clean relative path.
func (u *unpacker) abs(p string) string { return filepath.Join(u.root, p) }

func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	// Other programs take such a name for one below the root, or for one of their
	// own machine. Only the root itself is often written so, and means the same to
	// all of them. What links point to is always looked for inside.
	if strings.HasPrefix(h.Name, "/") && strings.Trim(h.Name, "/") != "" {
		return refuse(h.Name, "has an absolute name: names in a layer are relative to its root; copying the files in a recipe (COPY --from) writes them so")
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink, tar.TypeFifo, tar.TypeGNUSparse:
	case tar.TypeChar, tar.TypeBlock:
		// A device 0/0 would delete from the layers below, others would
		// reach hardware. Images that come from a whole system have the
		// usual ones, and every machine mounts a /dev of its own.
		if name, err := clean(h.Name); err == nil && strings.HasPrefix(name, "dev/") {
			if len(u.devices) < 100 { // for the record, which need not be complete
				u.devices = append(u.devices, name)
			}
			return nil
		}
		return refuse(h.Name, "is a device node")
	default:
		return refuse(h.Name, "has the unknown type %q", h.Typeflag)
	}
	name, err := clean(h.Name)
	if err != nil {
		return err
	}
	if h.Uid < 0 || h.Uid > maxID || h.Gid < 0 || h.Gid > maxID {
		return refuse(h.Name, "belongs to %d:%d; a machine has the ids 0 to %d", h.Uid, h.Gid, maxID)
	}
	dir, base := path.Split(name)
	if strings.HasPrefix(base, whiteoutPrefix) {
		return u.whiteout(h.Name, strings.TrimSuffix(dir, "/"), base)
	}
	if name == "" {
		if h.Typeflag != tar.TypeDir {
			return refuse(h.Name, "replaces the root by something that is no directory")
		}
	} else {
		parent, err := u.parent(h.Name, strings.TrimSuffix(dir, "/"))
		if err != nil {
			return err
		}
		name = path.Join(parent, base)
	}
	xattrs, err := u.xattrs(h)
	if err != nil {
		return err
	}
	n := &node{
		Entry: inventory.Entry{Path: name, Mode: uint32(h.Mode) & 0o7777, UID: uint32(h.Uid), GID: uint32(h.Gid)},
		mtime: h.ModTime, xattrs: xattrs,
	}
	old := u.nodes[name]
	if h.Typeflag == tar.TypeDir {
		n.Kind = inventory.Dir
		if old != nil && old.Kind == inventory.Dir {
			n.Opaque = old.Opaque
			u.nodes[name] = n
			return nil
		}
	}
	if len(u.nodes) >= u.max {
		return refuse(h.Name, "is one too many: a layer may have %d", u.max)
	}
	// A hard link is resolved before the old entry goes: it may point to it.
	var target *node
	if h.Typeflag == tar.TypeLink {
		if target, err = u.linkTarget(h); err != nil {
			return err
		}
		if target == old {
			return nil // a link to itself
		}
		if old != nil && strings.HasPrefix(target.Path, old.Path+"/") {
			return refuse(h.Name, "is a hard link to %q, which it replaces", h.Linkname)
		}
	}
	if old != nil {
		if err := u.replace(h.Name, old); err != nil {
			return err
		}
	}
	return u.create(n, h, target, content)
}

// create makes n, whose parent exists and whose path is free.
func (u *unpacker) create(n *node, h *tar.Header, target *node, content io.Reader) error {
	p := u.abs(n.Path)
	switch h.Typeflag {
	case tar.TypeDir:
		if err := os.Mkdir(p, 0o700); err != nil {
			return err
		}
	case tar.TypeReg, tar.TypeGNUSparse:
		n.Kind, n.Size = inventory.File, h.Size
		if h.Size > u.maxSize-u.bytes { // a sparse file can be larger than its tar
			return refuse(h.Name, "is too large: a layer may hold %d bytes", u.maxSize)
		}
		if err := u.file(n, p, content); err != nil {
			return err
		}
	case tar.TypeLink:
		if target.Kind == inventory.Dir {
			return refuse(h.Name, "is a hard link to a directory")
		}
		if err := os.Link(u.abs(target.Path), p); err != nil {
			return err
		}
		linked := *target
		linked.Path = n.Path
		n = &linked
	case tar.TypeSymlink:
		if len(h.Linkname) == 0 || len(h.Linkname) >= unix.PathMax || strings.ContainsRune(h.Linkname, 0) {
			return refuse(h.Name, "has no usable link target")
		}
		n.Kind, n.link, n.Mode = inventory.Symlink, h.Linkname, 0o777
		n.Sum = identity(sha256.Sum256([]byte(h.Linkname)), n.xattrs)
		if err := os.Symlink(h.Linkname, p); err != nil {
			return err
		}
		if err := u.attributes(n, p); err != nil {
			return err
		}
	case tar.TypeFifo:
		n.Kind = inventory.Fifo
		if err := unix.Mkfifo(p, 0o600); err != nil {
			return &os.PathError{Op: "mkfifo", Path: p, Err: err}
		}
		if err := u.attributes(n, p); err != nil {
			return err
		}
	}
	u.nodes[n.Path] = n
	return nil
}

// file writes a regular file and its attributes.
func (u *unpacker) file(n *node, p string, content io.Reader) error {
	f, err := os.OpenFile(p, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	for {
		k, err := content.Read(u.buf)
		if k > 0 {
			sum.Write(u.buf[:k])
			if _, err := f.Write(u.buf[:k]); err != nil {
				return err
			}
			u.bytes += int64(k)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("reading %q from the tar: %w", n.Path, err)
		}
	}
	n.Sum = identity([32]byte(sum.Sum(nil)), n.xattrs)
	fd := int(f.Fd())
	// Owner before mode: changing the owner clears setuid. Attributes last
	// but for the time: changing the owner drops file capabilities too.
	if err := unix.Fchown(fd, int(n.UID), int(n.GID)); err != nil {
		return ownerError(n, err)
	}
	if err := unix.Fchmod(fd, n.Mode); err != nil {
		return &os.PathError{Op: "chmod", Path: p, Err: err}
	}
	for k, v := range n.xattrs {
		if err := u.setxattr(n, k, unix.Fsetxattr(fd, k, []byte(v), 0)); err != nil {
			return err
		}
	}
	return utimes(p, n.mtime)
}

// attributes sets owner, mode, extended attributes and time of something that
// is not a regular file, without following a symlink.
func (u *unpacker) attributes(n *node, p string) error {
	if err := unix.Lchown(p, int(n.UID), int(n.GID)); err != nil {
		return ownerError(n, err)
	}
	if n.Kind != inventory.Symlink { // its mode means nothing
		if err := unix.Fchmodat(unix.AT_FDCWD, p, n.Mode, 0); err != nil {
			return &os.PathError{Op: "chmod", Path: p, Err: err}
		}
	}
	for k, v := range n.xattrs {
		if err := u.setxattr(n, k, unix.Lsetxattr(p, k, []byte(v), 0)); err != nil {
			return err
		}
	}
	return utimes(p, n.mtime)
}

// ownerError explains a failed chown: what is missing is a privilege.
func ownerError(n *node, err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("owner %d:%d: %w: layers are unpacked by root, or in a user namespace of 65536 ids: %w", n.UID, n.GID, err, kiterr.ErrUnavailable)
	}
	return fmt.Errorf("owner %d:%d: %w", n.UID, n.GID, err)
}

// setxattr judges the result of setting attribute k. What the disk cannot hold
// is recorded, except that a program without its file capability is broken.
func (u *unpacker) setxattr(n *node, k string, err error) error {
	if err == nil {
		return nil
	}
	if k != "security.capability" && (errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM)) {
		u.attrs[k] = true
		return nil
	}
	return fmt.Errorf("setting %s on %q: %w", k, n.Path, err)
}

func utimes(p string, t time.Time) error {
	ts := unix.NsecToTimespec(t.UnixNano())
	if t.Year() < 1902 || t.Year() > 2261 { // outside of what UnixNano can say
		ts = unix.Timespec{}
	}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, p, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "utimes", Path: p, Err: err}
	}
	return nil
}

// xattrs returns the extended attributes of h that are kept.
func (u *unpacker) xattrs(h *tar.Header) (map[string]string, error) {
	var out map[string]string
	for k, v := range h.PAXRecords {
		name, ok := strings.CutPrefix(k, xattrPrefix)
		if !ok {
			continue
		}
		switch {
		case strings.HasPrefix(name, "trusted."), strings.HasPrefix(name, "user.overlay."), name == "security.selinux", name == "security.ima", name == "security.evm":
			// overlayfs would obey the first two: an image could make
			// directories opaque or redirect them. The labels belong to
			// the machine that wrote the tar.
			u.attrs[name] = true
		case len(name) > unix.NAME_MAX || len(v) > 64<<10 || strings.ContainsRune(name, 0):
			return nil, refuse(h.Name, "has an extended attribute that is too long")
		default:
			if out == nil {
				out = map[string]string{}
			}
			out[name] = v
		}
	}
	return out, nil
}

// identity mixes extended attributes into a content digest.
func identity(sum [32]byte, xattrs map[string]string) [32]byte {
	if len(xattrs) == 0 {
		return sum
	}
	h := sha256.New()
	h.Write(sum[:])
	for _, k := range slices.Sorted(maps.Keys(xattrs)) {
		fmt.Fprintf(h, "%d:%s%d:%s", len(k), k, len(xattrs[k]), xattrs[k])
	}
	return [32]byte(h.Sum(nil))
}

// clean turns a tar name into a relative path without "." and "..". Names that
// climb are refused even where the kernel would stop them at the root: no
// honest tar has them.
func clean(name string) (string, error) {
	if name == "" || strings.ContainsRune(name, 0) {
		return "", refuse(name, "has no usable name")
	}
	if len(name) >= unix.PathMax-256 {
		return "", refuse(name[:64]+"…", "has a path of %d bytes, the limit is %d", len(name), unix.PathMax-256)
	}
	var parts []string
	for _, part := range strings.Split(name, "/") {
		switch {
		case part == "" || part == ".":
		case part == "..":
			return "", refuse(name, "climbs with \"..\"")
		case len(part) > unix.NAME_MAX:
			return "", refuse(name[:64]+"…", "has a component of %d bytes, the limit is %d", len(part), unix.NAME_MAX)
		default:
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, "/"), nil
}

// parent makes sure that dir (clean) is a directory in this layer, following
// symlinks of the layer as the kernel would in a machine, and returns its real
// path. Missing directories become implied ones.
func (u *unpacker) parent(name, dir string) (string, error) {
	at, rest, hops := "", dir, 0
	for rest != "" {
		part, tail, _ := strings.Cut(rest, "/")
		rest = tail
		switch part {
		case "", ".":
			continue
		case "..": // out of a symlink's target; the root is its own parent
			at = parentOf(at)
			continue
		}
		next := path.Join(at, part)
		n := u.nodes[next]
		switch {
		case n == nil:
			if len(u.nodes) >= u.max {
				return "", refuse(name, "is one too many: a layer may have %d", u.max)
			}
			if len(next) >= unix.PathMax-256 {
				return "", refuse(name, "leads to a path that is too long")
			}
			if !utf8.ValidString(next) { // meta.json could not name it
				return "", refuse(name, "lies in a directory that the tar does not state and whose name is not UTF-8")
			}
			if err := os.Mkdir(u.abs(next), 0o700); err != nil {
				return "", err
			}
			u.nodes[next] = &node{Entry: inventory.Entry{Path: next, Kind: inventory.Dir, Implied: true, Mode: 0o755}, mtime: time.Unix(0, 0)}
			at = next
		case n.Kind == inventory.Dir:
			at = next
		case n.Kind == inventory.Symlink:
			if hops++; hops > maxHops {
				return "", refuse(name, "goes through more than %d symlinks", maxHops)
			}
			if strings.HasPrefix(n.link, "/") {
				at = ""
			}
			rest = n.link + "/" + rest
			if len(rest) > 4*unix.PathMax {
				return "", refuse(name, "goes through symlinks to a path that is too long")
			}
		default:
			return "", refuse(name, "lies below %q, which is no directory", next)
		}
	}
	return at, nil
}

func parentOf(p string) string {
	if i := strings.LastIndexByte(p, '/'); i >= 0 {
		return p[:i]
	}
	return ""
}

// linkTarget finds what a hard link points to. It must be in this layer.
func (u *unpacker) linkTarget(h *tar.Header) (*node, error) {
	target, err := clean(h.Linkname)
	if err != nil {
		return nil, refuse(h.Name, "is a hard link to %q, which is no path inside the layer", h.Linkname)
	}
	if n := u.nodes[target]; n != nil {
		return n, nil
	}
	// Only directories that exist are gone through: a link must not imply
	// directories before it is known to be good.
	at, hops := "", 0
	for rest := target; ; {
		part, tail, more := strings.Cut(rest, "/")
		rest = tail
		if part == ".." {
			at = parentOf(at)
			continue
		}
		next := path.Join(at, part)
		n := u.nodes[next]
		switch {
		case n == nil:
			return nil, refuse(h.Name, "is a hard link to %q, which this layer does not hold", h.Linkname)
		case !more:
			return n, nil
		case n.Kind == inventory.Symlink:
			if hops++; hops > maxHops {
				return nil, refuse(h.Name, "goes through more than %d symlinks", maxHops)
			}
			if strings.HasPrefix(n.link, "/") {
				at = ""
			}
			rest = strings.Trim(n.link, "/") + "/" + rest
		default:
			at = next
		}
	}
}

// replace removes old and what is below it, for an entry of another kind.
func (u *unpacker) replace(name string, old *node) error {
	if old.Kind != inventory.Dir {
		delete(u.nodes, old.Path)
		return os.Remove(u.abs(old.Path))
	}
	// Linear in the layer, so that a tar could buy much work with few bytes.
	if u.scanned += len(u.nodes); u.scanned > maxScanned {
		return refuse(name, "replaces a directory once too often")
	}
	for p := range u.nodes {
		if p == old.Path || strings.HasPrefix(p, old.Path+"/") {
			delete(u.nodes, p)
		}
	}
	return os.RemoveAll(u.abs(old.Path))
}

// whiteout notes a deletion. It concerns the layers below, whatever this layer
// has at the path before or after it, so it takes effect in finish.
func (u *unpacker) whiteout(name, dir, base string) error {
	if base != opaqueMarker && strings.HasPrefix(base, aufsPrefix) {
		return nil
	}
	hidden := strings.TrimPrefix(base, whiteoutPrefix)
	if hidden == "" || hidden == "." || hidden == ".." {
		return refuse(name, "is a whiteout of nothing")
	}
	parent, err := u.parent(name, dir)
	if err != nil {
		return err
	}
	if base == opaqueMarker {
		u.nodes[parent].Opaque = true
		return nil
	}
	if len(u.nodes)+len(u.white) >= u.max {
		return refuse(name, "is one too many: a layer may have %d", u.max)
	}
	u.white[path.Join(parent, hidden)] = true
	return nil
}

// finish lays the whiteouts down and gives directories their attributes, which
// no later entry disturbs then.
func (u *unpacker) finish() error {
	for p := range u.white {
		if n := u.nodes[p]; n != nil {
			// The layer's own entry hides a file by being there; a
			// directory must say that it does not merge.
			if n.Kind == inventory.Dir {
				n.Opaque = true
			}
			continue
		}
		if n := u.nodes[parentOf(p)]; n == nil || n.Kind != inventory.Dir {
			continue // its directory was replaced since: nothing of it shows
		}
		if err := unix.Mknod(u.abs(p), unix.S_IFCHR, 0); err != nil {
			return &os.PathError{Op: "mknod", Path: u.abs(p), Err: err}
		}
		u.nodes[p] = &node{Entry: inventory.Entry{Path: p, Kind: inventory.Whiteout}}
	}
	for _, n := range u.nodes {
		if n.Kind != inventory.Dir {
			continue
		}
		p := u.abs(n.Path)
		if n.Opaque {
			if err := setOpaque(p); err != nil {
				return err
			}
		}
		if err := u.attributes(n, p); err != nil {
			return err
		}
	}
	return nil
}

// setOpaque marks directory p for both kinds of overlay mount: the kernel reads
// trusted.* in a mount made by real root, and user.* in one made inside a user
// namespace (mount option userxattr).
func setOpaque(p string) error {
	if err := unix.Lsetxattr(p, "user.overlay.opaque", []byte("y"), 0); err != nil {
		return fmt.Errorf("this file system cannot hold user extended attributes, which layers need (%w): set KITBOX_HOME to a directory on ext4, xfs or btrfs: %w", err, kiterr.ErrUnavailable)
	}
	err := unix.Lsetxattr(p, "trusted.overlay.opaque", []byte("y"), 0)
	if err != nil && !errors.Is(err, unix.EPERM) { // not ours to set inside a user namespace
		return &os.PathError{Op: "setxattr", Path: p, Err: err}
	}
	return nil
}

// result describes what was laid down.
func (u *unpacker) result(id digest.Digest) *Result {
	root := u.nodes[""]
	r := &Result{
		DiffID: id, Bytes: u.bytes, OpaqueRoot: root.Opaque, SkippedDevices: u.devices,
		SkippedAttributes: slices.Sorted(maps.Keys(u.attrs)), Entries: make(inventory.List, 0, len(u.nodes)-1),
	}
	for p, n := range u.nodes {
		if p != "" {
			r.Entries = append(r.Entries, n.Entry)
		}
	}
	slices.SortFunc(r.Entries, func(a, b inventory.Entry) int { return cmp.Compare(a.Path, b.Path) })
	if root.Implied {
		r.Implied = append(r.Implied, ".")
	}
	for _, e := range r.Entries {
		if e.Implied {
			r.Implied = append(r.Implied, e.Path)
		}
	}
	return r
}
