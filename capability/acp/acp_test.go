package acp_test

import (
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/acp"
	ct "github.com/kitbox-dev/kitbox/capability/capabilitytest"
)

func TestCheck(t *testing.T) {
	agent := []string{"config.agent"}
	ct.Check(t, acp.Definition(), acp.Type, []ct.Case{
		{Config: `{"agent":"lamp","command":["a"]}`},
		{Config: `{"agent":"com.example/la-mp.x+","command":"a --acp","env":{"A":""},"protocolVersion":2}`},
		{Config: `{}`, Want: []string{"config.agent", "config.command"}},
		{Config: `{"agent":"lamp@1","command":["a"]}`, Want: agent},
		{Config: `{"agent":"Lamp","command":["a"]}`, Want: agent},
		{Config: `{"agent":"tools/lamp","command":["a"]}`, Want: agent},
		{Config: `{"agent":"com.example/","command":["a"]}`, Want: agent},
		{Config: `{"agent":"lamp-","command":["a"]}`, Want: agent},
		{Config: `{"agent":"lamp","command":""}`, Want: []string{"config.command"}},
		{Config: `{"agent":"lamp","command":[" "]}`, Want: []string{"config.command"}},
		{Config: `{"agent":"lamp","command":["a","\u0000"]}`, Want: []string{"config.command"}},
		{Config: `{"agent":"lamp","command":"a\u0000"}`, Want: []string{"config.command"}},
		{Config: `{"agent":"lamp","command":["a"],"env":{"A=":"x"}}`, Want: []string{"config.env"}},
		{Config: `{"agent":"lamp","command":["a"],"env":{"A":"\u0000"}}`, Want: []string{"config.env"}},
		{Config: `{"agent":"lamp","command":["a"],"env":{"A":null}}`, Want: []string{"config.env.A"}},
		{Config: `{"agent":"lamp","command":["a"],"protocolVersion":0}`, Want: []string{"config.protocolVersion"}},
		{Config: `{"agent":"lamp","command":["a"],"protocolVersion":"1"}`, Want: []string{"config"}},
		{Config: `{"agent":"${{ kit.args.a }}","command":["${{ kit.args.c }}"],"env":{"${{ kit.args.k }}":"v"},"protocolVersion":"${{ kit.args.v }}"}`},
	})
	ct.Lines(t, acp.Definition(), ct.Request(acp.Type, `{"agent":"l","command":["a"]}`))
}

func TestRestatementsMerge(t *testing.T) {
	d := acp.Definition()
	from := func(kit, config string) capability.Contribution { return ct.From(kit, acp.Type, config) }
	ct.Claims(t, d, ct.Request(acp.Type, `{"agent":"l","command":["a"]}`), "acp agent|com.docker.kit/l|config.agent")
	ct.Merged(t, d, capability.MergeRuntime, []capability.Contribution{
		from("a", `{"agent":"l","command":"run x"}`),
		from("b", `{"agent":"com.docker.kit/l","command":["sh","-c","run x"],"env":{},"protocolVersion":1}`),
		from("c", `{"agent":"com.example/l","command":["y"]}`),
	}, []string{`acp@1 {"agent":"l","command":"run x"}`, `acp@1 {"agent":"com.example/l","command":["y"]}`})
	for _, other := range []string{`{"agent":"l","command":["y"]}`, `{"agent":"l","command":["x"],"env":{"A":""}}`, `{"agent":"l","command":["x"],"protocolVersion":2}`} {
		ct.Merged(t, d, capability.MergePublish, []capability.Contribution{from("a", `{"agent":"l","command":["x"]}`), from("b", other)}, nil, "com.docker.kit/l")
	}
}

func FuzzDecode(f *testing.F) {
	ct.RoundTrip(f, acp.Definition(), acp.Decode, append(ct.Hostile,
		`{"agent":"l","command":"a"}`, `{"agent":"com.example/l","command":["a"],"env":{"B":"1","A":""},"protocolVersion":4611686018427387905}`, `{"agent":"l","command":"a","env":{}}`)...)
}
