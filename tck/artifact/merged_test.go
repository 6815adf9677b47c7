package artifact_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/resolve"
	"github.com/kitbox-dev/kitbox/spec/annotation"
	"github.com/kitbox-dev/kitbox/tck"
)

// Two Kits that together ask for something of every type, and a set of them that
// adds nothing.
const (
	wideSet = `{"schemaVersion":"3","kind":"set","version":"1","provides":["both"],"kits":[{"ref":"r.example/w:1.2"},{"ref":"r.example/m:1"}]}`

	wideWorkload = `{"schemaVersion":"3","kind":"workload","displayName":"W","version":"1.2","licenses":["MIT"],"provides":["w@1.2","deb/oak@2.1"],"capabilities":[` +
		`{"type":"com.docker.sandbox/sbx@1"},` +
		`{"type":"com.docker.sandbox/agent-context@1","config":{"directory":"/home/agent/.w","filename":"AGENT.md","contentFile":"/usr/share/sandbox/kit/w/guide.md"}},` +
		`{"type":"com.docker.sandbox/agent-skill@1","config":{"path":"/usr/share/skills/s"}},` +
		`{"type":"com.docker.sandbox/resources@1","config":{"cpu":2,"memory":"1g"}},` +
		`{"type":"com.docker.sandbox/agent-sessions@1","config":{"prompt":["-p","{{.Prompt}}"],"continue":["-c"]}},` +
		`{"type":"com.docker.sandbox/agent-interactive-sessions@1","config":{"newSession":["-n"]}},` +
		`{"type":"com.docker.sandbox/lifecycle@1","config":{"startup":[{"command":"up"}],"interactive":["-n"]}},` +
		`{"type":"com.docker.sandbox/acp@1","optional":true,"config":{"agent":"w","command":"w acp"}}],"build":"FROM base\n"}`

	wideMember = `{"schemaVersion":"3","kind":"mixin","provides":["m@1"],"capabilities":[` +
		`{"type":"com.docker.sandbox/network-policy@2","config":{"install":{"allow":["i.example"]},"runtime":{"allow":["a.example",{"hosts":["b.example"],"methods":["GET"]}],"deny":["no.example"]}}},` +
		`{"type":"com.docker.sandbox/volume@1","config":{"path":"/data","size":"1g","mode":"0750"}},` +
		`{"type":"com.docker.sandbox/volume@1","config":{"path":"/scratch","tmpfs":true}},` +
		`{"type":"com.docker.sandbox/host-mount@1","config":{"path":"/cache","mode":"0700"}},` +
		`{"type":"com.docker.sandbox/agent-skills@1","config":{"path":"/skills","mode":"readwrite"}},` +
		`{"type":"com.docker.sandbox/agent-skill@1","config":{"path":"/usr/share/skills/s","name":"t"}},` +
		`{"type":"com.docker.sandbox/credential@1","config":{"service":"one","phase":"runtime","apiKey":{"name":"ONE_TOKEN"}}},` +
		`{"type":"com.docker.sandbox/ssh-agent@1","config":{"phase":"runtime","unrestricted":false,"sign":["git","file"]}},` +
		`{"type":"com.docker.sandbox/port@1","config":{"container":80}},` +
		`{"type":"com.docker.sandbox/host-port@1","config":{"port":5432}},` +
		`{"type":"com.docker.sandbox/docker-auth@1","config":{"registry":"r.example"}},` +
		`{"type":"com.docker.sandbox/usb-device@1","config":{"vendorId":"1050","productId":"0407"}},` +
		`{"type":"com.docker.sandbox/git-identity@1"},{"type":"com.docker.sandbox/kit-registry@1"},{"type":"com.docker.sandbox/long-running@1"},{"type":"com.docker.sandbox/dockerd@1"},` +
		`{"type":"com.docker.sandbox/privileged@1","description":"It has to."},` +
		`{"type":"com.docker.sandbox/agent-context@1","config":{"content":"Use m.\n"}},` +
		`{"type":"com.docker.sandbox/lifecycle@1","config":{"install":[{"command":"one"}],"files":[{"path":"/f","content":"x","mode":"0600"}]}},` +
		`{"type":"x.example/y@1","config":{"a":1}}]}`
)

// wide is the set, with the skill that its second Kit names another one.
func wide(t testing.TB, authored string) *built {
	t.Helper()
	member := strings.Replace(wideMember, `{"path":"/usr/share/skills/s","name":"t"}`, `{"path":"/usr/share/skills/t"}`, 1)
	im := setOf(t, authored, wideWorkload, member)
	im.layers[2] = append(im.layers[2], reg("usr/share/skills/t/SKILL.md", strings.Replace(skillText, "name: s", "name: t", 1)))
	return im
}

