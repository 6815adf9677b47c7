package agentsessions_test

import (
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/agentsessions"
	ct "github.com/kitbox-dev/kitbox/capability/capabilitytest"
)

func TestCheck(t *testing.T) {
	ct.Check(t, agentsessions.Definition(), agentsessions.Type, []ct.Case{
		{Config: `{"prompt":["-p","{{.Prompt}}"],"resume":["--resume={{.SessionID}}"],"continue":["-c"],"list":"ids"}`},
		{Config: `{"continue":["-c"],"prompt":[],"resume":[],"list":[]}`},
		{Config: `{"list":["ids"]}`},
		{Config: `{}`, Want: []string{"config"}},
		{Config: `{"prompt":[],"continue":[],"list":""}`, Want: []string{"config"}},
		{Config: `{"prompt":["-p"],"resume":["-r"]}`, Want: []string{"config.prompt", "config.resume"}},
		{Config: `{"resume":["{{.Prompt}}"]}`, Want: []string{"config.resume"}},
		{Config: `{"continue":["-c"],"list":[" "]}`, Want: []string{"config.list"}},
		{Config: `{"continue":["\u0000"]}`, Want: []string{"config.continue"}},
		{Config: `{"continue":"-c"}`, Want: []string{"config"}},
		{Config: `{"newSession":[]}`, Want: []string{"config"}},
		{Config: `{"continue":null,"list":"x"}`, Want: []string{"config.continue"}},
		{Config: `{"prompt":["${{ kit.args.p }}"]}`},
		{Config: `{"prompt":["${{ kit.args.p }}"]}`, Form: capability.Effective, Want: []string{"config.prompt"}},
	})
	ct.Lines(t, agentsessions.Definition(), ct.Request(agentsessions.Type, `{"continue":["-c"]}`))
}

func TestMerge(t *testing.T) {
	d := agentsessions.Definition()
	from := func(kit, config string) capability.Contribution { return ct.From(kit, agentsessions.Type, config) }
	ct.Merged(t, d, capability.MergePublish, []capability.Contribution{from("a", `{"list":"ids","continue":[]}`), from("b", `{"list":["sh","-c","ids"]}`)},
		[]string{`agent-sessions@1 {"list":"ids","continue":[]}`})
	different := []capability.Contribution{from("a", `{"continue":["-c"]}`), from("b", `{"continue":["--continue"]}`)}
	ct.Merged(t, d, capability.MergePublish, different, nil, "agent-sessions")
	ct.Merged(t, d, capability.MergeRuntime, different, nil, "agent-sessions")
	different[1].Workload = true
	ct.Merged(t, d, capability.MergeRuntime, different, []string{`agent-sessions@1 {"continue":["--continue"]}`})
}

func FuzzDecode(f *testing.F) {
	ct.RoundTrip(f, agentsessions.Definition(), agentsessions.Decode, append(ct.Hostile,
		`{"prompt":["-p","{{.Prompt}}"],"resume":["{{.SessionID}}"],"continue":["-c"],"list":["ids"]}`, `{"continue":["-c"],"prompt":[],"list":[]}`, `{"list":"x"}`)...)
}
