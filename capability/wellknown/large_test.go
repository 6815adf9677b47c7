package wellknown_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	ct "github.com/kitbox-dev/kitbox/capability/capabilitytest"
	"github.com/kitbox-dev/kitbox/capability/wellknown"
)

// large returns before, then element(0), element(1), … joined by commas, then
// after: 256 KiB in all, half of what a descriptor may be.
func large(before string, element func(i int) string, after string) string {
	var b strings.Builder
	b.WriteString(before)
	for i := 0; b.Len() < 1<<18; i++ {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(element(i))
	}
	b.WriteString(after)
	return b.String()
}

func text(i int) string { return fmt.Sprintf(`"e%d"`, i) }

// nested returns maps inside each other, each with a null beside the next, which
// is the worst case for naming the place of every fault.
func nested(depth int) string {
	return strings.Repeat(`{"n":null,"x":`, depth) + `1` + strings.Repeat(`}`, depth)
}

// TestLargeConfigs gives grammars much to compare, in shapes in which naive
// comparison is quadratic. With such a comparison this test takes minutes.
func TestLargeConfigs(t *testing.T) {
	const ns = capability.Namespace + "/"
	for name, r := range map[string]capability.Request{
		"hosts":     ct.Request(ns+"network-policy@1", large(`{"runtime":{"allow":[`, text, `]}}`)),
		"entries":   ct.Request(ns+"network-policy@2", large(`{"runtime":{"allow":[`, func(i int) string { return fmt.Sprintf(`{"hosts":["e%d"],"methods":["GET"]}`, i) }, `]}}`)),
		"faults":    ct.Request(ns+"network-policy@2", large(`{"runtime":{"allow":[`, func(int) string { return `{"hosts":[]}` }, `]}}`)),
		"signers":   ct.Request(ns+"ssh-agent@1", large(`{"phase":"runtime","unrestricted":false,"sign":[`, text, `]}`)),
		"files":     ct.Request(ns+"lifecycle@1", large(`{"files":[`, func(i int) string { return fmt.Sprintf(`{"path":"/e%d"}`, i) }, `]}`)),
		"hooks":     ct.Request(ns+"lifecycle@1", large(`{"startup":[`, func(i int) string { return `{"command":"x","background":"${{ kit.args.b }}"}` }, `]}`)),
		"variables": ct.Request(ns+"acp@1", large(`{"agent":"a","command":"x","env":{`, func(i int) string { return fmt.Sprintf(`"E%d":"x"`, i) }, `}}`)),
		"nulls":     ct.Request(ns+"credential@1", large(`{"service":"s","phase":"runtime","apiKey":{"name":"A"},"oauth":{"credentialFile":{"path":"~/c","format":"toml","structure":{"l":[`, func(int) string { return `null` }, `]}}}}`)),
		"depth":     ct.Request(ns+"credential@1", `{"service":"s","phase":"runtime","apiKey":{"name":"A"},"oauth":{"credentialFile":{"path":"~/c","format":"toml","structure":`+nested(9000)+`}}}`),
		"deep null": ct.Request(ns+"volume@1", nested(9000)),
		"phases":    ct.Request(ns+"credential@1", large(`{"service":"s","apiKey":{"name":"A"},"phase":[`, text, `]}`)),
		"size":      ct.Request(ns+"volume@1", `{"path":"/d","size":"`+strings.Repeat("9", 1<<20)+`"}`),
		"path":      ct.Request(ns+"host-mount@1", `{"path":"`+strings.Repeat("/a", 1<<19)+`/"}`),
	} {
		t.Run(name, func(t *testing.T) {
			d, ok := wellknown.Find(r.Type)
			if !ok {
				t.Fatal(r.Type)
			}
			for _, f := range []capability.Form{capability.Authored, capability.Effective} {
				d.Check(r, f)
			}
			for _, mode := range []capability.MergeMode{capability.MergeRuntime, capability.MergePublish} {
				d.Merge(mode, []capability.Contribution{{Kit: "a", Request: r}, {Kit: "b", Request: r}})
			}
		})
	}
}
