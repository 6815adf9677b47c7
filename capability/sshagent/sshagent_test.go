package sshagent_test

import (
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	ct "github.com/kitbox-dev/kitbox/capability/capabilitytest"
	"github.com/kitbox-dev/kitbox/capability/sshagent"
)

func TestCheck(t *testing.T) {
	var (
		ph   = []string{"config.phase"}
		sign = []string{"config.sign"}
		auth = []string{"config.authenticate"}
	)
	cases := []ct.Case{
		{Config: `{"phase":"runtime"}`},
		{Config: `{"phase":["install","runtime"],"unrestricted":true}`},
		{Config: `{"phase":["runtime"],"unrestricted":false,"sign":["git","file"],"authenticate":["git@github.com","forge.example","localhost"]}`},
		{Config: `{}`, Want: ph},
		{Config: `{"phase":[]}`, Want: ph},
		{Config: `{"phase":""}`, Want: ph},
		{Config: `{"phase":"startup"}`, Want: ph},
		{Config: `{"phase":["runtime","runtime"]}`, Want: ph},
		{Config: `{"phase":null}`, Want: ph},
		{Config: `{"phase":["install",null]}`, Want: ph},
		{Config: `{"phase":1}`, Want: []string{"config"}},
		{Config: `{"phase":{"a":1}}`, Want: []string{"config"}},
		{Config: `{"phase":["install",1]}`, Want: []string{"config"}},
		{Config: `{"phase":"runtime","sign":["git"]}`, Want: []string{"config.unrestricted"}},
		{Config: `{"phase":"runtime","unrestricted":true,"authenticate":["a.example"]}`, Want: []string{"config.unrestricted"}},
		{Config: `{"phase":"runtime","unrestricted":false}`, Want: []string{"config"}},
		{Config: `{"phase":"runtime","unrestricted":false,"sign":[]}`, Want: sign},
		{Config: `{"phase":"runtime","unrestricted":false,"sign":["git","git"]}`, Want: sign},
		{Config: `{"phase":"runtime","unrestricted":false,"sign":["a b"]}`, Want: sign},
		{Config: `{"phase":"runtime","unrestricted":false,"sign":null,"authenticate":["forge.example"]}`, Want: sign},
		{Config: `{"phase":"runtime","unrestricted":false,"authenticate":[]}`, Want: auth},
		// A stated empty list does not wait for other values.
		{Config: `{"phase":"${{ kit.args.p }}","unrestricted":"${{ kit.args.u }}","sign":[]}`, Want: sign},
		{Config: `{"phase":"${{ kit.args.p }}","unrestricted":"${{ kit.args.u }}","sign":["${{ kit.args.n }}"]}`, Form: capability.Published},
		{Config: `{"phase":"${{ kit.args.p }}"}`, Form: capability.Effective, Want: ph},
	}
	for _, bad := range []string{"*.example", "Host.example", "a.example:22", "10.0.0.1", "::1", "", "@a.example", "u v@a.example", "-a.example", "a..example", "a.example.", "u@v@a.example", "a_b.example", "1"} {
		cases = append(cases, ct.Case{Config: `{"phase":"runtime","unrestricted":false,"authenticate":["` + bad + `"]}`, Want: auth})
	}
	ct.Check(t, sshagent.Definition(), sshagent.Type, cases)
}

func TestSurface(t *testing.T) {
	d := sshagent.Definition()
	both := ct.Request(sshagent.Type, `{"phase":["install","runtime"]}`)
	ct.Lines(t, d, both, "sshAgentInstall unrestricted", "sshAgentRuntime unrestricted")
	ct.Claims(t, d, both, "ssh-agent|install|config.phase", "ssh-agent|runtime|config.phase")
	ct.Lines(t, d, ct.Request(sshagent.Type, `{"phase":"runtime","unrestricted":false,"sign":["git"],"authenticate":["u@a.example"]}`),
		"sshAgentRuntime sign git", "sshAgentRuntime authenticate u@a.example")
}

func TestEachPhaseMergesIntoOneAgent(t *testing.T) {
	d := sshagent.Definition()
	from := func(kit, config string) capability.Contribution { return ct.From(kit, sshagent.Type, config) }
	ct.Merged(t, d, capability.MergePublish, []capability.Contribution{
		ct.Optional(from("a", `{"phase":["install","runtime"],"unrestricted":false,"sign":["git"],"authenticate":["b.example"]}`)),
		from("b", `{"phase":"runtime","unrestricted":false,"authenticate":["a.example","b.example"]}`),
	}, []string{
		`optional ssh-agent@1 {"authenticate":["b.example"],"phase":"install","sign":["git"],"unrestricted":false}`,
		`ssh-agent@1 {"authenticate":["a.example","b.example"],"phase":"runtime","sign":["git"],"unrestricted":false}`,
	})
	ct.Merged(t, d, capability.MergeRuntime, []capability.Contribution{
		from("a", `{"phase":"runtime","unrestricted":false,"sign":["git"]}`), from("b", `{"phase":["runtime"]}`),
		from("c", `{"phase":"runtime","unrestricted":false,"sign":["file"]}`),
	}, []string{`ssh-agent@1 {"phase":"runtime"}`})
	open := `{"phase":"runtime","sign":["${{ kit.args.n }}"],"unrestricted":false}`
	ct.Merged(t, d, capability.MergePublish, []capability.Contribution{from("a", open), from("b", `{"phase":"runtime"}`)},
		[]string{"apart ssh-agent@1 " + open, `ssh-agent@1 {"phase":"runtime"}`})
}

func FuzzDecode(f *testing.F) {
	ct.RoundTrip(f, sshagent.Definition(), sshagent.Decode, append(ct.Hostile,
		`{"phase":"runtime"}`, `{"phase":["install","runtime"],"unrestricted":false,"sign":["git"],"authenticate":["u@a.example"]}`, `{"phase":["runtime"],"unrestricted":true}`)...)
}
