package agentskills_test

import (
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/agentskills"
	ct "github.com/kitbox-dev/kitbox/capability/capabilitytest"
)

func TestCheck(t *testing.T) {
	path := []string{"config.path"}
	ct.Check(t, agentskills.Definition(), agentskills.Type, []ct.Case{
		{Config: `{"path":"/s"}`},
		{Config: `{"path":"/s","mode":"readwrite"}`},
		{Config: `{"path":"/s","mode":"readonly"}`},
		{Config: `{"path":"/s (readwrite)"}`},
		{Config: `{}`, Want: path},
		{Config: `{"path":"rel/skills"}`, Want: path},
		{Config: `{"path":"/s/"}`, Want: path},
		{Config: `{"path":"/x/../s"}`, Want: path},
		{Config: `{"path":"/","mode":"rw"}`, Want: []string{"config.path", "config.mode"}},
		{Config: `{"path":"/s","mode":null}`, Want: []string{"config.mode"}},
		{Config: `{"path":"${{ kit.env.HOME }}/s","mode":"${{ kit.args.m }}"}`},
	})
}

func TestWritingIsAGrantOfItsOwn(t *testing.T) {
	d := agentskills.Definition()
	ct.Lines(t, d, ct.Request(agentskills.Type, `{"path":"/s"}`), "skillsPaths /s")
	ct.Lines(t, d, ct.Request(agentskills.Type, `{"path":"/s","mode":"readwrite"}`), "skillsPaths /s", "skillsWritePaths /s")
	ct.Claims(t, d, ct.Request(agentskills.Type, `{"path":"/s"}`), "skills path|/s|config.path")
}

func TestMergeTakesTheWiderMode(t *testing.T) {
	from := func(kit, config string) capability.Contribution { return ct.From(kit, agentskills.Type, config) }
	for _, mode := range []capability.MergeMode{capability.MergeRuntime, capability.MergePublish} {
		ct.Merged(t, agentskills.Definition(), mode,
			[]capability.Contribution{ct.Optional(from("a", `{"path":"/s"}`)), from("b", `{"mode":"readwrite","path":"/s"}`), from("c", `{"mode":"readonly","path":"/s"}`), from("c", `{"path":"/t"}`)},
			[]string{`agent-skills@1 {"mode":"readwrite","path":"/s"}`, `agent-skills@1 {"path":"/t"}`})
	}
}

func FuzzDecode(f *testing.F) {
	ct.RoundTrip(f, agentskills.Definition(), agentskills.Decode, append(ct.Hostile, `{"path":"/s"}`, `{"path":"/s/t","mode":"readwrite"}`, `{"path":"/s","mode":""}`)...)
}
