// Package kittest makes small Kits for tests, out of busybox and what the
// machine has, without a builder and without a base image.
package kittest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/store"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
)

// ErrNoBusybox means that the machine has no static busybox.
var ErrNoBusybox = errors.New("no static busybox on this machine: apt-get install busybox-static")

// A File is one entry of a layer.
type File struct {
	Content string
	Mode    fs.FileMode // permission bits; 0: 0644, or 0755 for a directory
	UID     int
	Link    string // target of a symbolic link
	Dir     bool
}

// A Kit is what Push makes.
type Kit struct {
	Ref        string // tag in the store
	Descriptor string // JSON or YAML of the published form
	Config     ocispec.ImageConfig
	Base       bool // start from the base layer
	Files      map[string]File
}

// Push puts k into the image store of home.
func Push(ctx context.Context, home string, k Kit) error {
	h, err := store.Open(home)
	if err != nil {
		return err
	}
	images, err := h.Images()
	if err != nil {
		return err
	}
	var tars [][]byte
	if k.Base {
		files, err := base()
		if err != nil {
			return err
		}
		b, err := pack(files)
		if err != nil {
			return err
		}
		tars = append(tars, b)
	}
	files := map[string]File{"/usr/share/sandbox/kit/" + stem(k.Ref) + "/kit.yaml": {Content: k.Descriptor}}
	for name, f := range k.Files {
		files[path.Join("/", name)] = f // a relative name has no root to end at
	}
	b, err := pack(files)
	if err != nil {
		return err
	}
	tars = append(tars, b)

	im := ocispec.Image{Platform: layout.HostPlatform(), Config: k.Config, RootFS: ocispec.RootFS{Type: "layers"}}
	m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Annotations: map[string]string{fetch.Annotation: k.Descriptor}}
	for _, t := range tars {
		desc, err := images.PushBytes(ctx, ocispec.MediaTypeImageLayer, t)
		if err != nil {
			return err
		}
		m.Layers = append(m.Layers, desc)
		im.RootFS.DiffIDs = append(im.RootFS.DiffIDs, digest.FromBytes(t))
	}
	if m.Config, err = images.PushJSON(ctx, ocispec.MediaTypeImageConfig, im); err != nil {
		return err
	}
	desc, err := images.PushJSON(ctx, ocispec.MediaTypeImageManifest, m)
	if err != nil {
		return err
	}
	return images.Tag(ctx, desc, k.Ref)
}

func stem(ref string) string {
	s, _, _ := strings.Cut(path.Base(ref), ":")
	return s
}

// base is a root file system with a shell, accounts and, if the machine has
// one, a bash with the libraries it needs.
func base() (map[string]File, error) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return nil, ErrNoBusybox
	}
	if out, err := exec.Command("ldd", busybox).CombinedOutput(); err == nil && strings.Contains(string(out), "=>") {
		return nil, ErrNoBusybox
	}
	b, err := os.ReadFile(busybox)
	if err != nil {
		return nil, err
	}
	files := map[string]File{
		"/bin/busybox":          {Content: string(b), Mode: 0o755},
		"/etc/passwd":           {Content: "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000::/home/agent:/bin/bash\nother:x:1001:1001::/home/other:/bin/sh\n"},
		"/etc/group":            {Content: "root:x:0:\nagent:x:1000:\nextra:x:2000:agent\nother:x:1001:\n"},
		"/root":                 {Dir: true, Mode: 0o700},
		"/home":                 {Dir: true},
		"/home/agent":           {Dir: true, UID: 1000},
		"/tmp":                  {Dir: true, Mode: 0o777 | fs.ModeSticky},
		"/home/agent/workspace": {Dir: true, UID: 1000},
	}
	out, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("busybox --list: %w", err)
	}
	for _, applet := range strings.Fields(string(out)) {
		files["/bin/"+applet] = File{Link: "busybox"}
	}
	files["/bin/busybox"] = File{Content: string(b), Mode: 0o755}
	return files, addBash(files)
}

var library = regexp.MustCompile(`(/[^ ]+) \(0x`)

func addBash(files map[string]File) error {
	out, err := exec.Command("ldd", "/bin/bash").Output()
	if err != nil {
		files["/bin/bash"] = File{Link: "busybox"}
		return nil //nolint:nilerr // a machine without bash tests with another shell
	}
	names := []string{"/bin/bash"}
	for _, m := range library.FindAllStringSubmatch(string(out), -1) {
		names = append(names, m[1])
	}
	for _, n := range names {
		b, err := os.ReadFile(n)
		if err != nil {
			return err
		}
		files[n] = File{Content: string(b), Mode: 0o755}
	}
	return nil
}

// pack makes a tar whose bytes depend on files alone.
func pack(files map[string]File) ([]byte, error) {
	var names []string
	for n := range files {
		names = append(names, n)
		// Parents are stated, so that their owner is no accident.
		for d := filepath.Dir(n); d != "/"; d = filepath.Dir(d) {
			if _, ok := files[d]; !ok && !slices.Contains(names, d) {
				names = append(names, d)
			}
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, n := range names {
		f, ok := files[n]
		if !ok {
			f = File{Dir: true}
		}
		h := &tar.Header{Name: strings.TrimPrefix(n, "/"), Mode: int64(f.Mode.Perm()), Uid: f.UID, Gid: f.UID, Typeflag: tar.TypeReg, Size: int64(len(f.Content))}
		if f.Mode&fs.ModeSticky != 0 {
			h.Mode |= 0o1000
		}
		switch {
		case f.Dir:
			h.Typeflag, h.Name, h.Size = tar.TypeDir, h.Name+"/", 0
			if f.Mode == 0 {
				h.Mode = 0o755
			}
		case f.Link != "":
			h.Typeflag, h.Linkname, h.Mode, h.Size = tar.TypeSymlink, f.Link, 0o777, 0
		case f.Mode == 0:
			h.Mode = 0o644
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := io.WriteString(w, f.Content); err != nil {
				return nil, err
			}
		}
	}
	if err := w.Close(); err != nil { // it writes the end of the archive
		return nil, err
	}
	return b.Bytes(), nil
}
