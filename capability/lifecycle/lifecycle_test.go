package lifecycle_test

import (
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	ct "github.com/kitbox-dev/kitbox/capability/capabilitytest"
	"github.com/kitbox-dev/kitbox/capability/lifecycle"
)

func TestCheck(t *testing.T) {
	ct.Check(t, lifecycle.Definition(), lifecycle.Type, []ct.Case{
		{Config: `{"install":[{"command":"x","user":"0","env":["A_1"],"description":"d"}]}`},
		{Config: `{"startup":[{"command":["sh","-c","x"],"background":true,"user":"","env":[]}]}`},
		{Config: `{"files":[{"path":"/etc/x","content":"$HOME","mode":"0644","overwrite":false}]}`},
		{Config: `{"interactive":["--ui"]}`},
		{Config: `{"interactive":[],"startup":[{"command":"x"}]}`},
		{Config: `{}`, Want: []string{"config"}},
		{Config: `{"interactive":[]}`, Want: []string{"config"}},
		{Config: `{"install":[],"startup":[],"files":[]}`, Want: []string{"config"}},
		{Config: `{"interactive":null,"startup":[{"command":"x"}]}`, Want: []string{"config.interactive"}},
		{Config: `{"install":[{}]}`, Want: []string{"config.install[0].command"}},
		{Config: `{"install":[{"command":""}],"startup":[{"command":[]},{"command":[" "]},{"command":"  "}]}`,
			Want: []string{"config.install[0].command", "config.startup[0].command", "config.startup[1].command", "config.startup[2].command"}},
		{Config: `{"install":[{"command":"x","background":true}]}`, Want: []string{"config"}},
		{Config: `{"install":[{"command":"x","env":["A=1"]}]}`, Want: []string{"config.install[0].env"}},
		{Config: `{"install":[{"command":{"run":"x"}}]}`, Want: []string{"config"}},
		{Config: `{"install":[{"command":["x",1]}]}`, Want: []string{"config"}},
		{Config: `{"install":[{"command":["x",null]}]}`, Want: []string{"config.install[0].command"}},
		{Config: `{"install":[{"command":["x","\u0000"]}]}`, Want: []string{"config.install[0].command"}},
		{Config: `{"interactive":["\u0000"]}`, Want: []string{"config.interactive"}},
		{Config: `{"files":[{"content":"y"}]}`, Want: []string{"config.files[0].path"}},
		{Config: `{"files":[{"path":"etc/x"},{"path":"/y","mode":"rw"}]}`, Want: []string{"config.files[0].path", "config.files[1].mode"}},
		{Config: `{"files":[{"path":"/x"},{"path":"/y/../x"}]}`, Want: []string{"config.files[1].path"}},
		{Config: `{"files":[{"path":"${{ kit.env.HOME }}/a","content":"x","overwrite":"${{ kit.args.o }}"}]}`},
		{Config: `{"startup":[{"command":"${{ kit.args.c }}","background":"${{ kit.args.b }}"}]}`, Form: capability.Published},
		{Config: `{"files":[{"path":"${{ kit.env.HOME }}/a"}]}`, Form: capability.Effective, Want: []string{"config.files[0].path"}},
	})
	ct.Lines(t, lifecycle.Definition(), ct.Request(lifecycle.Type, `{"interactive":["--ui"]}`))
}

