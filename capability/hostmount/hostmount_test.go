package hostmount_test

import (
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	ct "github.com/kitbox-dev/kitbox/capability/capabilitytest"
	"github.com/kitbox-dev/kitbox/capability/hostmount"
)

func TestCheck(t *testing.T) {
	ct.Check(t, hostmount.Definition(), hostmount.Type, []ct.Case{
		{Config: `{"path":"/cache"}`},
		{Config: `{"path":"/cache","mode":"1777"}`},
		{Config: `{}`, Want: []string{"config.path"}},
		{Config: `{"path":"/"}`, Want: []string{"config.path"}},
		{Config: `{"path":"/a/"}`, Want: []string{"config.path"}},
		{Config: `{"path":"/a//b"}`, Want: []string{"config.path"}},
		{Config: `{"path":"/a/../b"}`, Want: []string{"config.path"}},
		{Config: `{"path":"/a/./b"}`, Want: []string{"config.path"}},
		{Config: `{"path":"a"}`, Want: []string{"config.path"}},
		{Config: `{"path":"/a\u0000"}`, Want: []string{"config.path"}},
		{Config: `{"path":"/cache","mode":""}`, Want: []string{"config.mode"}},
		{Config: `{"path":"/cache","mode":"8"}`, Want: []string{"config.mode"}},
		{Config: `{"path":"/cache","mode":755}`, Want: []string{"config"}},
		{Config: `{"path":"/cache","mode":null}`, Want: []string{"config.mode"}},
		{Config: `{"path":"/cache","hostPath":"/etc"}`, Want: []string{"config"}},
		{Config: `{"path":"${{ kit.env.HOME }}/.cache","mode":""}`, Want: []string{"config.mode"}},
		{Config: `{"path":"/cache","mode":"${{ kit.args.m }}"}`, Form: capability.Published},
	})
}

func TestOneKitOwnsAPath(t *testing.T) {
	d := hostmount.Definition()
	ct.Claims(t, d, ct.Request(hostmount.Type, `{"path":"/h"}`), "mount path|/h|config.path")
	ct.Lines(t, d, ct.Request(hostmount.Type, `{"path":"/h"}`), "hostMountPaths /h")
	ct.Claims(t, d, ct.Request(hostmount.Type, `{"path":"/h/"}`))
	for _, mode := range []capability.MergeMode{capability.MergeRuntime, capability.MergePublish} {
		ct.Merged(t, d, mode, []capability.Contribution{ct.From("a", hostmount.Type, `{"path":"/h"}`), ct.From("b", hostmount.Type, `{"path":"/h"}`)}, nil, "/h")
		ct.Merged(t, d, mode, []capability.Contribution{ct.From("a", hostmount.Type, `{"path":"/h"}`), ct.From("b", hostmount.Type, `{"path":"/i"}`)},
			[]string{`host-mount@1 {"path":"/h"}`, `host-mount@1 {"path":"/i"}`})
		ct.Merged(t, d, mode, []capability.Contribution{ct.From("a", hostmount.Type, `{"path":"/h","mode":"${{ kit.args.m }}"}`), ct.From("b", hostmount.Type, `{"path":"/h"}`)}, nil, "/h")
	}
}

func TestPerm(t *testing.T) {
	for config, want := range map[string]struct {
		bits   uint32
		stated bool
	}{`{"path":"/h"}`: {0, false}, `{"path":"/h","mode":"000"}`: {0, true}, `{"path":"/h","mode":"1777"}`: {0o1777, true}} {
		c, err := hostmount.Decode(ct.Request(hostmount.Type, config))
		if bits, stated := c.Perm(); err != nil || bits != want.bits || stated != want.stated {
			t.Errorf("%s: %o, %v, %v", config, bits, stated, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	ct.RoundTrip(f, hostmount.Definition(), hostmount.Decode, append(ct.Hostile, `{"path":"/h"}`, `{"path":"/h/i","mode":"0755"}`)...)
}
