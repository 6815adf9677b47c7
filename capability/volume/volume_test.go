package volume_test

import (
	"fmt"
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	ct "github.com/kitbox-dev/kitbox/capability/capabilitytest"
	"github.com/kitbox-dev/kitbox/capability/volume"
)

func ExampleDecode() {
	c, err := volume.Decode(capability.Request{
		Type:   volume.Type,
		Config: []byte(`{"path":"/home/agent/.cache/","size":"1.5g"}`),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	bytes, _ := c.Bytes()
	fmt.Println(c.Dir(), bytes)

	_, err = volume.Decode(capability.Request{Type: volume.Type, Config: []byte(`{"path":"cache","mode":"999"}`)})
	fmt.Println(err)
	// Output:
	// /home/agent/.cache 1610612736
	// capability com.docker.sandbox/volume@1: config.path: must be an absolute path; config.mode: must be three or four octal digits, such as 755 or 0755
}

func TestCheck(t *testing.T) {
	ct.Check(t, volume.Definition(), volume.Type, []ct.Case{
		{Config: `{"path":"/d"}`},
		{Config: `{"path":"/d","size":"","mode":"","tmpfs":false}`},
		{Config: `{"path":"/d/./e/","size":"2TB","mode":"1777","tmpfs":true}`},
		{Config: `{"path":"/d","mode":"000"}`},
		{Config: ``, Want: []string{"config"}},
		{Config: `null`, Want: []string{"config"}},
		{Config: `{}`, Want: []string{"config.path"}},
		{Config: `{"path":"d"}`, Want: []string{"config.path"}},
		{Config: `{"path":"/d/.."}`, Want: []string{"config.path"}},
		{Config: `{"path":"/d\u0000"}`, Want: []string{"config.path"}},
		{Config: `{"path":"/d","size":"2x","mode":"999"}`, Want: []string{"config.size", "config.mode"}},
		{Config: `{"path":"/d","mode":"75"}`, Want: []string{"config.mode"}},
		{Config: `{"path":"/d","mode":755}`, Want: []string{"config"}},
		{Config: `{"path":"/d","size":null}`, Want: []string{"config.size"}},
		{Config: `{"path":"/d","Mode":"755"}`, Want: []string{"config"}},
		// A reference waits; what stands beside it does not.
		{Config: `{"path":"/d","size":"${{ kit.args.s }}","tmpfs":"${{ kit.args.t }}"}`},
		{Config: `{"path":"${{ kit.env.HOME }}/d","mode":"9"}`, Want: []string{"config.mode"}},
		{Config: `{"path":"/d","size":"${{ kit.args.s }}"}`, Form: capability.Effective, Want: []string{"config.size"}},
		{Config: `{"path":"/d","tmpfs":"${{ kit.args.t }}"}`, Form: capability.Effective, Want: []string{"config"}},
	})
}

func TestPathIsTheIdentity(t *testing.T) {
	d := volume.Definition()
	r := ct.Request(volume.Type, `{"path":"/d/./a/","size":"${{ kit.args.s }}"}`)
	ct.Claims(t, d, r, "mount path|/d/a|config.path")
	ct.Lines(t, d, r, "storagePaths /d/a")
	ct.Claims(t, d, ct.Request(volume.Type, `{"path":"/d/${{ kit.args.s }}"}`))
	ct.Claims(t, d, ct.Request(volume.Type, `{"path":"d"}`))
	ct.Lines(t, d, ct.Request(volume.Type, `{"path":"d"}`), "storagePaths d")
	ct.Lines(t, d, ct.Request(volume.Type, `{"path":"/d","bad":1}`))
}

func TestMerge(t *testing.T) {
	for _, tt := range []struct {
		a, b   string
		differ bool
	}{
		{`{"path":"/c"}`, `{"path":"/c/"}`, false},
		{`{"path":"/c","size":"1g"}`, `{"path":"/x/../c","size":"1024m"}`, false},
		{`{"path":"/c","size":"1.5g"}`, `{"path":"/c","size":"1536MiB"}`, false},
		{`{"path":"/c","size":"010k"}`, `{"path":"/c","size":"10240"}`, false},
		{`{"path":"/c","mode":"755"}`, `{"path":"/c","mode":"0755"}`, false},
		{`{"path":"/c","size":""}`, `{"path":"/c","tmpfs":false}`, false},
		{`{"path":"/c","size":"1g"}`, `{"path":"/c","size":"1025m"}`, true},
		{`{"path":"/c","mode":"0755"}`, `{"path":"/c","mode":"0700"}`, true},
		{`{"path":"/c","mode":"000"}`, `{"path":"/c"}`, true},
		{`{"path":"/c","size":"0"}`, `{"path":"/c"}`, true},
		{`{"path":"/c","tmpfs":true}`, `{"path":"/c"}`, true},
	} {
		for _, mode := range []capability.MergeMode{capability.MergeRuntime, capability.MergePublish} {
			cs := []capability.Contribution{ct.Optional(ct.From("a", volume.Type, tt.a)), ct.From("b", volume.Type, tt.b)}
			if tt.differ {
				ct.Merged(t, volume.Definition(), mode, cs, nil, "/c")
			} else {
				ct.Merged(t, volume.Definition(), mode, cs, []string{"volume@1 " + tt.a})
			}
		}
	}
}

func TestSettings(t *testing.T) {
	c, err := volume.Decode(ct.Request(volume.Type, `{"path":"/c/","size":"1k","mode":"0700"}`))
	if err != nil {
		t.Fatal(err)
	}
	bytes, sized := c.Bytes()
	bits, moded := c.Perm()
	if bytes != 1024 || !sized || bits != 0o700 || !moded {
		t.Errorf("%d, %v; %o, %v", bytes, sized, bits, moded)
	}
	if _, ok := (volume.Config{Path: "/c"}).Bytes(); ok {
		t.Error("an unstated size is stated")
	}
	if d := (volume.Config{Path: "/c", Size: "1024", Mode: "700"}); !c.Equivalent(d) {
		t.Errorf("differs in %s", c.Difference(d))
	}
	if c.Equivalent(volume.Config{Path: "/d", Size: "1k", Mode: "0700"}) {
		t.Error("another path is the same storage")
	}
}

func TestMergedVolumeNamesBothKits(t *testing.T) {
	out, _ := volume.Definition().Merge(capability.MergeRuntime, []capability.Contribution{
		ct.From("a", volume.Type, `{"path":"/c"}`), ct.From("b", volume.Type, `{"path":"/other"}`), ct.From("c", volume.Type, `{"path":"/c"}`),
	})
	if len(out) != 2 || len(out[0].From) != 2 || out[0].From[0].Kit != "a" || out[0].From[1].Kit != "c" || out[1].From != nil {
		t.Errorf("merged: %+v", out)
	}
}

func TestOpenVolumeIsPublishedApart(t *testing.T) {
	cs := []capability.Contribution{
		ct.From("a", volume.Type, `{"path":"/c","size":"${{ kit.args.s }}"}`),
		ct.From("b", volume.Type, `{"path":"/c","size":"1g"}`),
	}
	ct.Merged(t, volume.Definition(), capability.MergePublish, cs, []string{
		`apart volume@1 {"path":"/c","size":"${{ kit.args.s }}"}`, `volume@1 {"path":"/c","size":"1g"}`,
	})
}

func FuzzDecode(f *testing.F) {
	ct.RoundTrip(f, volume.Definition(), volume.Decode, append(ct.Hostile,
		`{"path":"/d"}`, `{"path":"/d","size":"1.5g","tmpfs":true,"mode":"0755"}`, `{"path":"/d/../e","size":"","mode":""}`)...)
}
