package kitcmd

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/wellknown"
	"github.com/kitbox-dev/kitbox/internal/cli/argument"
	"github.com/kitbox-dev/kitbox/internal/cli/option"
	"github.com/kitbox-dev/kitbox/internal/cli/output"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/surface"
)

func (lookup Lookup) inspect() *cobra.Command {
	var asJSON bool
	var form string
	cmd := &cobra.Command{
		Use:   "inspect FILE|DIR|REF",
		Short: "Show what a descriptor declares",
		Long: `Shows what one descriptor declares: what it is, where its content comes from, what
it provides and needs, its arguments and its capabilities. With --json, the
descriptor is in its published encoding.`,
		Example: `  kitbox kit inspect ./my-kit
  kitbox kit inspect --json ./my-kit | jq .descriptor.capabilities`,
		Args: one,
		RunE: func(cmd *cobra.Command, args []string) error {
			f, ok := parseForm(form)
			if !ok {
				return argument.Mistake(cmd, "--form %q is none of authored, published and effective", form)
			}
			d, name, err := lookup.load(cmd, args[0], f)
			if err != nil {
				return err
			}
			c, _ := layersOf(d, name) // whether it is there is for check to say
			if lookup != nil && isReference(name) {
				c, f = layers{How: "published"}, capability.Published
			}
			if !asJSON {
				describe(cmd.OutOrStdout(), d, name, c)
				return nil
			}
			encoded, err := d.AppendJSON(nil)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			type source struct {
				How  string `json:"how"`
				Path string `json:"path,omitzero"`
			}
			s := surface.Project(d.Requests())
			return output.JSON(cmd.OutOrStdout(), struct {
				File          string          `json:"file"`
				Form          string          `json:"form"`
				Content       source          `json:"content"`
				Descriptor    json.RawMessage `json:"descriptor"`
				Surface       json.RawMessage `json:"surface"`
				SurfaceDigest string          `json:"surfaceDigest"`
			}{name, f.String(), source{c.How, c.Path}, encoded, s.Canonical(), s.Digest()})
		},
	}
	option.JSONVar(cmd, &asJSON)
	cmd.Flags().StringVar(&form, "form", "authored", formUsage)
	return cmd
}

// one takes exactly one file or directory.
func one(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return argument.Mistake(cmd, "%s takes one file or directory, %d given", cmd.Name(), len(args))
	}
	return nil
}

// A page writes labelled lines.
type page struct {
	w io.Writer
}

// line prints texts under one label, one per line; nothing for none.
func (p page) line(label string, texts ...string) {
	for _, t := range texts {
		if t == "" {
			continue
		}
		fmt.Fprintln(p.w, strings.TrimRight(fmt.Sprintf("%-12s %s", label, output.Printable(t)), " "))
		label = ""
	}
}

func describe(w io.Writer, d *spec.Document, name string, c layers) {
	p := page{w}
	p.line("name", d.DisplayName)
	p.line("kind", d.Kind)
	p.line("version", d.Version)
	p.line("description", oneLine(d.Description))
	p.line("author", d.Author)
	p.line("licenses", strings.Join(d.Licenses, ", "))
	p.line("source", d.SourceURL)
	p.line("file", name)
	p.line("content", map[string]string{
		"companion": c.Path + ", beside the descriptor", "dockerfile": c.Path, "inline": "the recipe in build",
		"comment": "the file itself", "set": "the Kits listed", "none": "none: it only declares",
		"published": "in its image",
	}[c.How])
	p.line("provides", d.Provides...)
	p.line("requires", d.Requires...)
	p.line("integrates", d.Integrates...)
	p.line("conflicts", d.Conflicts...)
	for _, k := range d.Kits {
		text := k.Ref
		if k.Digest != "" {
			text += " " + k.Digest
		}
		p.line("kit", text)
	}
	for _, key := range slices.Sorted(maps.Keys(d.Args)) {
		p.line("arg", argText(key, d.Args[key]))
	}
	for i := range d.Capabilities {
		it := &d.Capabilities[i]
		if it.Group == nil {
			p.entry("capability", it.Request, it.Optional)
			continue
		}
		p.line("group", strings.TrimSpace(it.Group.Name+" "+must(it.Group.Optional)+", all or none"), oneLine(it.Group.Description))
		for _, r := range it.Group.Capabilities {
			p.entry("  member", r, it.Group.Optional)
		}
	}
}

func must(optional bool) string {
	if optional {
		return "optional"
	}
	return "required"
}

func argText(key string, a spec.Arg) string {
	parts := []string{key}
	switch {
	case a.Required:
		parts = append(parts, "required")
	case a.Default != nil:
		parts = append(parts, fmt.Sprintf("default %q", *a.Default))
	default:
		parts = append(parts, "no default")
	}
	if a.Enum != nil {
		parts = append(parts, "one of "+strings.Join(a.Enum, ", "))
	}
	if a.Pattern != "" {
		parts = append(parts, "matching "+a.Pattern)
	}
	if a.BuildArg != "" {
		parts = append(parts, "at build, as "+a.BuildArg)
	} else if a.Env != "" {
		parts = append(parts, "in the container as "+a.Env)
	}
	if a.Description != "" {
		parts = append(parts, oneLine(a.Description))
	}
	return strings.Join(parts, "; ")
}

func (p page) entry(label string, r capability.Request, optional bool) {
	head := shortType(r.Type) + ", " + must(optional)
	if about := cmp.Or(r.Description, r.Name); about != "" {
		head += ": " + oneLine(about)
	}
	p.line(label, head)
	if def, known := wellknown.Find(r.Type); known {
		values := map[string][]string{}
		for _, l := range def.Surface(r) {
			values[l.List] = append(values[l.List], l.Value)
		}
		// A number that waits for an argument would show as zero.
		if lines := inWords(values); len(lines) > 0 && !capability.HasReference(string(r.Config)) {
			for _, l := range lines {
				p.line("", "  "+l)
			}
			return
		}
		if strings.HasPrefix(r.Type, capability.Namespace+"/lifecycle@") {
			p.line("", hooks(r)...)
			return
		}
	}
	if len(r.Config) > 0 {
		p.line("", "  "+clip(string(r.Config)))
	}
}

// hooks lists what a lifecycle entry does.
func hooks(r capability.Request) []string {
	type hook struct {
		Command     json.RawMessage `json:"command"`
		Description string          `json:"description"`
	}
	var c struct {
		Install, Startup []hook
		Files            []struct {
			Path string `json:"path"`
		}
		Interactive json.RawMessage
	}
	if json.Unmarshal(r.Config, &c) != nil {
		return []string{"  " + clip(string(r.Config))}
	}
	var out []string
	add := func(when string, hs []hook) {
		for _, h := range hs {
			text := string(h.Command)
			var s string
			if json.Unmarshal(h.Command, &s) == nil {
				text = s
			}
			out = append(out, "  "+when+": "+clip(oneLine(cmp.Or(h.Description, text))))
		}
	}
	add("install", c.Install)
	add("startup", c.Startup)
	for _, f := range c.Files {
		out = append(out, "  file: "+f.Path)
	}
	if c.Interactive != nil {
		out = append(out, "  interactive: "+clip(string(c.Interactive)))
	}
	return out
}

func shortType(t string) string { return strings.TrimPrefix(t, capability.Namespace+"/") }

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// clip keeps one long line from drowning the rest.
func clip(s string) string {
	const most = 160
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}
