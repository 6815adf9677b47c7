package vectors

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/kitbox-dev/kitbox/assemble"
	"github.com/kitbox-dev/kitbox/assemble/passwd"
	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/resolve/packages"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/annotation"
	"github.com/kitbox-dev/kitbox/spec/content"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

func runPackages(input jsontext.Value) (result, error) {
	in, err := read[struct {
		Op        string              `json:"op"`
		Raw       string              `json:"raw"`
		Kind      string              `json:"kind"`
		Platforms []map[string]string `json:"platforms"`
		Provides  []string            `json:"provides"`
		Files     map[string]string   `json:"files"`
		Kits      []jsontext.Value    `json:"kits"`
	}](input)
	if err != nil {
		return nil, err
	}
	switch in.Op {
	case "package-version":
		return result{"version": packages.Version(in.Raw)}, nil
	case "derive":
		var dbs []packages.Database
		for _, p := range in.Platforms {
			dbs = append(dbs, database(p))
		}
		if in.Kind == spec.KindMixin {
			dbs = nil // derivation reads workloads only
		}
		return result{"provides": packages.Derive(dbs)}, nil
	case "check-derived":
		if len(in.Kits) > 0 {
			return result{"skip": true}, nil // a set does not derive again
		}
		db := database(in.Files)
		if in.Kind == spec.KindMixin {
			db = packages.Database{}
		}
		return result{"fail": packages.Check(in.Provides, db)}, nil
	}
	return nil, fmt.Errorf("op %q", in.Op)
}

func database(files map[string]string) (db packages.Database) {
	for name, text := range files {
		switch path.Clean("/" + name) {
		case packages.DpkgStatus:
			db.Dpkg = text
		case packages.ApkInstalled:
			db.Apk = text
		}
	}
	return db
}

func runAnnotations(input jsontext.Value) (result, error) {
	in, err := read[struct {
		Op           string            `json:"op"`
		Descriptor   jsontext.Value    `json:"descriptor"`
		Capabilities jsontext.Value    `json:"capabilities"`
		Annotations  map[string]string `json:"annotations"`
		Index        map[string]string `json:"index"`
		Manifest     map[string]string `json:"manifest"`
		Epoch        *int64            `json:"sourceDateEpoch"`
		EpochToo     *int64            `json:"source_date_epoch"`
	}](input)
	if err != nil {
		return nil, err
	}
	if in.Epoch == nil {
		in.Epoch = in.EpochToo
	}
	switch in.Op {
	case "derive":
		k, err := kit(in.Descriptor)
		if err != nil {
			return nil, err
		}
		out, err := annotation.Derive(k.Descriptor, annotation.Options{SourceDateEpoch: in.Epoch})
		if err != nil {
			return result{"error": err.Error()}, nil
		}
		return result{"annotations": out}, nil
	case "capabilities-index":
		rs, err := requests(in.Capabilities)
		if err != nil {
			return nil, err
		}
		return result{"value": annotation.Index(rs)}, nil
	case "check":
		k, err := kit(in.Descriptor)
		if err != nil {
			return nil, err
		}
		fail := []string{}
		for _, f := range annotation.Check(in.Annotations, k.Descriptor) {
			fail = append(fail, f.Key)
		}
		return result{"fail": fail}, nil
	case "discover":
		d, where := annotation.Discover(in.Index, in.Manifest)
		return result{"value": where, "descriptor": d}, nil
	}
	return nil, fmt.Errorf("op %q", in.Op)
}

func runFrontend(input jsontext.Value) (result, error) {
	in, err := read[struct {
		Op         string              `json:"op"`
		Source     string              `json:"source"`
		Extra      string              `json:"descriptor_extra"`
		Descriptor jsontext.Value      `json:"descriptor"`
		Files      map[string]string   `json:"files"`
		Stem       string              `json:"stem"`
		Base       jsontext.Value      `json:"base"`
		Result     jsontext.Value      `json:"result"`
		Workload   jsontext.Value      `json:"workload"`
		Mixins     []jsontext.Value    `json:"mixins"`
		Kits       map[string][]string `json:"kits"`
		Kind       string              `json:"kind"`
		Dirs       map[string]int      `json:"dirs"`
		Passwd     string              `json:"passwd"`
		Group      string              `json:"group"`
		User       string              `json:"user"`
	}](input)
	if err != nil {
		return nil, err
	}
	switch in.Op {
	case "comment-descriptor":
		b, ok := spec.ExtractComment([]byte(in.Source))
		if !ok {
			return result{"descriptor": nil}, nil
		}
		return result{"descriptor": string(b.Descriptor)}, nil
	case "content-recipe":
		return contentRecipe(in.Source), nil
	case "build":
		return build(in.Descriptor, in.Stem, in.Files)
	case "build-comment-form":
		return buildCommentForm(in.Extra), nil
	case "config-delta":
		base, err := imageConfig(in.Base)
		if err != nil {
			return nil, err
		}
		final, err := imageConfig(in.Result)
		if err != nil {
			return nil, err
		}
		return result{"delta": assemble.Delta(base, final)}, nil
	case "assemble-config":
		return assembleConfig(in.Workload, in.Mixins)
	case "collisions":
		return collisions(in.Kits), nil
	case "overlay-home":
		fail := []string{}
		if in.Kind != spec.KindWorkload {
			fail = append(fail, assemble.OverlayHome(in.Dirs)...)
		}
		return result{"fail": fail}, nil
	case "resolve-user":
		u, err := passwd.Resolve(in.Passwd, in.Group, in.User)
		if err != nil {
			return result{"error": err.Error()}, nil
		}
		return result{"uid": u.UID, "gid": u.GID, "home": u.Home, "name": u.Name}, nil
	}
	return nil, fmt.Errorf("op %q", in.Op)
}

