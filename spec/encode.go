package spec

import (
	"fmt"
	"maps"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/spec/source"
)

// AppendJSON appends the published encoding of d to b: compact JSON, fields in
// the order of §4, map keys sorted, groups, order, names and sources kept. It
// is a function of the value alone. A list or group that is stated but empty is
// an error, because leaving it out would change what it says.
func (d Descriptor) AppendJSON(b []byte) ([]byte, error) {
	w := writer{b: b}
	w.open('{')
	w.field("schemaVersion", d.SchemaVersion)
	w.field("kind", d.Kind)
	w.field("displayName", d.DisplayName)
	w.field("author", d.Author)
	w.field("description", d.Description)
	w.field("sourceUrl", d.SourceURL)
	w.field("iconUrl", d.IconURL)
	w.field("version", d.Version)
	w.list("licenses", d.Licenses)
	w.list("provides", d.Provides)
	w.list("requires", d.Requires)
	w.list("integrates", d.Integrates)
	w.list("conflicts", d.Conflicts)
	if len(d.Capabilities) > 0 {
		w.key("capabilities")
		w.open('[')
		for i, it := range d.Capabilities {
			w.item(index("capabilities", i), it)
		}
		w.close(']')
	}
	if len(d.Args) > 0 {
		w.key("args")
		w.open('{')
		for _, k := range slices.Sorted(maps.Keys(d.Args)) {
			w.key(k)
			w.arg(join("args", k), d.Args[k])
		}
		w.close('}')
	}
	w.field("build", d.Build)
	w.field("dockerfile", d.Dockerfile)
	if d.Kits != nil {
		w.refuseEmpty("kits", len(d.Kits))
		w.key("kits")
		w.open('[')
		for _, k := range d.Kits {
			w.comma()
			w.open('{')
			w.field("ref", k.Ref)
			w.field("digest", k.Digest)
			if len(k.Args) > 0 {
				w.key("args")
				w.open('{')
				for _, name := range slices.Sorted(maps.Keys(k.Args)) {
					w.key(name)
					w.text(k.Args[name])
				}
				w.close('}')
			}
			w.close('}')
		}
		w.close(']')
	}
	w.close('}')
	if w.err != nil {
		return nil, w.err
	}
	return w.b, nil
}

// MarshalJSON returns the published encoding.
func (d Descriptor) MarshalJSON() ([]byte, error) { return d.AppendJSON(nil) }

// UnmarshalJSON decodes JSON as strictly as [Decode], without validating it.
func (d *Descriptor) UnmarshalJSON(b []byte) error {
	doc, diags := Decode(b, Options{Form: capability.Published})
	if err := diags.Err(); err != nil {
		return err
	}
	if doc.root == nil {
		return fmt.Errorf("a descriptor has at most %d bytes", MaxBytes)
	}
	*d = doc.Descriptor
	return nil
}

// A writer writes JSON. Its error is that of the first value it refused.
type writer struct {
	b     []byte
	first bool // nothing stands in the innermost value yet
	err   error
}

func (w *writer) open(c byte) {
	w.b = append(w.b, c)
	w.first = true
}

func (w *writer) close(c byte) {
	w.b = append(w.b, c)
	w.first = false
}

func (w *writer) comma() {
	if !w.first {
		w.b = append(w.b, ',')
	}
	w.first = false
}

func (w *writer) text(s string) {
	w.b = source.AppendString(w.b, s)
	w.first = false
}

func (w *writer) key(k string) {
	w.comma()
	w.text(k)
	w.b = append(w.b, ':')
}

func (w *writer) field(k, v string) {
	if v != "" {
		w.key(k)
		w.text(v)
	}
}

func (w *writer) boolean(k string, v bool) {
	if v {
		w.key(k)
		w.b = append(w.b, "true"...)
	}
}

func (w *writer) list(k string, vs []string) {
	if len(vs) == 0 {
		return
	}
	w.key(k)
	w.open('[')
	for _, v := range vs {
		w.comma()
		w.text(v)
	}
	w.close(']')
}

func (w *writer) refuseEmpty(path string, n int) {
	if n == 0 && w.err == nil {
		w.err = fmt.Errorf("%s %w", path, errNotStated)
	}
}

func (w *writer) item(path string, it Item) {
	w.comma()
	if it.Group == nil {
		w.request(path, it.Request)
		return
	}
	if it.Type != "" && w.err == nil {
		w.err = fmt.Errorf("%s is an entry and a group at once", path)
	}
	g := it.Group
	w.open('{')
	w.key("group")
	w.open('{')
	w.field("name", g.Name)
	w.field("description", g.Description)
	w.boolean("optional", g.Optional)
	path += ".group.capabilities"
	w.refuseEmpty(path, len(g.Capabilities))
	w.key("capabilities")
	w.open('[')
	for i, r := range g.Capabilities {
		w.comma()
		w.request(index(path, i), r)
	}
	w.close(']')
	w.close('}')
	w.close('}')
}

func (w *writer) request(path string, r capability.Request) {
	w.open('{')
	w.field("type", r.Type)
	w.field("name", r.Name)
	w.boolean("optional", r.Optional)
	w.field("description", r.Description)
	if r.Config != nil {
		w.key("config")
		v := slices.Clone(r.Config)
		if err := v.Format(jsontext.ReorderRawObjects(true), jsontext.Multiline(false)); err != nil && w.err == nil {
			w.err = fmt.Errorf("%s.config: %w", path, err)
		}
		w.b = append(w.b, v...)
	}
	if r.Source != nil {
		w.key("source")
		w.open('{')
		w.field("kit", r.Source.Kit)
		w.field("path", r.Source.Path)
		w.close('}')
	}
	w.close('}')
}

func (w *writer) arg(path string, a Arg) {
	w.open('{')
	if a.Default != nil {
		w.key("default")
		w.text(*a.Default)
	}
	w.boolean("required", a.Required)
	w.field("description", a.Description)
	if a.Enum != nil {
		w.refuseEmpty(path+".enum", len(a.Enum))
	}
	w.list("enum", a.Enum)
	w.field("pattern", a.Pattern)
	w.field("env", a.Env)
	w.field("buildArg", a.BuildArg)
	w.close('}')
}
