package resources_test

import (
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	ct "github.com/kitbox-dev/kitbox/capability/capabilitytest"
	"github.com/kitbox-dev/kitbox/capability/resources"
)

func TestCheck(t *testing.T) {
	ct.Check(t, resources.Definition(), resources.Type, []ct.Case{
		{Config: `{}`},
		{Config: `{"cpu":0,"memory":"8g","gpu":"1"}`},
		{Config: `{"cpu":0.5,"memory":"","gpu":""}`},
		{Config: `{"cpu":-0.5,"memory":"lots"}`, Want: []string{"config.cpu", "config.memory"}},
		{Config: `{"cpu":"4"}`, Want: []string{"config"}},
		{Config: `{"cpu":1e999}`, Want: []string{"config"}},
		{Config: `{"memory":1024}`, Want: []string{"config"}},
		{Config: `{"gpu":1}`, Want: []string{"config"}},
		{Config: `{"cpu":null}`, Want: []string{"config.cpu"}},
		{Config: `{"cpu":"${{ kit.args.c }}","memory":"${{ kit.args.m }}g"}`},
		{Config: `{"cpu":"${{ kit.args.c }}"}`, Form: capability.Effective, Want: []string{"config"}},
	})
	ct.Lines(t, resources.Definition(), ct.Request(resources.Type, `{"cpu":9}`))
}

func TestMerge(t *testing.T) {
	d := resources.Definition()
	from := func(kit, config string) capability.Contribution { return ct.From(kit, resources.Type, config) }
	two := func(a, b string) []capability.Contribution {
		return []capability.Contribution{from("a", a), from("b", b)}
	}

	ct.Merged(t, d, capability.MergePublish, two(`{"cpu":2,"memory":"1g"}`, `{"memory":"1024m","cpu":2.0}`), []string{`resources@1 {"cpu":2,"memory":"1g"}`})
	ct.Merged(t, d, capability.MergePublish, two(`{"cpu":2}`, `{"cpu":3}`), nil, "resources")
	ct.Merged(t, d, capability.MergePublish, two(`{"cpu":2}`, `{}`), nil, "resources")
	ct.Merged(t, d, capability.MergePublish, two(`{"cpu":"${{ kit.args.c }}"}`, `{"cpu":"${{ kit.args.c }}"}`), []string{`resources@1 {"cpu":"${{ kit.args.c }}"}`})

	ct.Merged(t, d, capability.MergeRuntime, two(`{"cpu":2,"memory":"1g"}`, `{"cpu":1,"memory":"1025m","gpu":"1"}`), []string{`resources@1 {"cpu":2,"gpu":"1","memory":"1025m"}`})
	ct.Merged(t, d, capability.MergeRuntime, two(`{"cpu":2,"gpu":"9"}`, `{"cpu":1,"gpu":"10"}`), []string{`resources@1 {"cpu":2,"gpu":"10"}`})
	ct.Merged(t, d, capability.MergeRuntime, two(`{"gpu":"all"}`, `{"gpu":"nvidia"}`), []string{`resources@1 {"gpu":"all"}`})
	ct.Merged(t, d, capability.MergeRuntime, two(`{"gpu":"amd"}`, `{"gpu":"nvidia"}`), nil, "gpu")
}

func FuzzDecode(f *testing.F) {
	ct.RoundTrip(f, resources.Definition(), resources.Decode, append(ct.Hostile, `{"cpu":4.0,"memory":"8g","gpu":"all"}`, `{"cpu":-0}`, `{"cpu":1e-300}`)...)
}