func contentRecipe(source string) result {
	b, ok := spec.ExtractComment([]byte(source))
	if !ok {
		return result{"recipe": string(spec.RecipeOf([]byte(source)))}
	}
	return result{"recipe": string(b.Recipe), "descriptor": string(b.Descriptor)}
}

func build(descriptor jsontext.Value, stem string, files map[string]string) (result, error) {
	var m map[string]jsontext.Value
	if err := json.Unmarshal(descriptor, &m); err != nil {
		return nil, err
	}
	if _, ok := m["schemaVersion"]; !ok {
		m["schemaVersion"] = jsontext.Value(`"3"`)
	}
	b, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if stem == "" {
		stem = "kit"
		for name := range files {
			if s, ok := strings.CutSuffix(name, ".dockerfile"); ok && !strings.Contains(s, "/") {
				stem = s
			}
		}
	}
	doc, diags := spec.Decode(b, spec.Options{})
	if !diags.HasErrors() {
		diags = append(diags, doc.Validate()...)
	}
	if err := diags.Err(); err != nil {
		return result{"error": err.Error()}, nil
	}
	has := func(name string) bool { _, ok := files[name]; return ok || hasClean(files, name) }
	src, err := content.Find(doc, stem, has)
	if err != nil {
		return result{"error": err.Error()}, nil
	}
	_, staged, err := content.Stage(doc.Descriptor, stem)
	if err != nil {
		return result{"error": err.Error()}, nil
	}
	dir := content.StageRoot + "/" + stem + "/"
	places := []string{dir + content.StagedDescriptor}
	var body any
	for _, s := range staged {
		if !has(s.From) {
			return result{"error": s.At + ": " + s.From + " does not exist"}, nil
		}
		places, body = append(places, s.To), s.To
	}
	if src.Recipe+src.RecipeFile != "" {
		places = append(places, dir+content.StagedRecipe)
	}
	slices.Sort(places)
	recipe := src.Recipe
	if src.RecipeFile != "" {
		recipe = files[src.RecipeFile]
	}
	return result{"ok": true, "recipe": recipe, "declaration_only": src.Declares(), "staged": places, "contentFile": body}, nil
}

func hasClean(files map[string]string, name string) bool {
	for f := range files {
		if path.Clean(f) == name {
			return true
		}
	}
	return false
}

// buildCommentForm puts more keys into the descriptor of a Dockerfile that is a
// Kit.
func buildCommentForm(extra string) result {
	yaml := "schemaVersion: \"3\"\nkind: workload\n" + extra
	var b strings.Builder
	b.WriteString("# syntax=docker/sandbox-kit:3\n# kit:\n")
	for line := range strings.SplitSeq(strings.TrimSuffix(yaml, "\n"), "\n") {
		b.WriteString(strings.TrimRight("#   "+line, " ") + "\n")
	}
	b.WriteString("FROM scratch\n")
	doc, diags := spec.Decode([]byte(b.String()), spec.Options{Form: capability.Authored})
	if !diags.HasErrors() {
		diags = append(diags, doc.Validate()...)
	}
	if err := diags.Err(); err != nil {
		return result{"error": err.Error()}
	}
	recipe, _ := doc.Recipe()
	return result{"ok": true, "recipe": recipe}
}

func imageConfig(raw jsontext.Value) (c ocispec.ImageConfig, err error) {
	if len(raw) > 0 {
		err = json.Unmarshal(raw, &c)
	}
	return c, err
}

func assembleConfig(workload jsontext.Value, mixins []jsontext.Value) (result, error) {
	w, err := imageConfig(workload)
	if err != nil {
		return nil, err
	}
	var parts []assemble.Part
	for i, m := range mixins {
		c, err := imageConfig(m)
		if err != nil {
			return nil, err
		}
		parts = append(parts, assemble.Part{Kit: fmt.Sprintf("mixin %d", i), Config: c})
	}
	c, err := assemble.Config(assemble.Part{Kit: "workload", Config: w}, parts)
	if err != nil {
		return result{"error": err.Error()}, nil
	}
	b, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	var r result
	return r, json.Unmarshal(b, &r)
}

func collisions(kits map[string][]string) result {
	var invs []assemble.Inventory
	for _, name := range slices.Sorted(maps.Keys(kits)) {
		inv := assemble.Inventory{Kit: name}
		for _, p := range kits[name] {
			inv.Files = append(inv.Files, assemble.File{Path: p})
		}
		invs = append(invs, inv)
	}
	out := []any{}
	for _, c := range assemble.Collisions(invs) {
		out = append(out, map[string]any{"path": c.Path, "kits": c.Kits})
	}
	return result{"collisions": out}
}
