package artifact

import (
	"cmp"
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
)

// A Description is what an artifact says of itself, without judging it.
type Description struct {
	Ref         string            `json:"ref"`
	Digest      digest.Digest     `json:"digest"`
	MediaType   string            `json:"mediaType"`
	FoundOn     annotation.Place  `json:"foundOn,omitzero"` // where the descriptor is; absent: no Kit
	Descriptor  jsontext.Value    `json:"descriptor,omitzero"`
	Annotations map[string]string `json:"annotations"` // without the descriptor
	Platforms   []Platform        `json:"platforms"`

	// Staged is the descriptor as it is staged in the image, with the comments
	// of its author, if it says what Descriptor does. Recipe is the Dockerfile
	// beside it, whichever way it was authored. Both are absent from what
	// [Describe] returns.
	Staged string `json:"staged,omitzero"`
	Recipe string `json:"recipe,omitzero"`
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

// Describe returns what the documents of a say. It reads no layer.
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
	if err == nil {
		err = inspect(ctx, s, stdout)
	}
	if err != nil {
		fmt.Fprintf(stderr, "kit-tck: %s\n", printable(strings.ReplaceAll(err.Error(), "\n", "; ")))
		return exitUnjudged
	}
	return exitOK
}

func inspect(ctx context.Context, s *settings, stdout io.Writer) error {
	a, err := Open(ctx, s.ref, s.Options)
	if err != nil {
		return err
	}
	d := Describe(a)
	found, unread := a.sources(ctx)
	d.Staged, d.Recipe = string(found.descriptor), string(found.recipe)
	switch {
	case s.dockerfile && unread != nil:
		return unread
	case s.dockerfile && found.recipe == nil:
		return fmt.Errorf("%s stages no recipe", a.Ref)
	case s.dockerfile && terminal(stdout):
		_, err = io.WriteString(stdout, lines(d.Recipe))
	case s.dockerfile: // a file gets it byte for byte
		_, err = io.WriteString(stdout, d.Recipe)
	case s.format == "json":
		err = writeJSON(stdout, d)
	default:
		err = d.write(stdout)
	}
	return cmp.Or(err, unread) // what the documents say is shown in any case
}

// lines makes text printable, line by line.
func lines(text string) string {
	out := strings.Split(text, "\n")
	for n, l := range out {
		out[n] = printable(strings.ReplaceAll(l, "\t", "    "))
	}
	return strings.Join(out, "\n")
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
		fmt.Fprintf(&b, "\n# the descriptor, on the %s\n%s", d.FoundOn, whole(d.yaml()))
	}
	if d.Recipe != "" {
		fmt.Fprintf(&b, "\n# the recipe\n%s", whole(lines(d.Recipe)))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// yaml returns the descriptor for people: as it is staged, or else written anew.
func (d *Description) yaml() string {
	if d.Staged != "" && !jsontext.Value(d.Staged).IsValid() { // JSON has no comments to keep
		return lines(d.Staged)
	}
	if d.Descriptor == nil {
		return "# not JSON"
	}
	text, err := asYAML(d.Descriptor)
	if err != nil { // deeper than anybody nests
		text = d.Descriptor.String()
	}
	return lines(text)
}

// whole ends text with a line break.
func whole(text string) string { return strings.TrimRight(text, "\n") + "\n" }