// TestNothingGetsLostInASet takes from a set, type by type, what its Kits ask
// for, or changes it.
func TestNothingGetsLostInASet(t *testing.T) {
	if r := judge(t, product{images: []*built{wide(t, wideSet)}}, ""); len(broken(r)) > 0 || r.Tally.Failed > 0 {
		t.Fatalf("the set as it is published: %+v", r.Findings)
	}
	published := wide(t, wideSet).annotations[annotation.Descriptor]
	source := func(typ string) string { // of the first entry of a type, as the set has it
		i := strings.Index(published, `{"type":"com.docker.sandbox/`+typ)
		if i < 0 {
			t.Fatalf("no %s in %s", typ, published)
		}
		i += strings.Index(published[i:], `"source":`)
		return published[i : i+strings.Index(published[i:], `}`)+1]
	}
	for _, c := range []struct{ what, old, now string }{
		{"a host", `"a.example",`, ``},
		{"a host of the install phase", `"i.example"`, `"j.example"`},
		{"a method", `"methods":["GET"]`, `"methods":["HEAD"]`},
		{"a denied host", `"deny":["no.example"]`, `"deny":["other.example"]`},
		{"the size of a volume", `"size":"1g"`, `"size":"2g"`},
		{"the mode of a volume", `"mode":"0750"`, `"mode":"0755"`},
		{"a volume that is memory", `{"path":"/scratch","tmpfs":true}`, `{"path":"/scratch"}`},
		{"the path of a volume", `{"path":"/scratch","tmpfs":true}`, `{"path":"/other","tmpfs":true}`},
		{"a shared directory", `"path":"/cache"`, `"path":"/cash"`},
		{"the mode of a shared directory", `"mode":"0700"`, `"mode":"0755"`},
		{"writing to skills", `"mode":"readwrite"`, `"mode":"readonly"`},
		{"a skill", `{"type":"com.docker.sandbox/agent-skill@1","config":{"path":"/usr/share/skills/t"}`, `{"type":"x.example/skill@1","config":{"path":"/usr/share/skills/t"}`},
		{"the resources", `"memory":"1g"`, `"memory":"2g"`},
		{"how a session begins", `["-p","{{.Prompt}}"]`, `["-x","{{.Prompt}}"]`},
		{"how a session goes on", `"continue":["-c"],`, ``},
		{"the interactive tail", `,"interactive":["-n"]`, ``},
		{"a hook", `{"command":"up"}`, `{"command":"down"}`},
		{"a file", `"mode":"0600"`, `"mode":"0644"`},
		{"the command of an agent protocol", `"command":"w acp"`, `"command":"evil acp"`},
		{"a credential", `"service":"one"`, `"service":"two"`},
		{"the variable of a credential", `"name":"ONE_TOKEN"`, `"name":"TWO_TOKEN"`},
		{"what is signed", `"sign":["file","git"]`, `"sign":["git"]`},
		{"a port", `"container":80`, `"container":81`},
		{"a port of the host", `"port":5432`, `"port":5433`},
		{"a login", `"registry":"r.example"`, `"registry":"o.example"`},
		{"a device", `"productId":"0407"`, `"productId":"0408"`},
		{"a service", `{"type":"com.docker.sandbox/git-identity@1"`, `{"type":"x.example/z@1"`},
		{"an engine", `{"type":"com.docker.sandbox/dockerd@1"`, `{"type":"x.example/z@1"`},
		{"privileges", `{"type":"com.docker.sandbox/privileged@1"`, `{"type":"x.example/z@1"`},
		{"a life of its own", `{"type":"com.docker.sandbox/long-running@1"`, `{"type":"x.example/z@1"`},
		{"a registry", `{"type":"com.docker.sandbox/kit-registry@1"`, `{"type":"x.example/z@1"`},
		{"a type nobody knows", `"config":{"a":1}`, `"config":{"a":2}`},
		{"the directory of guidance", `"directory":"/home/agent/.w"`, `"directory":"/home/agent/.x"`},
		{"the file of guidance", `"filename":"AGENT.md"`, `"filename":"OTHER.md"`},
		{"guidance in a file", `Read /usr/share/sandbox/kit/w/guide.md.`, `Read nothing.`},
		{"guidance", `Use m.`, `Use it.`},
		{"a required entry", `{"type":"com.docker.sandbox/volume@1"`, `{"optional":true,"type":"com.docker.sandbox/volume@1"`},
		{"required hooks", `{"type":"com.docker.sandbox/lifecycle@1"`, `{"optional":true,"type":"com.docker.sandbox/lifecycle@1"`},
		{"a required network", `{"type":"com.docker.sandbox/network-policy@2"`, `{"optional":true,"type":"com.docker.sandbox/network-policy@2"`},
		{"a required profile", `{"type":"com.docker.sandbox/agent-context@1"`, `{"optional":true,"type":"com.docker.sandbox/agent-context@1"`},
	} {
		t.Run(c.what, func(t *testing.T) {
			if !strings.Contains(published, c.old) {
				t.Fatalf("%s is not in %s", c.old, published)
			}
			im := wide(t, wideSet)
			im.describe(t, "both", strings.Replace(published, c.old, c.now, 1))
			r := judge(t, product{images: []*built{im}}, "")
			got := slices.DeleteFunc(broken(r), func(id string) bool { return id == "SPEC-v3 §7.1.1/provenance" }) // an entry in the place of another
			if !slices.Equal(got, []string{"SPEC-v3 §9.5/capabilities-merged"}) || r.OK() {
				t.Errorf("broken %q: %+v", got, r.Findings)
			}
		})
	}
	for _, typ := range []string{"volume@1", "network-policy@2", "lifecycle@1", "sbx@1", "resources@1"} {
		t.Run("the source of "+typ, func(t *testing.T) {
			im := wide(t, wideSet)
			text := strings.Replace(published, source(typ), `"source":null`, 1)
			text = strings.NewReplacer(`,"source":null`, ``, `"source":null,`, ``).Replace(text)
			im.describe(t, "both", text)
			r := judge(t, product{images: []*built{im}}, "")
			if got := broken(r); !slices.Equal(got, []string{"SPEC-v3 §7.1.1/provenance"}) {
				t.Errorf("broken %q: %+v", got, r.Findings)
			}
		})
	}
}

