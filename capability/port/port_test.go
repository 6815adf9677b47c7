package port_test

import (
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	ct "github.com/kitbox-dev/kitbox/capability/capabilitytest"
	"github.com/kitbox-dev/kitbox/capability/port"
)

func TestCheck(t *testing.T) {
	ct.Check(t, port.Definition(), port.Type, []ct.Case{
		{Config: `{"container":3000}`},
		{Config: `{"container":65535,"transport":"udp","name":"dns"}`},
		{Config: `{"container":1,"transport":""}`},
		{Config: `{}`, Want: []string{"config.container"}},
		{Config: `{"container":0}`, Want: []string{"config.container"}},
		{Config: `{"container":65536,"transport":"sctp"}`, Want: []string{"config.container", "config.transport"}},
		{Config: `{"container":-1}`, Want: []string{"config.container"}},
		{Config: `{"container":80,"transport":"TCP"}`, Want: []string{"config.transport"}},
		{Config: `{"container":"80"}`, Want: []string{"config"}},
		{Config: `{"container":80.5}`, Want: []string{"config"}},
		{Config: `{"container":99999999999999999999}`, Want: []string{"config"}},
		{Config: `{"container":null}`, Want: []string{"config.container"}},
		{Config: `{"container":80,"host":80}`, Want: []string{"config"}},
		{Config: `{"container":"${{ kit.args.p }}"}`},
		{Config: `{"container":"${{ kit.args.p }}","transport":"x"}`, Want: []string{"config.transport"}},
		{Config: `{"container":"${{ kit.args.p }}"}`, Form: capability.Effective, Want: []string{"config"}},
	})
}

func TestIdentityIsNumberAndTransport(t *testing.T) {
	d := port.Definition()
	ct.Claims(t, d, ct.Request(port.Type, `{"container":80,"name":"a"}`), "port|80/tcp|config.container")
	ct.Claims(t, d, ct.Request(port.Type, `{"container":80,"transport":"udp"}`), "port|80/udp|config.container")
	ct.Claims(t, d, ct.Request(port.Type, `{"container":"${{ kit.args.p }}"}`))
	ct.Claims(t, d, ct.Request(port.Type, `{"container":0}`))
	ct.Lines(t, d, ct.Request(port.Type, `{"container":53,"transport":"udp"}`), "ports 53/udp")
	ct.Lines(t, d, ct.Request(port.Type, `{"container":"${{ kit.args.p }}"}`), "ports ${{ kit.args.p }}/tcp")
	from := func(kit, config string) capability.Contribution { return ct.From(kit, port.Type, config) }
	ct.Merged(t, d, capability.MergePublish,
		[]capability.Contribution{from("a", `{"container":80,"name":"x"}`), from("b", `{"container":80,"transport":"tcp","name":"y"}`), from("b", `{"container":80,"transport":"udp"}`)},
		[]string{`port@1 {"container":80,"name":"x"}`, `port@1 {"container":80,"transport":"udp"}`})
	open := from("a", `{"container":"${{ kit.args.p }}"}`)
	ct.Merged(t, d, capability.MergePublish, []capability.Contribution{open, from("b", `{"container":80}`)},
		[]string{`apart port@1 {"container":"${{ kit.args.p }}"}`, `port@1 {"container":80}`})
	ct.Merged(t, d, capability.MergePublish, []capability.Contribution{open}, []string{`port@1 {"container":"${{ kit.args.p }}"}`})
}

func FuzzDecode(f *testing.F) {
	ct.RoundTrip(f, port.Definition(), port.Decode, append(ct.Hostile,
		`{"container":3000}`, `{"container":53,"transport":"udp","name":"dns"}`, `{"container":8e1}`)...)
}
