package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"debug/elf"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/internal/store/layout"
)

// name is the program's place in the image.
const name = "kit-frontend"

// labels tell BuildKit what the frontend needs and can do. It needs no network:
// what it reads comes over the gateway.
var labels = map[string]string{
	"moby.buildkit.frontend.network.none": "true",
	"moby.buildkit.frontend.caps":         "moby.buildkit.frontend.inputs,moby.buildkit.frontend.subrequests,moby.buildkit.frontend.contexts",
}

// A program is kit-frontend for one platform.
type program struct {
	platform ocispec.Platform
	data     []byte
}

// machines are the ELF machines of the platforms that can be named.
var machines = map[string]elf.Machine{
	"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64, "arm": elf.EM_ARM, "386": elf.EM_386,
	"riscv64": elf.EM_RISCV, "ppc64le": elf.EM_PPC64, "s390x": elf.EM_S390,
}

// readProgram reads OS/ARCH=FILE. An image of nothing but a program has no
// loader: one that needs libraries would end there with a message about itself
// that names a file which is there.
func readProgram(arg string) (program, error) {
	at, file, _ := strings.Cut(arg, "=")
	var p program
	p.platform.OS, p.platform.Architecture, _ = strings.Cut(at, "/")
	want, known := machines[p.platform.Architecture]
	if file == "" || p.platform.OS != "linux" || !known {
		return p, fmt.Errorf("%q: want linux/ARCH=PROGRAM", arg)
	}
	var err error
	if p.data, err = os.ReadFile(file); err != nil {
		return p, err
	}
	e, err := elf.NewFile(bytes.NewReader(p.data))
	if err != nil {
		return p, fmt.Errorf("%s is no program: %w", file, err)
	}
	switch {
	case e.Machine != want:
		return p, fmt.Errorf("%s is a program for %s, not for %s", file, e.Machine, at)
	case e.Section(".interp") != nil:
		return p, fmt.Errorf("%s needs a loader and libraries; build it with CGO_ENABLED=0", file)
	}
	return p, nil
}

// A stamp is what the image says of its source.
type stamp struct{ version, revision string }

func (s stamp) annotations() map[string]string {
	a := map[string]string{
		ocispec.AnnotationTitle:       "Kit frontend",
		ocispec.AnnotationDescription: "Builds Kits with BuildKit; named by # syntax=docker/sandbox-kit:3",
		ocispec.AnnotationVersion:     s.version,
	}
	if s.revision != "" {
		a[ocispec.AnnotationRevision] = s.revision
	}
	return a
}

// write stores the image of ps in the layout below dir, an index if there are
// several, under tag.
func write(ctx context.Context, dir, tag string, ps []program, s stamp) (ocispec.Descriptor, error) {
	var root ocispec.Descriptor
	store, err := layout.Open(filepath.Join(dir, "images"))
	if err != nil {
		return root, err
	}
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Annotations: s.annotations()}
	for _, p := range ps {
		d, err := writePlatform(ctx, store, p, s)
		if err != nil {
			return root, err
		}
		if slices.ContainsFunc(index.Manifests, func(o ocispec.Descriptor) bool { return o.Platform.Architecture == p.platform.Architecture }) {
			return root, fmt.Errorf("two programs for linux/%s", p.platform.Architecture)
		}
		root = d
		d.Platform = &p.platform
		index.Manifests = append(index.Manifests, d)
	}
	if len(ps) > 1 {
		if root, err = push(ctx, store, index.MediaType, index); err != nil {
			return root, err
		}
	}
	return root, store.Tag(ctx, root, tag)
}

func writePlatform(ctx context.Context, store *layout.Store, p program, s stamp) (ocispec.Descriptor, error) {
	var none ocispec.Descriptor
	tarball, err := pack(p.data)
	if err != nil {
		return none, err
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(tarball); err != nil {
		return none, err
	}
	if err := z.Close(); err != nil {
		return none, err
	}
	layer, err := store.PushBytes(ctx, ocispec.MediaTypeImageLayerGzip, zipped.Bytes())
	if err != nil {
		return none, err
	}
	config, err := push(ctx, store, ocispec.MediaTypeImageConfig, ocispec.Image{
		Platform: p.platform,
		Config:   ocispec.ImageConfig{Entrypoint: []string{"/" + name}, WorkingDir: "/", Labels: labels},
		RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.FromBytes(tarball)}},
		History:  []ocispec.History{{CreatedBy: "kitbox: bundle " + name}},
	})
	if err != nil {
		return none, err
	}
	return push(ctx, store, ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: config, Layers: []ocispec.Descriptor{layer}, Annotations: s.annotations(),
	})
}

// push stores a document with its keys sorted, so that it is the same each time.
func push(ctx context.Context, store *layout.Store, mediaType string, v any) (ocispec.Descriptor, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	return store.PushBytes(ctx, mediaType, b)
}

// pack returns a tar of the program, of no time and root's.
func pack(data []byte) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(data)), ModTime: time.Unix(0, 0)})
	if err == nil {
		_, err = w.Write(data)
	}
	if err == nil {
		err = w.Close()
	}
	return b.Bytes(), err
}
