package wellknown_test

import (
	"fmt"
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	ct "github.com/kitbox-dev/kitbox/capability/capabilitytest"
	"github.com/kitbox-dev/kitbox/capability/wellknown"
)

// fortyEntries is a large but ordinary descriptor's worth of entries: the mix
// is that of published Kits.
func fortyEntries() []capability.Request {
	const ns = capability.Namespace + "/"
	rs := []capability.Request{
		ct.Request(ns+"sbx@1", ``),
		ct.Request(ns+"network-policy@2", `{"install":{"allow":["deb.debian.org","registry.npmjs.org"]},"runtime":{"allow":["api.anthropic.com:443",{"hosts":["api.github.com"],"methods":["GET","HEAD"],"paths":["/repos/**"]},"github.com"],"deny":["telemetry.example.com"]}}`),
		ct.Request(ns+"lifecycle@1", `{"install":[{"command":["sh","-c","npm install -g x"],"user":"0","env":["WORKSPACE_DIR"]}],"startup":[{"command":"chown -R agent:agent /home/agent/.claude","user":"0"}],"files":[{"path":"/home/agent/.config/settings.json","content":"{}","mode":"0644","overwrite":false}]}`),
		ct.Request(ns+"agent-context@1", `{"filename":"AGENTS.md","directory":"/home/agent/.codex","contentFile":"/usr/share/sandbox/kit/x/AGENTS.md"}`),
		ct.Request(ns+"credential@1", `{"service":"github","phase":["install","runtime"],"apiKey":{"name":"GH_TOKEN","proxyManaged":true,"inject":[{"domain":"api.github.com","header":"Authorization","format":"Bearer %s"}]}}`),
		ct.Request(ns+"agent-sessions@1", `{"prompt":["-p","{{.Prompt}}"],"resume":["--resume","{{.SessionID}}"],"continue":["--continue"],"list":["sessions"]}`),
		ct.Request(ns+"git-identity@1", ``),
		ct.Request(ns+"ssh-agent@1", `{"phase":"runtime","unrestricted":false,"sign":["git"],"authenticate":["git@github.com"]}`),
		ct.Request(ns+"resources@1", `{"cpu":4,"memory":"8g"}`),
		ct.Request(ns+"agent-skills@1", `{"path":"/home/agent/.claude/skills"}`),
	}
	for i := range 10 {
		rs = append(rs,
			ct.Request(ns+"agent-skill@1", fmt.Sprintf(`{"path":"/usr/share/skills/skill-%d"}`, i)),
			ct.Request(ns+"volume@1", fmt.Sprintf(`{"path":"/home/agent/cache-%d","size":"2g"}`, i)),
			ct.Request(ns+"port@1", fmt.Sprintf(`{"container":%d}`, 3000+i)))
	}
	return rs
}

func BenchmarkInspect40Entries(b *testing.B) {
	rs := fortyEntries()
	b.ReportAllocs()
	for b.Loop() {
		var in capability.Inspection
		for _, r := range rs {
			d, ok := wellknown.Find(r.Type)
			if !ok {
				b.Fatal(r.Type)
			}
			d.Inspect(r, capability.Published, &in)
		}
		if len(in.Problems) > 0 {
			b.Fatal(in.Problems)
		}
	}
}

// BenchmarkMerge50Kits merges what fifty Kits of twenty entries ask, half of it
// the same in every Kit.
func BenchmarkMerge50Kits(b *testing.B) {
	const ns = capability.Namespace + "/"
	byType := map[string][]capability.Contribution{}
	for k := range 50 {
		kit := fmt.Sprintf("kit%d", k)
		add := func(typ, config string) {
			byType[typ] = append(byType[typ], ct.From(kit, ns+typ, config))
		}
		add("network-policy@2", fmt.Sprintf(`{"runtime":{"allow":["api.example.com","host%d.example.com",{"hosts":["b%d.example.com"],"methods":["GET"]}]}}`, k, k))
		add("lifecycle@1", fmt.Sprintf(`{"install":[{"command":"x"}],"files":[{"path":"/etc/k%d","content":"x"}]}`, k))
		add("credential@1", fmt.Sprintf(`{"service":"s%d","phase":["install","runtime"],"apiKey":{"name":"A"}}`, k))
		add("ssh-agent@1", fmt.Sprintf(`{"phase":"runtime","unrestricted":false,"sign":["git"],"authenticate":["h%d.example"]}`, k))
		for i := range 8 {
			add("volume@1", fmt.Sprintf(`{"path":"/shared/%d","size":"2g"}`, i))
			add("agent-skill@1", fmt.Sprintf(`{"path":"/opt/k%d/s%d-%d"}`, k, k, i))
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		for typ, cs := range byType {
			d, _ := wellknown.Find(ns + typ)
			if _, conflicts := d.Merge(capability.MergeRuntime, cs); len(conflicts) > 0 {
				b.Fatal(conflicts)
			}
		}
	}
}