func TestCommandsAreComparedAsArgv(t *testing.T) {
	c, err := lifecycle.Decode(ct.Request(lifecycle.Type, `{"install":[{"command":"a b"},{"command":["sh","-c","a b"]},{"command":["a","b"]}],"files":[{"path":"/x"},{"path":"/y","overwrite":false}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if !c.Install[0].Command.Equal(c.Install[1].Command) || c.Install[0].Command.Equal(c.Install[2].Command) {
		t.Error("text is not compared with its sh -c spelling")
	}
	if !c.Files[0].Overwrites() || c.Files[1].Overwrites() {
		t.Error("overwrite defaults to true")
	}
}

func TestInteractiveTellsEmptyFromUnstated(t *testing.T) {
	for config, want := range map[string]struct {
		n      int
		stated bool
	}{
		`{"startup":[{"command":"x"}]}`:                                  {0, false},
		`{"startup":[{"command":"${{ kit.args.c }}"}],"interactive":[]}`: {0, true},
		`{"interactive":["a","b"]}`:                                      {2, true},
		`{"interactive":1}`:                                              {0, false},
	} {
		tail, stated := lifecycle.Interactive(ct.Request(lifecycle.Type, config))
		if len(tail) != want.n || stated != want.stated {
			t.Errorf("%s: %q, %v", config, tail, stated)
		}
	}
}

func TestMerge(t *testing.T) {
	d := lifecycle.Definition()
	from := func(kit, config string) capability.Contribution { return ct.From(kit, lifecycle.Type, config) }
	both := func(want []string, cs []capability.Contribution, keys ...string) {
		t.Helper()
		ct.Merged(t, d, capability.MergePublish, cs, want, keys...)
		ct.Merged(t, d, capability.MergeRuntime, cs, want, keys...)
	}
	both([]string{`lifecycle@1 {"files":[{"content":"1","path":"/x"}],"install":[{"command":"a"},{"command":"a"}],"interactive":[],"startup":[{"command":["b"]}]}`},
		[]capability.Contribution{from("a", `{"install":[{"command":"a"}],"interactive":[]}`),
			from("b", `{"install":[{"command":"a"}],"startup":[{"command":["b"]}],"files":[{"path":"/x","content":"1"}]}`)})
	both(nil, []capability.Contribution{from("a", `{"interactive":["--ui"]}`), from("b", `{"interactive":["--ui"]}`)}, "interactive")
	both(nil, []capability.Contribution{from("a", `{"interactive":["--ui"]}`), from("b", `{"interactive":[],"install":[{"command":"x"}]}`)}, "interactive")
	both(nil, []capability.Contribution{from("a", `{"files":[{"path":"/e/x"}]}`), from("b", `{"files":[{"path":"/e/./x"}]}`)}, "/e/x")

	out, _ := d.Merge(capability.MergeRuntime, []capability.Contribution{from("a", `{"install":[{"command":"1"}]}`), from("b", `{"install":[{"command":"2"}]}`), from("c", `{"install":[{"command":"3"}]}`)})
	if len(out) != 1 || len(out[0].From) != 3 || out[0].From[2].Kit != "c" || string(out[0].From[1].Request.Config) != `{"install":[{"command":"2"}]}` {
		t.Errorf("hooks lost their Kits: %+v", out)
	}
}

func TestFilesThatWaitArePublishedApart(t *testing.T) {
	d := lifecycle.Definition()
	waits := `{"files":[{"content":"1","path":"${{ kit.env.HOME }}/x"}]}`
	hook := func(kit, c string) capability.Contribution {
		return ct.From(kit, lifecycle.Type, `{"install":[{"command":"`+c+`"}]}`)
	}
	ct.Merged(t, d, capability.MergePublish, []capability.Contribution{ct.From("a", lifecycle.Type, waits)}, []string{"apart lifecycle@1 " + waits})
	ct.Merged(t, d, capability.MergePublish,
		[]capability.Contribution{hook("a", "1"), hook("b", "2"), ct.From("c", lifecycle.Type, waits), hook("d", "3"), hook("e", "4")},
		[]string{
			`lifecycle@1 {"install":[{"command":"1"},{"command":"2"}]}`,
			"apart lifecycle@1 " + waits,
			`apart lifecycle@1 {"install":[{"command":"3"},{"command":"4"}]}`,
		})
	ct.Merged(t, d, capability.MergePublish,
		[]capability.Contribution{ct.From("a", lifecycle.Type, `{"files":[{"path":"/e/${{ kit.args.f }}"}]}`)}, nil, "/e/${{ kit.args.f }}")
}

func FuzzDecode(f *testing.F) {
	ct.RoundTrip(f, lifecycle.Definition(), lifecycle.Decode, append(ct.Hostile,
		`{"install":[{"command":["sh","-c","x"],"user":"0","env":["W"],"description":"d"}],"startup":[{"command":"y","background":true}],"files":[{"path":"/x","content":"c","mode":"0644","overwrite":false}],"interactive":[]}`,
		`{"interactive":["--ui"]}`, `{"files":[{"path":"/x","overwrite":true}],"install":[],"startup":[]}`)...)
}
