package frontend

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/moby/buildkit/frontend/dockerui"
	"github.com/moby/buildkit/frontend/gateway/client"
	"go.yaml.in/yaml/v4"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/agentcontext"
	"github.com/kitbox-dev/kitbox/internal/authoring"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/content"
	"github.com/kitbox-dev/kitbox/spec/expand"
)

// readKit decodes and validates the descriptor in src and reads the files that
// belong to it: the recipe, in whichever form it is authored, and content files.
func readKit(ctx context.Context, c client.Client, src *dockerui.Source) (*kit, error) {
	k := &kit{source: src, stem: authoring.Stem(src.Filename), text: src.Data, firstLine: 1}
	doc, ds := spec.Decode(src.Data, spec.Options{File: src.Filename})
	if doc != nil {
		ds = append(ds, doc.Validate()...)
	}
	if err := k.invalid(ds); err != nil {
		return nil, err
	}
	k.doc, k.findings = doc, ds
	named := ""
	switch text, comment := doc.Recipe(); {
	case k.isSet():
	case comment:
		block, _ := spec.ExtractComment(src.Data)
		k.text, k.firstLine = block.Descriptor, block.Line
		k.recipe = &recipe{name: k.stem + authoring.RecipeSuffix, data: []byte(text)}
		// Its lines are those of the file, or of the file from a second
		// syntax line on.
		k.recipe.origin, k.recipe.offset = src, max(0, bytes.Count(src.Data, []byte("\n"))-strings.Count(text, "\n"))
	case doc.Build != "":
		k.recipe = &recipe{name: k.stem + authoring.RecipeSuffix, data: []byte(doc.Build)}
		if key, v := topLevel(k.text, "build"); v != nil && v.Style&yaml.LiteralStyle != 0 {
			k.recipe.origin, k.recipe.offset = src, key.Line
		}
	case doc.Dockerfile != "":
		named = path.Join(path.Dir(src.Filename), doc.Dockerfile)
		if !filepath.IsLocal(named) {
			return nil, k.fault("dockerfile", fmt.Sprintf("%s is not inside the build context", doc.Dockerfile), "", "SPEC-v3 §4/dockerfile-inside-context")
		}
	default:
		named = authoring.Companion(src.Filename)
	}

	if err := k.findContent(); err != nil {
		return nil, err
	}
	var want []string
	for _, f := range k.staged {
		want = append(want, k.beside(f.From))
	}
	if named != "" {
		want = append(want, named)
	}
	if k.recipe == nil && named != "" {
		want = append(want, named+".dockerignore")
	}
	files := map[string][]byte{}
	if len(want) > 0 {
		var err error
		if files, err = (vicinity{c, src}).read(ctx, want...); err != nil {
			return nil, err
		}
	}
	if data, ok := files[named]; ok && named != "" {
		k.recipe = &recipe{name: named, data: data, ignore: files[named+".dockerignore"]}
	} else if doc.Dockerfile != "" {
		return nil, k.fault("dockerfile", fmt.Sprintf("there is no recipe %s beside the descriptor", doc.Dockerfile), "", "SPEC-v3 §3.1")
	}
	if k.recipe == nil && doc.Kind == spec.KindWorkload && !k.isSet() {
		return nil, k.fault("kind", fmt.Sprintf("a workload must have content, and there is no recipe %s", named),
			"write one, or put it into build:", "SPEC-v3 §3.5/workload-has-content")
	}
	if k.recipe != nil {
		k.recipe.classify()
		if k.recipe.foreign && c.BuildOpts().Opts["force-network-mode"] == "none" {
			// What it makes of the recipe need not keep to that.
			return nil, &Error{File: k.recipe.name, Line: 1, Message: "the recipe's syntax line names a frontend that decides about the network itself",
				Next: "take the line out or write docker/dockerfile:1, which is built in, or build with --build-network public"}
		}
	}
	return k, k.takeContent(files)
}

