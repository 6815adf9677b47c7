package agentinteractivesessions_test

import (
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	ais "github.com/kitbox-dev/kitbox/capability/agentinteractivesessions"
	ct "github.com/kitbox-dev/kitbox/capability/capabilitytest"
)

func TestCheck(t *testing.T) {
	ct.Check(t, ais.Definition(), ais.Type, []ct.Case{
		{Config: `{"prompt":["{{.Prompt}}"],"resume":["--r={{.SessionID}}"],"continue":[],"newSession":["-n"],"sessionPicker":[],"list":"ids"}`},
		{Config: `{"newSession":[]}`},
		{Config: `{}`, Want: []string{"config"}},
		{Config: `{"newSession":[],"sessionPicker":null}`, Want: []string{"config.sessionPicker"}},
		{Config: `{"continue":["a",null]}`, Want: []string{"config.continue"}},
		{Config: `{"list":null}`, Want: []string{"config.list"}},
		{Config: `{"prompt":[],"resume":["-r"]}`, Want: []string{"config.prompt", "config.resume"}},
		{Config: `{"continue":[],"list":[" ","x"]}`, Want: []string{"config.list"}},
		{Config: `{"list":""}`, Want: []string{"config.list"}},
		{Config: `{"list":[]}`, Want: []string{"config.list"}},
		{Config: `{"list":[1]}`, Want: []string{"config"}},
		{Config: `{"newSession":["\u0000"]}`, Want: []string{"config.newSession"}},
		{Config: `{"prompt":["${{ kit.args.p }}"],"list":""}`, Want: []string{"config.list"}},
	})
	ct.Lines(t, ais.Definition(), ct.Request(ais.Type, `{"newSession":[]}`))
	if p := ais.Definition().Check(ct.Request(ais.Type, `{"continue":["{{.Prompt}}"]}`), capability.Effective); len(p) != 1 || !p[0].Warning {
		t.Errorf("a placeholder that nothing replaces: %+v", p)
	}
}

func TestPeekTellsEmptyFromUnstated(t *testing.T) {
	c, ok := ais.Peek(ct.Request(ais.Type, `{"newSession":[],"prompt":["${{ kit.args.p }}"]}`))
	if !ok || c.NewSession == nil || c.Continue != nil || c.List != nil {
		t.Errorf("Peek = %+v, %v", c, ok)
	}
	if _, ok := ais.Peek(ct.Request(ais.Type, `{"newSession":1}`)); ok {
		t.Error("Peek accepted another shape")
	}
}

func TestMergeKeepsTheOriginal(t *testing.T) {
	d := ais.Definition()
	from := func(kit, config string) capability.Contribution { return ct.From(kit, ais.Type, config) }
	ct.Merged(t, d, capability.MergePublish, []capability.Contribution{from("a", `{"newSession":[],"list":"ids"}`), from("b", `{"list":["sh","-c","ids"],"newSession":[]}`)},
		[]string{`agent-interactive-sessions@1 {"newSession":[],"list":"ids"}`})
	for _, other := range []string{`{"newSession":[],"continue":[]}`, `{"newSession":["-x"]}`, `{"newSession":[],"list":"ids"}`} {
		ct.Merged(t, d, capability.MergeRuntime, []capability.Contribution{from("a", `{"newSession":[]}`), from("b", other)}, nil, "agent-interactive-sessions")
	}
}

func FuzzDecode(f *testing.F) {
	ct.RoundTrip(f, ais.Definition(), ais.Decode, append(ct.Hostile,
		`{"prompt":["{{.Prompt}}"],"resume":["{{.SessionID}}"],"continue":[],"newSession":[],"sessionPicker":["-s"],"list":["ids"]}`, `{"list":"x"}`)...)
}
