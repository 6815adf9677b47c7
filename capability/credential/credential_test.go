package credential_test

import (
	"fmt"
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	ct "github.com/kitbox-dev/kitbox/capability/capabilitytest"
	"github.com/kitbox-dev/kitbox/capability/credential"
)

func ExampleConfig_Injections() {
	c, err := credential.Decode(capability.Request{
		Type: credential.Type,
		Config: []byte(`{"service":"github","phase":["install","runtime"],"apiKey":{"name":"GH_TOKEN","proxyManaged":true,
			"inject":[{"domain":"api.github.com","header":"Authorization","format":"Bearer %s"}]}}`),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, i := range c.Injections() {
		fmt.Println(i.Domain, i.At, c.Phase)
	}
	// Output: api.github.com config.apiKey.inject[0].domain [install runtime]
}

// with returns a config of a named key and an oauth member.
func with(oauth string) string {
	return `{"service":"svc","phase":"runtime","apiKey":{"name":"A"},"oauth":` + oauth + `}`
}

const file = "config.oauth.credentialFile"

func TestCheck(t *testing.T) {
	ct.Check(t, credential.Definition(), credential.Type, []ct.Case{
		{Config: `{"service":"svc","phase":"runtime","apiKey":{"name":"A"}}`},
		{Config: `{"service":"a-1-b","phase":["install"],"apiKey":{"name":"","inject":[{"domain":"a.example","scheme":"basic","username":"x"}]}}`},
		{Config: `{"service":"svc","phase":"runtime","oauth":{"tokenEndpoint":{"host":"a.example","path":"/t"},"resourceHosts":["b.example"],"sentinels":{"accessToken":"x"},"responseFields":{"expiresIn":"e"},"passthrough":true}}`},
		{Config: `{}`, Want: []string{"config.service", "config.phase", "config"}},
		{Config: `{"service":"Svc","phase":"runtime","apiKey":{"name":"A"}}`, Want: []string{"config.service"}},
		{Config: `{"service":"a--b","phase":"runtime","apiKey":{"name":"A"}}`, Want: []string{"config.service"}},
		{Config: `{"service":"svc","phase":[],"apiKey":{"name":"A"}}`, Want: []string{"config.phase"}},
		{Config: `{"service":"svc","phase":"boot","apiKey":{"name":"A"}}`, Want: []string{"config.phase"}},
		{Config: `{"service":"svc","phase":["runtime","runtime"],"apiKey":{"name":"A"}}`, Want: []string{"config.phase"}},
		{Config: `{"service":"svc","phase":"runtime"}`, Want: []string{"config"}},
		{Config: `{"service":"svc","phase":"runtime","apiKey":{}}`, Want: []string{"config.apiKey"}},
		{Config: `{"service":"svc","phase":"runtime","apiKey":{"inject":[]}}`, Want: []string{"config.apiKey"}},
		{Config: `{"service":"svc","phase":"runtime","apiKey":{"name":"1A"}}`, Want: []string{"config.apiKey.name"}},
		{Config: `{"service":"svc","phase":"runtime","apiKey":{"inject":[{"domain":"a.example"},{"header":"H"},{"domain":"https://a.example"}]}}`,
			Want: []string{"config.apiKey.inject[1].domain", "config.apiKey.inject[2].domain"}},
		{Config: `{"service":"svc","phase":"runtime","apiKey":null}`, Want: []string{"config.apiKey"}},
		{Config: `{"service":"svc","phase":"runtime","apiKey":{"name":null}}`, Want: []string{"config.apiKey.name"}},
		{Config: `{"service":"svc","phase":["install",null],"apiKey":{"name":"A"}}`, Want: []string{"config.phase"}},
		{Config: `{"service":"svc","phase":"runtime","apiKey":{"name":"A","inject":[{"domain":"a.example","header":null}]}}`, Want: []string{"config.apiKey.inject[0].header"}},
		{Config: `{"service":"svc","phase":"runtime","apiKey":{"name":"A","value":"s3cret"}}`, Want: []string{"config"}},
		{Config: with(`{"tokenEndpoint":{"path":"t"}}`), Want: []string{"config.oauth.tokenEndpoint.host", "config.oauth.tokenEndpoint.path"}},
		{Config: with(`{"resourceHosts":[""]}`), Want: []string{"config.oauth.resourceHosts"}},
		{Config: with(`{"credentialFile":{"path":"~/c"}}`)},
		{Config: with(`{"credentialFile":{"path":"c"}}`), Want: []string{file + ".path"}},
		{Config: with(`{"credentialFile":{"path":"~/c","format":""}}`), Want: []string{file + ".format"}},
		{Config: with(`{"credentialFile":{"path":"~/c","format":"yaml"}}`), Want: []string{file + ".format"}},
		{Config: with(`{"credentialFile":{"path":"~/c","structure":null}}`), Want: []string{file + ".structure"}},
		{Config: with(`{"credentialFile":{"path":"~/c","structure":["x"]}}`), Want: []string{file + ".structure"}},
		{Config: with(`{"credentialFile":{"path":"~/c","structure":{"a":{"b":null},"l":[null]}}}`)},
		{Config: with(`{"credentialFile":{"path":"~/c","format":"toml","structure":{"a":{"b":null},"l":[null]}}}`), Want: []string{file + ".structure.a.b", file + ".structure.l"}},
		{Config: with(`{"credentialFile":{"path":"~/c","structure":{"a":"Bearer {{.AccessToken}}","e":"{{.ExpiresAt}}","s":["{{.Scopes}}"],"k":"{{.PrimaryApiKey}}","r":"{{.RefreshToken}}","n":1,"o":"{{"}}}`)},
		{Config: with(`{"credentialFile":{"path":"~/c","structure":{"a":{"b":"{{.Token}}"},"c":["{{.AccessToken}}{{ .Scopes }}"]}}}`), Want: []string{file + ".structure.a.b", file + ".structure.c"}},
		{Config: with(`{"credentialFile":{"path":"~/c","structure":{"a":"${{ kit.args.x }}"}}}`)},
		{Config: with(`{"credentialFile":{"path":"~/c","structure":{"a":1,"a":2}}}`), Want: []string{"config"}},
		// Presence does not wait for values.
		{Config: `{"service":"${{ kit.args.s }}","phase":"${{ kit.args.p }}"}`, Want: []string{"config"}},
		{Config: `{"service":"${{ kit.args.s }}","phase":["install","${{ kit.args.p }}"],"apiKey":{"name":"${{ kit.args.n }}","proxyManaged":"${{ kit.args.m }}"}}`, Form: capability.Published},
	})
	p := credential.Definition().Check(ct.Request(credential.Type, `{"service":"svc","phase":"runtime","apiKey":{"inject":[{"domain":"a","format":"Bearer"}]}}`), capability.Effective)
	if len(p) != 1 || !p[0].Warning || p[0].Path != "config.apiKey.inject[0].format" {
		t.Errorf("a format without the secret: %+v", p)
	}
}

func TestEachPhaseIsAGrant(t *testing.T) {
	d := credential.Definition()
	both := ct.Request(credential.Type, `{"service":"svc","phase":["install","runtime"],"apiKey":{"name":"A"}}`)
	ct.Claims(t, d, both, "credential|svc install|config.service", "credential|svc runtime|config.service")
	ct.Lines(t, d, both, "credentialsInstall svc", "credentialsRuntime svc")
	ct.Lines(t, d, ct.Request(credential.Type, `{"service":"svc","phase":"${{ kit.args.p }}","apiKey":{"name":"A"}}`), "credentialsInstall svc", "credentialsRuntime svc")
	ct.Claims(t, d, ct.Request(credential.Type, `{"service":"","phase":"runtime","apiKey":{"name":"A"}}`))
}

func TestMerge(t *testing.T) {
	d := credential.Definition()
	from := func(kit, config string) capability.Contribution { return ct.From(kit, credential.Type, config) }
	ct.Merged(t, d, capability.MergePublish, []capability.Contribution{
		ct.Optional(from("a", `{"service":"svc","phase":["runtime","install"],"apiKey":{"proxyManaged":"${{ kit.args.m }}","name":"A"}}`)),
		from("b", `{"service":"aux","phase":"runtime","apiKey":{"name":"B"}}`),
	}, []string{
		`optional credential@1 {"apiKey":{"proxyManaged":"${{ kit.args.m }}","name":"A"},"phase":"runtime","service":"svc"}`,
		`optional credential@1 {"apiKey":{"proxyManaged":"${{ kit.args.m }}","name":"A"},"phase":"install","service":"svc"}`,
		`credential@1 {"service":"aux","phase":"runtime","apiKey":{"name":"B"}}`,
	})
	for _, mode := range []capability.MergeMode{capability.MergeRuntime, capability.MergePublish} {
		ct.Merged(t, d, mode, []capability.Contribution{
			from("a", `{"service":"svc","phase":"runtime","apiKey":{"name":"A"}}`), from("b", `{"service":"svc","phase":["install","runtime"],"apiKey":{"name":"A"}}`),
		}, nil, "svc runtime")
	}
}

func FuzzDecode(f *testing.F) {
	ct.RoundTrip(f, credential.Definition(), credential.Decode, append(ct.Hostile,
		`{"service":"svc","phase":["install","runtime"],"apiKey":{"name":"A","proxyManaged":true,"inject":[{"domain":"a","header":"H","format":"%s"}]}}`,
		with(`{"tokenEndpoint":{"host":"a"},"resourceHosts":[],"sentinels":{},"credentialFile":{"path":"~/c","format":"json","structure":{"b":{"x":null},"a":[1.50,"\u00e9","{{.AccessToken}}"]}},"responseFields":{}}`),
		with(`{"credentialFile":{"path":"/c","format":"toml","structure":{"a":12345678901234567890}}}`))...)
}
