package agentcontext_test

import (
	"fmt"
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/agentcontext"
	ct "github.com/kitbox-dev/kitbox/capability/capabilitytest"
)

func TestCheck(t *testing.T) {
	filename, directory, config := []string{"config.filename"}, []string{"config.directory"}, []string{"config"}
	ct.Check(t, agentcontext.Definition(), agentcontext.Type, []ct.Case{
		{Config: `{"filename":"AGENTS.md"}`},
		{Config: `{"filename":"AGENTS.md","directory":"/home/agent/.x","contentFile":"./b.md"}`},
		{Config: `{"content":"x"}`},
		{Config: `{"contentFile":"/usr/share/sandbox/kit/x/b.md"}`, Form: capability.Published},
		{Config: `{}`, Want: config},
		{Config: `{"content":"","filename":""}`, Want: config},
		{Config: `{"directory":"/h"}`, Want: filename},
		{Config: `{"directory":"/h","content":"x"}`, Want: filename},
		{Config: `{"filename":"x/A.md","directory":"/h"}`, Want: filename},
		{Config: `{"filename":"../A.md"}`, Want: filename},
		{Config: `{"filename":"..","directory":"/h"}`, Want: filename},
		{Config: `{"filename":"A.md","directory":"/home/../x"}`, Want: directory},
		{Config: `{"filename":"A.md","directory":"h"}`, Want: directory},
		{Config: `{"filename":"A.md","directory":"/h/"}`, Want: directory},
		{Config: `{"content":"a","contentFile":"./b.md"}`, Want: config},
		{Config: `{"content":"${{ kit.args.t }}","contentFile":"./b.md"}`, Want: config},
		{Config: `{"contentFile":"../b.md"}`, Want: []string{"config.contentFile"}},
		{Config: `{"filename":"A.md","directory":"${{ kit.env.HOME }}/.x"}`},
		{Config: `{"filename":null,"content":"x"}`, Want: filename},
		{Config: `{"filename":"A.md","path":"/h"}`, Want: config},
	})
	ct.Lines(t, agentcontext.Definition(), ct.Request(agentcontext.Type, `{"content":"x"}`))
}

func TestClaims(t *testing.T) {
	d := agentcontext.Definition()
	const undirected, body = "agent-context without a directory||type", "agent-context body||config"
	ct.Claims(t, d, ct.Request(agentcontext.Type, `{"filename":"A.md","directory":"/h"}`), "agent-context profile|/h/A.md|config.directory")
	ct.Claims(t, d, ct.Request(agentcontext.Type, `{"filename":"A.md","directory":"/h","content":"x"}`), "agent-context profile|/h/A.md|config.directory", body)
	ct.Claims(t, d, ct.Request(agentcontext.Type, `{"filename":"A.md"}`), undirected)
	ct.Claims(t, d, ct.Request(agentcontext.Type, `{"contentFile":"./x"}`), undirected, body)
	ct.Claims(t, d, ct.Request(agentcontext.Type, `{"filename":"A.md","directory":"${{ kit.env.HOME }}/x"}`))
	ct.Claims(t, d, ct.Request(agentcontext.Type, `{"filename":"A.md","directory":"x"}`))
}

func from(kit, config string) capability.Contribution { return ct.From(kit, agentcontext.Type, config) }