// lineOfKey returns the line, in the file, of a top-level key of the
// descriptor, or 0.
func (k *kit) lineOfKey(key string) int {
	n, _ := topLevel(k.text, key)
	if n == nil {
		return 0
	}
	return n.Line + k.firstLine - 1
}

// findContent lists the files that the descriptor's configs name, to be staged
// in the image.
func (k *kit) findContent() error {
	for _, r := range k.doc.Requests() {
		if c, ok := agentcontext.Peek(r); ok && r.Type == agentcontext.Type && capability.HasReference(c.ContentFile) {
			return k.fault("capabilities", fmt.Sprintf("contentFile %s: the name of a file to stage cannot hold an argument", c.ContentFile), "", "")
		}
	}
	var err error
	if _, k.staged, err = content.Stage(k.doc.Descriptor, k.stem); err != nil {
		return k.fault("capabilities", oneLine(err), "", "")
	}
	return nil
}

// beside resolves a name that the author wrote relative to the descriptor.
func (k *kit) beside(name string) string { return path.Join(path.Dir(k.source.Filename), name) }

// takeContent keeps the content files, under the names they get in the image.
func (k *kit) takeContent(files map[string][]byte) error {
	for _, f := range k.staged {
		data, ok := files[k.beside(f.From)]
		if !ok {
			return k.fault("capabilities", fmt.Sprintf("%s: there is no file %s beside the descriptor", f.At, f.From), "", "")
		}
		if k.content == nil {
			k.content = map[string][]byte{}
		}
		k.content[path.Base(f.To)] = data
	}
	return nil
}

// sourceDateEpoch is the build arg that sets the time of everything built.
const sourceDateEpoch = "SOURCE_DATE_EPOCH"

// passesThrough reports whether a build arg is BuildKit's rather than the Kit's.
func passesThrough(name string) bool {
	switch strings.ToUpper(name) {
	case "HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY":
		return true
	}
	return name == sourceDateEpoch || strings.HasPrefix(name, "BUILDKIT_")
}

// resolve judges the supplied args and expands the descriptor's build phase.
func (k *kit) resolve(opts map[string]string) error {
	supplied := map[string]string{}
	for name, v := range opts {
		if arg, ok := strings.CutPrefix(name, buildArgPrefix); ok && !passesThrough(arg) {
			supplied[arg] = v
		}
	}
	values, err := expand.ResolveArgs(k.doc.Args, supplied, expand.PhaseBuild)
	if err != nil {
		return k.fault("args", oneLine(err), "", "")
	}
	d, err := expand.Build(k.doc.Descriptor, values)
	if err != nil {
		return k.fault("args", oneLine(err), "", "")
	}
	k.buildArgs = map[string]string{}
	for name, a := range d.Args {
		if v, ok := values[name]; ok && a.BuildArg != "" {
			k.buildArgs[a.BuildArg] = v
		}
	}
	if k.published, _, err = content.Stage(d, k.stem); err != nil {
		return k.fault("capabilities", oneLine(err), "", "")
	}
	return nil
}

// finish validates the published descriptor and returns its annotation.
func (k *kit) finish() ([]byte, error) {
	b, err := json.Marshal(k.published)
	if err != nil {
		return nil, k.fault("", "the published descriptor: "+err.Error(), "", "")
	}
	doc, ds := spec.Decode(b, spec.Options{Form: capability.Published})
	if doc != nil {
		ds = append(ds, doc.Validate()...)
	}
	for _, d := range ds {
		if d.Severity != spec.Error {
			continue
		}
		// Expanding moves no entry, so that paths are the author's.
		at, message := k.doc.Place(spec.Diagnostic{Path: d.Path}), d.Message
		if d.Path != "" {
			message = d.Path + ": " + message
		}
		if d.Statement != "" {
			message += " [" + d.Statement + "]"
		}
		return nil, k.faultAt(at.Line, "as it would be published: "+message, "")
	}
	return b, nil
}

// oneLine joins the findings of err.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