// TestASetMayAddToItsKits has sets that declare more than their Kits do, where
// the two meet.
func TestASetMayAddToItsKits(t *testing.T) {
	own := func(entry string) string {
		return strings.Replace(wideSet, `"kits":`, `"capabilities":[`+entry+`],"kits":`, 1)
	}
	for what, entry := range map[string]string{
		"a host outright that a Kit bounds": `{"type":"com.docker.sandbox/network-policy@1","config":{"runtime":{"allow":["b.example"]}}}`,
		"the same volume in other words":    `{"type":"com.docker.sandbox/volume@1","config":{"path":"/data","size":"1024m","mode":"750"}}`,
		"another volume":                    `{"type":"com.docker.sandbox/volume@1","config":{"path":"/more"}}`,
		"a hook":                            `{"type":"com.docker.sandbox/lifecycle@1","config":{"install":[{"command":"own"}]}}`,
		"guidance":                          `{"type":"com.docker.sandbox/agent-context@1","config":{"content":"Be kind.\n"}}`,
		"more signatures":                   `{"type":"com.docker.sandbox/ssh-agent@1","config":{"phase":["install","runtime"],"unrestricted":false,"sign":["tag"]}}`,
		"any signature":                     `{"type":"com.docker.sandbox/ssh-agent@1","config":{"phase":"runtime"}}`,
		"the same session":                  `{"type":"com.docker.sandbox/agent-sessions@1","config":{"prompt":["-p","{{.Prompt}}"],"continue":["-c"]}}`,
		"a group":                           `{"group":{"optional":true,"capabilities":[{"type":"x.example/g@1"}]}}`,
	} {
		if r := judge(t, product{images: []*built{wide(t, own(entry))}}, ""); len(broken(r)) > 0 {
			t.Errorf("%s: %+v", what, r.Findings)
		}
	}
}

// stray is a valid descriptor that belongs to no Kit of the set, such as one that
// a workload was built from.
const stray = `{"schemaVersion":"3","kind":"mixin","provides":["stray@1"],"capabilities":[{"type":"com.docker.sandbox/port@1","config":{"container":9}}]}`

func staged(stem, text string) file { return reg("usr/share/sandbox/kit/"+stem+"/kit.yaml", text) }

// TestMoreSourcesThanKits stages what nobody lists. The set is held against its
// Kits all the same.
func TestMoreSourcesThanKits(t *testing.T) {
	const id = "SPEC-v3 §9.5/capabilities-merged"
	for layer := range 5 {
		for _, text := range []string{stray, "{"} {
			im := set(t)
			im.layers[layer] = append(im.layers[layer], staged("extra", text))
			if r := judge(t, product{images: []*built{im}}, ""); len(broken(r)) > 0 {
				t.Errorf("a stray descriptor in layer %d: %+v", layer, r.Findings)
			}
			if v := verdict(t, product{images: []*built{im}}, id); v.Outcome != tck.Pass {
				t.Errorf("a stray descriptor in layer %d: %v", layer, v)
			}
			text := strings.Replace(im.annotations[annotation.Descriptor], `"b.example",`, ``, 1)
			im.describe(t, "both", text)
			if v := verdict(t, product{images: []*built{im}}, id); v.Outcome != tck.Fail || !strings.Contains(v.Message, "b.example") {
				t.Errorf("a stray descriptor in layer %d and a dropped host: %v", layer, v)
			}
		}
	}
	// In the place of the sources of a Kit, it is not taken for those.
	im := set(t)
	im.layers[3] = []file{staged("extra", stray), staged("extra2", stray)}
	if got := broken(judge(t, product{images: []*built{im}}, "")); !slices.Equal(got, []string{"SPEC-v3 §10/merged-set-carries-sources"}) {
		t.Errorf("others' sources: %q", got)
	}
}