func TestPublish(t *testing.T) {
	publish := func(want []string, cs ...capability.Contribution) {
		t.Helper()
		ct.Merged(t, agentcontext.Definition(), capability.MergePublish, cs, want)
	}
	// An explicit profile beats a legacy one in either order, and carries both bodies.
	ag := from("ag", `{"filename":"L.md","directory":"/h/.l","content":"l"}`)
	sh := from("sh", `{"filename":"AGENTS.md","content":"s"}`)
	publish([]string{`agent-context@1 {"content":"l\n\ns\n","directory":"/h/.l","filename":"L.md"}`}, ag, sh)
	publish([]string{`agent-context@1 {"content":"s\n\nl\n","directory":"/h/.l","filename":"L.md"}`}, sh, ag)
	// The body rides the first required profile.
	publish([]string{
		`optional agent-context@1 {"directory":"/h/.l","filename":"L.md"}`,
		`agent-context@1 {"content":"1","directory":"/h/.k","filename":"K.md"}`,
	}, ct.Optional(from("a", `{"filename":"L.md","directory":"/h/.l","content":"1"}`)), from("b", `{"filename":"K.md","directory":"/h/.k"}`))
	// All optional: groups with bodies of their own.
	publish([]string{
		`apart optional agent-context@1 {"filename":"L.md","directory":"/h/.l","content":"1"}`,
		`apart optional agent-context@1 {"filename":"K.md","directory":"/h/.k","content":"2"}`,
		`agent-context@1 {"content":"s\n\nt\n","filename":"AGENTS.md"}`,
	}, ct.Optional(from("a", `{"filename":"L.md","directory":"/h/.l","content":"1"}`)), from("sh", `{"filename":"AGENTS.md","content":"s"}`),
		ct.Optional(from("b", `{"filename":"K.md","directory":"/h/.k","content":"2"}`)), from("t", `{"content":"t"}`))
	// Sharing only the directory or only the name does not make one profile.
	publish([]string{
		`agent-context@1 {"filename":"A.md","directory":"/h"}`, `agent-context@1 {"filename":"B.md","directory":"/h"}`, `agent-context@1 {"filename":"A.md","directory":"/i"}`,
	}, from("a", `{"filename":"A.md","directory":"/h"}`), from("b", `{"filename":"B.md","directory":"/h"}`), from("c", `{"filename":"A.md","directory":"/i"}`), from("d", `{"filename":"A.md","directory":"/h"}`))
	// Bodies alone.
	publish([]string{`agent-context@1 {"content":"Read /usr/share/x.md.\n\nb\n"}`}, from("a", `{"contentFile":"/usr/share/x.md"}`), from("b", `{"content":"b"}`))
	publish([]string{`agent-context@1 {"contentFile":"/usr/share/x.md"}`}, from("a", `{"contentFile":"/usr/share/x.md"}`))

	ct.Merged(t, agentcontext.Definition(), capability.MergePublish, []capability.Contribution{sh, from("x", `{"filename":"AGENTS.md"}`)}, nil, "filename")
}

func TestPublishStagesSeveralBodies(t *testing.T) {
	var staged []agentcontext.Body
	out, conflicts := agentcontext.Publish([]capability.Contribution{
		from("a", `{"content":"1"}`), from("b", `{"filename":"K.md","directory":"/h/.k","contentFile":"/u/b.md"}`),
	}, func(bodies []agentcontext.Body) agentcontext.Config {
		staged = bodies
		return agentcontext.Config{ContentFile: "/u/all.md"}
	})
	if len(conflicts) != 0 || len(out) != 1 || string(out[0].Request.Config) != `{"contentFile":"/u/all.md","directory":"/h/.k","filename":"K.md"}` {
		t.Fatalf("published %q, %+v", ct.Configs(out), conflicts)
	}
	if fmt.Sprint(staged) != "[{a 1 } {b  /u/b.md}]" {
		t.Errorf("staged %+v", staged)
	}
	if len(out[0].From) != 2 {
		t.Errorf("From: %+v", out[0].From)
	}
}

func TestSandboxKeepsEveryBodyApart(t *testing.T) {
	d := agentcontext.Definition()
	run := func(want []string, keys []string, cs ...capability.Contribution) {
		t.Helper()
		ct.Merged(t, d, capability.MergeRuntime, cs, want, keys...)
	}
	run([]string{
		`agent-context@1 {"content":"s"}`,
		`agent-context@1 {"filename":"L.md","directory":"/h/.l","content":"l"}`,
		`agent-context@1 {"filename":"L.md","directory":"/h/.l","content":"m"}`,
		`agent-context@1 {"content":"t"}`,
	}, nil, from("sh", `{"filename":"AGENTS.md","content":"s"}`), from("a", `{"filename":"L.md","directory":"/h/.l","content":"l"}`),
		from("b", `{"filename":"L.md","directory":"/h/.l","content":"m"}`), from("c", `{"filename":"L.md","directory":"/h/.l"}`), from("t", `{"content":"t"}`))
	run([]string{`agent-context@1 {"filename":"AGENTS.md","content":"s"}`, `agent-context@1 {"content":"t"}`}, nil,
		from("sh", `{"filename":"AGENTS.md","content":"s"}`), from("t", `{"content":"t"}`))
	run([]string{`agent-context@1 {"filename":"L.md","directory":"/h/.l"}`}, nil,
		from("sh", `{"filename":"AGENTS.md"}`), from("a", `{"filename":"L.md","directory":"/h/.l"}`))
	run(nil, []string{"filename"}, from("a", `{"filename":"AGENTS.md"}`), from("b", `{"filename":"AGENTS.md"}`))
}

func FuzzDecode(f *testing.F) {
	ct.RoundTrip(f, agentcontext.Definition(), agentcontext.Decode, append(ct.Hostile,
		`{"filename":"A.md","directory":"/h","content":"x"}`, `{"contentFile":"./b.md"}`, `{"filename":"A.md","content":""}`)...)
}
