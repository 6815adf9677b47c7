package hostport_test

import (
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	ct "github.com/kitbox-dev/kitbox/capability/capabilitytest"
	"github.com/kitbox-dev/kitbox/capability/hostport"
)

func TestCheck(t *testing.T) {
	ct.Check(t, hostport.Definition(), hostport.Type, []ct.Case{
		{Config: `{"port":5432}`},
		{Config: `{"port":53,"transport":"udp","family":"ipv6","name":"dns"}`},
		{Config: `{"name":"x"}`, Want: []string{"config.port"}},
		{Config: `{"port":65536,"transport":"sctp","family":"ip"}`, Want: []string{"config.port", "config.transport", "config.family"}},
		{Config: `{"port":1,"address":"127.0.0.1"}`, Want: []string{"config"}},
		{Config: `{"port":null}`, Want: []string{"config.port"}},
		{Config: `{"port":"${{ kit.args.p }}","family":"${{ kit.args.f }}"}`, Form: capability.Published},
	})
}

func TestIdentityIsTheWholeAddress(t *testing.T) {
	d := hostport.Definition()
	ct.Claims(t, d, ct.Request(hostport.Type, `{"port":5432,"name":"a"}`), "host port|tcp4/5432|config.port")
	ct.Lines(t, d, ct.Request(hostport.Type, `{"port":53,"transport":"udp","family":"ipv6"}`), "hostPorts udp6/53")
	ct.Lines(t, d, ct.Request(hostport.Type, `{"port":53,"transport":"${{ kit.args.t }}"}`), "hostPorts ${{ kit.args.t }}4/53")
	ct.Claims(t, d, ct.Request(hostport.Type, `{"port":53,"transport":"${{ kit.args.t }}"}`))
	ct.Claims(t, d, ct.Request(hostport.Type, `{"port":53,"family":"${{ kit.args.f }}"}`))
	ct.Lines(t, d, ct.Request(hostport.Type, `{"port":"${{ kit.args.p }}","family":"${{ kit.args.f }}"}`), "hostPorts tcp4/${{ kit.args.p }}", "hostPorts tcp6/${{ kit.args.p }}")
	from := func(kit, config string) capability.Contribution { return ct.From(kit, hostport.Type, config) }
	ct.Merged(t, d, capability.MergeRuntime,
		[]capability.Contribution{from("a", `{"port":80}`), from("b", `{"family":"ipv4","port":80,"transport":"tcp"}`), from("b", `{"family":"ipv6","port":80}`)},
		[]string{`host-port@1 {"port":80}`, `host-port@1 {"family":"ipv6","port":80}`})
}

func FuzzDecode(f *testing.F) {
	ct.RoundTrip(f, hostport.Definition(), hostport.Decode, append(ct.Hostile,
		`{"port":5432}`, `{"port":53,"transport":"udp","family":"ipv6","name":"dns"}`)...)
}