// TestASetOfASet lists a set, whose own Kits are staged beside it.
func TestASetOfASet(t *testing.T) {
	const outer = `{"schemaVersion":"3","kind":"set","version":"1","provides":["outer"],"kits":[{"ref":"r.example/both:1","args":{"host":"z.example"}}]}`
	inner := set(t)
	kits := []resolve.Kit{{Ref: "r.example/both:1", Digest: "sha256:0000000000000000000000000000000000000000000000000000000000000003",
		Descriptor: decode(t, inner.annotations[annotation.Descriptor], capability.Published)}}
	merged, err := resolve.MergeSet(decode(t, outer, capability.Authored), kits)
	if err != nil {
		t.Fatal(err)
	}
	b, err := merged.Descriptor.AppendJSON(nil)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	publish := func(text string) product {
		im := set(t)
		im.layers = append(im.layers, []file{{}})
		im.describe(t, "outer", text)
		return product{images: []*built{im}}
	}
	r := judge(t, publish(text), "")
	if len(broken(r)) > 0 || r.Tally.Waived > judge(t, product{images: []*built{set(t)}}, "").Tally.Waived {
		t.Errorf("%+v, %+v", r.Findings, r.Tally)
	}
	for _, c := range []struct{ old, now, id string }{
		{`"b.example",`, ``, "SPEC-v3 §9.5/capabilities-merged"},
		{`"z.example"`, `"y.example"`, "SPEC-v3 §9.5/capabilities-merged"},
		{`"m@1",`, ``, "SPEC-v3 §9.5/provides-union"},
		{`{"kit":"r.example/m:1","path":"capabilities[2]"}`, `{"kit":"r.example/q:1","path":"capabilities[2]"}`, "SPEC-v3 §7.1.1/provenance"},
	} {
		if !strings.Contains(text, c.old) {
			t.Fatalf("%s is not in %s", c.old, text)
		}
		i := strings.LastIndex(text, c.old) // the last: the arguments of the Kits come before
		if c.old == `"z.example"` {
			i = strings.Index(text, c.old)
		}
		r := judge(t, publish(text[:i]+c.now+text[i+len(c.old):]), "")
		if got := broken(r); !slices.Equal(got, []string{c.id}) {
			t.Errorf("%s: broken %q: %+v", c.old, got, r.Findings)
		}
	}
}

// TestTheLayersOfASetAreToldApart by the manifests of its Kits where those are
// known, though all sources are staged in one layer.
func TestTheLayersOfASetAreToldApart(t *testing.T) {
	const id = "SPEC-v3 §10/merged-set-files-agree"
	spoil := func(p product) product {
		im := p.images[0]
		last := len(im.layers) - 1
		im.layers[last] = append(im.layers[last], im.layers[1][0], im.layers[3][0])
		im.layers[last][1].Mode, im.layers[last][2].Mode = 0o600, 0o600 // written anew
		im.layers[2] = append(im.layers[2], reg("etc/env.sh", "other"))
		return p
	}
	if v := verdict(t, spoil(product{images: []*built{set(t)}}), id); v.Outcome != tck.Waived {
		t.Errorf("without manifests: %v", v)
	}
	p := withKits(t)
	p.kits[1].layers[0] = append(p.kits[1].layers[0], reg("etc/env.sh", "other"))
	if v := verdict(t, spoil(p), id); v.Outcome != tck.Warn || !strings.Contains(v.Message, "layer 2 replaces what layer 0") {
		t.Errorf("with manifests: %v", v)
	}
}

func verdict(t testing.TB, p product, id string) tck.Verdict {
	t.Helper()
	for _, v := range judge(t, p, "").Verdicts {
		if v.Statement == id {
			return v
		}
	}
	t.Fatalf("no verdict for %s", id)
	return tck.Verdict{}
}

// TestSourcesAreHeldAgainstManifests stages, for a Kit whose manifest is known,
// sources that ask for less.
func TestSourcesAreHeldAgainstManifests(t *testing.T) {
	p := withKits(t)
	f := &p.images[0].layers[3][0]
	f.data = strings.Replace(f.data, `"b.example"`, `"a.example"`, 1)
	v := verdict(t, p, "SPEC-v3 §10/merged-set-carries-sources")
	if v.Outcome != tck.Fail || !strings.Contains(v.Message, "the sources of r.example/m:1") {
		t.Errorf("%v", v)
	}
}
