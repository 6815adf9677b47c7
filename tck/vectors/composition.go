package vectors

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/resolve"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/surface"
)

func runSelection(input jsontext.Value) (result, error) {
	in, err := read[struct {
		Accept jsontext.Value `json:"accept"`
	}](input)
	if err != nil {
		return nil, err
	}
	var m map[string]jsontext.Value
	if err := json.Unmarshal(input, &m); err != nil {
		return nil, err
	}
	delete(m, "accept")
	raw, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	k, err := kit(raw)
	if err != nil {
		return result{"error": err.Error(), "calls": 0}, nil
	}
	all := string(in.Accept) == `"*"`
	var types []string
	if !all && len(in.Accept) > 0 {
		if err := json.Unmarshal(in.Accept, &types); err != nil {
			return nil, err
		}
	}
	calls := 0
	sel, err := resolve.Select([]resolve.Kit{k}, resolve.SelectorFunc(func(_ resolve.Operation, _ spec.Descriptor, r capability.Request) (bool, string) {
		calls++
		return all || slices.Contains(types, r.Type), "not granted here"
	}))
	out := result{"calls": calls}
	if err != nil {
		out["error"] = err.Error()
	}
	if sel == nil {
		return out, nil
	}
	out["selected"], out["refused"] = paths(sel.Items), paths(sel.Refused)
	skipped := []any{}
	for _, r := range sel.Skipped {
		skipped = append(skipped, map[string]any{
			"path": r.Path, "rejected": r.Rejected, "source": r.Source, "members": r.Members, "memberSources": r.MemberSources,
		})
	}
	out["skipped"] = skipped
	effective, sources := []string{}, []any{}
	for _, c := range sel.Effective {
		effective = append(effective, c.Request.Type)
		sources = append(sources, c.Request.Source)
	}
	original := []any{}
	for _, r := range sel.Items {
		if r.MemberSources == nil {
			original = append(original, r.Source)
		}
		for _, s := range r.MemberSources {
			original = append(original, s)
		}
	}
	out["effective"], out["sources"], out["original"] = effective, sources, original
	return out, nil
}

func paths(rs []resolve.Record) []string {
	out := []string{}
	for _, r := range rs {
		out = append(out, r.Path)
	}
	return out
}

func runMerge(input jsontext.Value) (result, error) {
	in, err := read[struct {
		Mode          string           `json:"mode"`
		Contributions []jsontext.Value `json:"contributions"`
		Kind          string           `json:"kind"` // what the set says it is
		Set           struct {
			Kind string `json:"kind"`
		} `json:"set"`
	}](input)
	if err != nil {
		return nil, err
	}
	ks, err := kits(in.Contributions)
	if err != nil {
		return nil, err
	}
	switch in.Mode {
	case "publish":
		return mergePublish(ks, cmp.Or(in.Kind, in.Set.Kind))
	case "runtime":
		return mergeRuntime(ks), nil
	}
	return nil, fmt.Errorf("mode %q", in.Mode)
}

func mergePublish(ks []resolve.Kit, stated string) (result, error) {
	d, err := resolve.MergeDeclarations(ks)
	if err != nil {
		return failedMerge(err), nil
	}
	if stated != "" && stated != spec.KindSet && stated != d.Kind {
		return failedMerge(fmt.Errorf("the Kits make a %s, not a %s", d.Kind, stated)), nil
	}
	r := result{
		"ok": true, "kind": d.Kind, "provides": d.Provides, "requires": d.Requires, "integrates": d.Integrates,
		"conflicts": d.Conflicts, "licenses": d.Licenses,
	}
	groups := 0
	for _, it := range d.Capabilities {
		if it.Group != nil {
			groups++
		}
	}
	r["groups"] = groups
	r["entries"] = len(d.Capabilities)
	project(r, d.Requests())
	// Who contributed a body is known to the merger only.
	merged, err := resolve.Merge(capability.MergePublish, contributions(ks))
	if err == nil {
		bodies(r, merged)
	}
	return r, nil
}

func mergeRuntime(ks []resolve.Kit) result {
	merged, err := resolve.Merge(capability.MergeRuntime, contributions(ks))
	if err != nil {
		return failedMerge(err)
	}
	r := result{"ok": true, "entries": len(merged), "groups": 0}
	rs := make([]capability.Request, len(merged))
	for i, c := range merged {
		rs[i] = c.Request
	}
	project(r, rs)
	bodies(r, merged)
	return r
}

func failedMerge(err error) result {
	r := result{"ok": false, "error": err.Error()}
	var me *resolve.MergeError
	if errors.As(err, &me) {
		r["path"] = me.Conflicts[0].Key
	}
	return r
}

func contributions(ks []resolve.Kit) []capability.Contribution {
	var out []capability.Contribution
	for _, k := range ks {
		for _, req := range k.Descriptor.Requests() {
			out = append(out, capability.Contribution{Kit: k.Ref, Request: req, Workload: k.Descriptor.Kind == spec.KindWorkload})
		}
	}
	return out
}

