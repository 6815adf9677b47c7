package artifact

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/opencontainers/go-digest"

	"github.com/kitbox-dev/kitbox/spec/annotation"
	"github.com/kitbox-dev/kitbox/tck/artifact/rule"
)

// A Description is what the documents of an artifact say, without judging them
// and without its layers.
type Description struct {
	Ref         string            `json:"ref"`
	Digest      digest.Digest     `json:"digest"`
	MediaType   string            `json:"mediaType"`
	FoundOn     annotation.Place  `json:"foundOn,omitzero"` // where the descriptor is; absent: no Kit
	Descriptor  jsontext.Value    `json:"descriptor,omitzero"`
	Annotations map[string]string `json:"annotations"` // without the descriptor
	Platforms   []Platform        `json:"platforms"`
}

// A Platform is one image of a Description.
type Platform struct {
	Platform   string        `json:"platform"`
	Digest     digest.Digest `json:"digest"`
	Layers     int           `json:"layers"`
	Bytes      int64         `json:"bytes"` // of the layers as stored
	User       string        `json:"user,omitzero"`
	WorkingDir string        `json:"workingDir,omitzero"`
	Entrypoint []string      `json:"entrypoint,omitzero"`
	Cmd        []string      `json:"cmd,omitzero"`
}

// Describe returns what a says of itself.
func Describe(a *Artifact) *Description {
	d := &Description{Ref: a.Ref, Digest: a.Root.Digest, MediaType: a.Root.MediaType, Annotations: map[string]string{}}
	var index map[string]string
	if a.Index != nil {
		index = a.Index.Annotations
	}
	for _, im := range a.Images {
		p := Platform{Platform: im.Platform, Digest: im.Descriptor.Digest, Layers: len(im.Manifest.Layers),
			User: im.Config.Config.User, WorkingDir: im.Config.Config.WorkingDir, Entrypoint: im.Config.Config.Entrypoint, Cmd: im.Config.Config.Cmd}
		for _, l := range im.Manifest.Layers {
			p.Bytes += l.Size
		}
		d.Platforms = append(d.Platforms, p)
		if d.FoundOn == annotation.Nowhere {
			text, where := annotation.Discover(index, im.Manifest.Annotations)
			d.FoundOn = where
			if v := jsontext.Value(text); v.IsValid() {
				d.Descriptor = v
			}
		}
		maps.Copy(d.Annotations, im.Manifest.Annotations)
	}
	maps.Copy(d.Annotations, index)
	delete(d.Annotations, annotation.Descriptor)
	return d
}

// Inspect is the command that shows what an artifact says of itself. It returns
// 0, or 3 if the artifact cannot be read.
func Inspect(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	s, err := parse("inspect", args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	var a *Artifact
	if err == nil {
		a, err = Open(ctx, s.ref, s.Options)
	}
	if err == nil && s.dockerfile {
		var text string
		if text, err = a.recipe(ctx); err == nil {
			if terminal(stdout) { // a file gets it byte for byte
				lines := strings.Split(text, "\n")
				for n, l := range lines {
					lines[n] = printable(l)
				}
				text = strings.Join(lines, "\n")
			}
			_, err = io.WriteString(stdout, text)
		}
	} else if err == nil {
		d := Describe(a)
		if s.format == "json" {
			err = writeJSON(stdout, d)
		} else {
			err = d.write(stdout)
		}
	}
	if err != nil {
		fmt.Fprintf(stderr, "kit-tck: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
		return exitUnjudged
	}
	return exitOK
}

// recipe returns the staged recipe of the Kit itself.
func (a *Artifact) recipe(ctx context.Context) (string, error) {
	im := a.Images[0]
	var s rule.Subject
	files, err := a.read(ctx, &s, im)
	if err != nil {
		return "", err
	}
	if files == nil {
		return "", fmt.Errorf("%s: %s", s.Broken[0].At, s.Broken[0].Message)
	}
	name := rule.Recipe(im.Manifest.Annotations, files)
	if name == "" {
		return "", fmt.Errorf("%s stages no recipe", a.Ref)
	}
	b, _ := files.Read(name)
	return string(b), nil
}

func (d *Description) write(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s  %s\n", printable(d.Ref), d.Digest, printable(d.MediaType))
	for _, p := range d.Platforms {
		fmt.Fprintf(&b, "%s  %s  %d layers, %d bytes", printable(p.Platform), p.Digest, p.Layers, p.Bytes)
		for _, f := range []struct{ name, value string }{{"user", p.User}, {"workdir", p.WorkingDir}, {"entrypoint", strings.Join(p.Entrypoint, " ")}, {"cmd", strings.Join(p.Cmd, " ")}} {
			if f.value != "" {
				fmt.Fprintf(&b, ", %s %s", f.name, printable(f.value))
			}
		}
		b.WriteByte('\n')
	}
	for _, k := range slices.Sorted(maps.Keys(d.Annotations)) {
		fmt.Fprintf(&b, "%s: %s\n", printable(k), printable(d.Annotations[k]))
	}
	if d.FoundOn == annotation.Nowhere {
		b.WriteString("not a Kit: no descriptor annotation\n")
	} else {
		v := d.Descriptor.Clone()
		if v != nil && v.Indent(jsontext.WithIndent("  ")) == nil {
			fmt.Fprintf(&b, "descriptor, on the %s:\n", d.FoundOn)
			for line := range strings.SplitSeq(string(v), "\n") {
				b.WriteString(printable(line) + "\n")
			}
		} else {
			fmt.Fprintf(&b, "descriptor, on the %s: not JSON\n", d.FoundOn)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
