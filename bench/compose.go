package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/assemble"
	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/engine/kittest"
)

// compose lays ten Kits over each other whose layers are unpacked, which may not
// write a byte. The peer copies the same layers, as whoever builds one image of
// the ten would.
func compose(ctx context.Context, o options, f *fixture, r *report) error {
	home := filepath.Join(f.home, "ten")
	big, mixins := 8000, 9
	if o.quick {
		big = 200
	}
	content := map[string]kittest.File{}
	for i := range big {
		content[fmt.Sprintf("/usr/share/d%d/f%d", i%100, i)] = kittest.File{Content: fmt.Sprintf("%01024d", i)}
	}
	kits := []kittest.Kit{{Ref: "work:1", Descriptor: `{"schemaVersion":"3","kind":"workload","provides":["work@1"]}`, Base: true, Files: content,
		Config: ocispec.ImageConfig{Entrypoint: []string{"/bin/sh"}}}}
	for k := range mixins {
		files := map[string]kittest.File{}
		for i := range 20 {
			files[fmt.Sprintf("/opt/kit%d/f%d", k, i)] = kittest.File{Content: fmt.Sprint(k, i)}
		}
		kits = append(kits, kittest.Kit{Ref: fmt.Sprintf("mixin%d:1", k), Files: files,
			Descriptor: fmt.Sprintf(`{"schemaVersion":"3","kind":"mixin","provides":["mixin%d@1"]}`, k)})
	}
	fetcher := &fetch.Fetcher{Home: home}
	var images []*fetch.Kit
	for _, k := range kits {
		if err := kittest.Push(ctx, home, k); err != nil {
			return err
		}
		im, err := fetcher.Fetch(ctx, k.Ref, nil)
		if err != nil {
			return err
		}
		images = append(images, im)
	}
	dirs, err := assemble.Rootfs(ctx, home, images, nil) // unpacks
	if err != nil {
		return err
	}
	before, err := treeBytes(home)
	if err != nil {
		return err
	}
	w, err := newStopwatch()
	if err != nil {
		return err
	}
	var ours, theirs series
	for i := range o.rounds {
		s, err := w.time(func() error { _, err := assemble.Rootfs(ctx, home, images, nil); return err })
		if err != nil {
			return err
		}
		ours = append(ours, s)
		to := filepath.Join(f.home, fmt.Sprint("copy", i))
		s, err = w.time(func() error {
			if err := os.Mkdir(to, 0o755); err != nil {
				return err
			}
			for _, d := range dirs {
				if out, err := exec.Command("cp", "-a", d+"/.", to).CombinedOutput(); err != nil {
					return fmt.Errorf("cp: %w: %s", err, out)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		theirs = append(theirs, s)
		if err := os.RemoveAll(to); err != nil {
			return err
		}
	}
	after, err := treeBytes(home)
	if err != nil {
		return err
	}
	l := compared(fmt.Sprintf("composing ten Kits of %d files: %d bytes written", big+20*mixins, after-before), "`cp -a` of the same layers", ours, theirs, 0, 0)
	l.bar, l.ok = "0 bytes", verdict(after == before)
	r.add(l)
	return nil
}

func treeBytes(dir string) (n int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			n += info.Size()
		}
		return err
	})
	return n, err
}
