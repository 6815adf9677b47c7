package dockerauth_test

import (
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	ct "github.com/kitbox-dev/kitbox/capability/capabilitytest"
	"github.com/kitbox-dev/kitbox/capability/dockerauth"
)

func TestCheck(t *testing.T) {
	bad := []string{"config.registry"}
	ct.Check(t, dockerauth.Definition(), dockerauth.Type, []ct.Case{
		{Config: `{"registry":"docker.io"}`},
		{Config: `{"registry":"localhost:5000"}`},
		{Config: `{"registry":"[::1]:5000"}`},
		{Config: `{"registry":"GHCR.io"}`},
		{Config: `{}`, Want: bad},
		{Config: `{"registry":""}`, Want: bad},
		{Config: `{"registry":"https://ghcr.io"}`, Want: bad},
		{Config: `{"registry":"ghcr.io/org"}`, Want: bad},
		{Config: `{"registry":"user@ghcr.io"}`, Want: bad},
		{Config: `{"registry":"*.io"}`, Want: bad},
		{Config: `{"registry":"ghcr..io"}`, Want: bad},
		{Config: `{"registry":"ghcr.io:"}`, Want: bad},
		{Config: `{"registry":"[::1]5000"}`, Want: bad},
		{Config: `{"registry":"["}`, Want: bad},
		{Config: `{"registry":null}`, Want: bad},
		{Config: `{"registry":"ghcr.io","auth":"x"}`, Want: []string{"config"}},
		{Config: `{"registry":"${{ kit.args.r }}"}`, Form: capability.Published},
		{Config: `{"registry":"${{ kit.args.r }}"}`, Form: capability.Effective, Want: bad},
	})
}

func TestNamesOfOneRegistryMeet(t *testing.T) {
	d := dockerauth.Definition()
	for _, spelling := range []string{"docker.io", "index.docker.io", "registry-1.docker.io", "Docker.IO"} {
		r := ct.Request(dockerauth.Type, `{"registry":"`+spelling+`"}`)
		ct.Claims(t, d, r, "registry|docker.io|config.registry")
		ct.Lines(t, d, r, "dockerAuth docker.io")
	}
	ct.Merged(t, d, capability.MergeRuntime, []capability.Contribution{
		ct.Optional(ct.From("a", dockerauth.Type, `{"registry":"index.docker.io"}`)), ct.From("b", dockerauth.Type, `{"registry":"docker.io"}`),
	}, []string{`docker-auth@1 {"registry":"index.docker.io"}`})
}

func FuzzDecode(f *testing.F) {
	ct.RoundTrip(f, dockerauth.Definition(), dockerauth.Decode, append(ct.Hostile, `{"registry":"docker.io"}`, `{"registry":"[::1]:1"}`, `{"registry":"a-b.C:65"}`)...)
}
