package agentskill_test

import (
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/agentskill"
	ct "github.com/kitbox-dev/kitbox/capability/capabilitytest"
)

func TestCheck(t *testing.T) {
	path, name := []string{"config.path"}, []string{"config.name"}
	ct.Check(t, agentskill.Definition(), agentskill.Type, []ct.Case{
		{Config: `{"path":"/opt/s"}`},
		{Config: `{"path":"/opt/.hidden","name":"Review-pr_1.2"}`},
		{Config: `{}`, Want: path},
		{Config: `{"path":"/opt/s/"}`, Want: path},
		{Config: `{"path":"/"}`, Want: path},
		{Config: `{"path":"/opt/../s"}`, Want: path},
		{Config: `{"path":"/opt/.hidden"}`, Want: path},
		{Config: `{"path":"/opt/a b"}`, Want: path},
		{Config: `{"path":"/opt/s","name":""}`, Want: name},
		{Config: `{"path":"/opt/s","name":null}`, Want: name},
		{Config: `{"path":"/opt/s","name":".x"}`, Want: name},
		{Config: `{"path":"/opt/s","name":"a/b"}`, Want: name},
		{Config: `{"path":"opt/s","name":".."}`, Want: []string{"config.path", "config.name"}},
		{Config: `{"path":"/opt/s","name":"` + strings.Repeat("a", 255) + `"}`},
		{Config: `{"path":"/opt/s","name":"` + strings.Repeat("a", 256) + `"}`, Want: name},
		{Config: `{"path":"/opt/${{ kit.args.s }}"}`},
		{Config: `{"path":"${{ kit.args.s }}"}`, Form: capability.Published, Want: path},
		{Config: `{"path":"${{ kit.env.HOME }}/s"}`, Want: path},
		{Config: `{"path":"/opt/s","name":"${{ kit.args.n }}"}`, Form: capability.Published},
		{Config: `{"path":"/opt/s","name":"${{ kit.args.n }}"}`, Form: capability.Effective, Want: name},
	})
}

func TestEffectiveNameIsTheIdentity(t *testing.T) {
	d := agentskill.Definition()
	from := func(kit, config string) capability.Contribution { return ct.From(kit, agentskill.Type, config) }
	ct.Claims(t, d, ct.Request(agentskill.Type, `{"path":"/opt/s"}`), "agent skill|s|config.path")
	ct.Claims(t, d, ct.Request(agentskill.Type, `{"path":"/opt/s","name":"n"}`), "agent skill|n|config.name")
	ct.Claims(t, d, ct.Request(agentskill.Type, `{"path":"/opt/s","name":"${{ kit.args.n }}"}`))
	ct.Lines(t, d, ct.Request(agentskill.Type, `{"path":"/opt/s"}`))
	ct.Merged(t, d, capability.MergePublish, []capability.Contribution{ct.Optional(from("a", `{"path":"/opt/s"}`)), from("b", `{"name":"s","path":"/opt/s"}`)},
		[]string{`agent-skill@1 {"path":"/opt/s"}`})
	ct.Merged(t, d, capability.MergePublish, []capability.Contribution{from("a", `{"path":"/opt/s"}`), ct.Optional(from("b", `{"path":"/usr/s"}`))}, nil, "s")
}

func FuzzDecode(f *testing.F) {
	ct.RoundTrip(f, agentskill.Definition(), agentskill.Decode, append(ct.Hostile, `{"path":"/opt/s"}`, `{"path":"/opt/.s","name":"n"}`)...)
}