// config reads the fields that projections need.
func config(r capability.Request) (m map[string]any) {
	if r.Config != nil && json.Unmarshal(r.Config, &m) != nil {
		return nil
	}
	return m
}

// project puts the projections of merged entries into r.
func project(r result, rs []capability.Request) {
	var capabilities []any
	credentials, ports, profiles := [][2]any{}, []string{}, [][2]any{}
	ssh := []any{}
	volumes, allow := 0, 0
	targets := map[string]bool{}
	for _, req := range rs {
		c := config(req)
		capabilities = append(capabilities, map[string]any{
			"type": req.Type, "config": req.Config, "name": req.Name, "optional": req.Optional, "description": req.Description,
		})
		name := strings.TrimPrefix(req.Type, capability.Namespace+"/")
		switch name {
		case "credential@1":
			credentials = append(credentials, [2]any{c["service"], c["phase"]})
		case "ssh-agent@1":
			ssh = append(ssh, c)
		case "port@1":
			transport, _ := c["transport"].(string)
			if transport == "" {
				transport = "tcp"
			}
			ports = append(ports, fmt.Sprintf("%v/%s", c["container"], transport))
		case "volume@1":
			volumes++
		case "network-policy@1", "network-policy@2":
			for _, phase := range []string{"install", "runtime"} {
				p, _ := c[phase].(map[string]any)
				list, _ := p["allow"].([]any)
				allow += len(list)
			}
		case "agent-context@1":
			if c["directory"] != nil {
				profiles = append(profiles, [2]any{c["directory"], c["filename"]})
			}
			if c["content"] != nil || c["contentFile"] != nil {
				target := fmt.Sprintf("%v/%v", c["directory"], c["filename"])
				if r["body_on"] == nil {
					r["body_on"] = target
				}
				targets[target] = true
			}
		}
	}
	r["capabilities"], r["credentials"], r["ssh"], r["ports"] = capabilities, credentials, ssh, ports
	r["profiles"], r["volumes"], r["allow_entries"] = profiles, volumes, allow
	r["separate_targets"] = len(targets) > 1
	if len(rs) > 0 {
		r["optional"], r["name"], r["description"] = rs[0].Optional, rs[0].Name, rs[0].Description
		r["capability"] = capabilities[0]
		r["config"] = rs[0].Config
	}
}

// bodies lists the Kits whose context bodies the merged entries hold.
func bodies(r result, cs []capability.Contribution) {
	out := []string{}
	for _, c := range cs {
		parts := c.From
		if parts == nil {
			parts = []capability.Contribution{c}
		}
		for _, p := range parts {
			cfg := config(p.Request)
			if strings.HasSuffix(p.Request.Type, "/agent-context@1") && (cfg["content"] != nil || cfg["contentFile"] != nil) &&
				!slices.Contains(out, p.Kit) {
				out = append(out, p.Kit)
			}
		}
	}
	r["bodies"] = out
}

// requests reads a capabilities list, groups included.
func requests(raw jsontext.Value) ([]capability.Request, error) {
	doc := []byte(`{"schemaVersion":"3","kind":"workload","capabilities":`)
	if len(raw) == 0 {
		raw = jsontext.Value("[]")
	}
	doc = append(append(doc, raw...), '}')
	d, diags := spec.Decode(doc, spec.Options{Form: capability.Published})
	if err := diags.Err(); err != nil {
		return nil, err
	}
	return d.Requests(), nil
}

func runSurface(input jsontext.Value) (result, error) {
	in, err := read[struct {
		Op           string         `json:"op"`
		Capabilities jsontext.Value `json:"capabilities"`
		A            jsontext.Value `json:"a"`
		B            jsontext.Value `json:"b"`
		Granted      jsontext.Value `json:"granted"`
		Candidate    jsontext.Value `json:"candidate"`
	}](input)
	if err != nil {
		return nil, err
	}
	var surfaces [5]surface.Surface
	for i, raw := range []jsontext.Value{in.Capabilities, in.A, in.B, in.Granted, in.Candidate} {
		rs, err := requests(raw)
		if err != nil {
			return nil, err
		}
		surfaces[i] = surface.Project(rs)
	}
	switch in.Op {
	case "surface":
		return result{"surface": jsontext.Value(surfaces[0].Canonical())}, nil
	case "surface-category":
		var m map[string]any
		if err := json.Unmarshal(surfaces[0].Canonical(), &m); err != nil {
			return nil, err
		}
		names := []string{}
		for k := range m {
			names = append(names, k)
		}
		slices.Sort(names)
		return result{"fields": names, "categories": names, "value": names, "nonempty": names}, nil
	case "surface-equal":
		return result{"equal": surfaces[1].Equal(surfaces[2])}, nil
	case "widenings", "widening-categories":
		pairs, names := [][2]string{}, []string{}
		for _, c := range surface.Diff(surfaces[3], surfaces[4]).Widenings {
			pairs = append(pairs, [2]string{c.Category, c.Detail})
			names = append(names, c.Category)
		}
		return result{"widenings": pairs, "categories": names}, nil
	}
	return nil, fmt.Errorf("op %q", in.Op)
}
