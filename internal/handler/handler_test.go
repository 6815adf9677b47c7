package handler_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/handler"
	"github.com/kitbox-dev/kitbox/internal/handler/builtin"
	"github.com/kitbox-dev/kitbox/internal/handler/volume"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// storage is a host whose volumes are what the map says.
type storage map[string]plan.Volume

func (storage) Place(name, path string, bounded bool) string {
	if bounded {
		return "/home/volumes/" + name + path + ".img"
	}
	return "/home/volumes/" + name + path
}

func (storage) Bound() error { return fmt.Errorf("no loops here: %w", kiterr.ErrUnsupported) }

// boundedStorage can make filesystems in files.
type boundedStorage struct{ storage }

func (boundedStorage) Bound() error { return nil }

func (s storage) Retained(name, path string) (plan.Volume, bool, error) {
	v, ok := s[name+path]
	return v, ok, nil
}

func ask(kit, typ, config string) capability.Contribution {
	c := capability.Contribution{Kit: kit, Request: capability.Request{Type: capability.Namespace + "/" + typ}}
	if config != "" {
		c.Request.Config = []byte(config)
	}
	return c
}

func merged(parts ...capability.Contribution) capability.Contribution {
	c := parts[0]
	c.From = parts
	return c
}

func scene() *handler.Scene {
	return &handler.Scene{Name: "t", ID: "id-1", Image: handler.Image{User: "agent", Dir: "/home/agent/workspace",
		Identity: plan.Identity{Name: "agent", UID: 1000, GID: 1000, Home: "/home/agent"}}}
}

func TestATypeThatNobodyHandlesIsRefusedByName(t *testing.T) {
	l := builtin.Handlers(builtin.Host{Storage: storage{}})
	for _, typ := range []string{"usb-device@1", "network-policy@3", "volume@2"} {
		err := l.Accept(context.Background(), scene(), ask("k", typ, "{}"))
		var refused *capability.RefusedError
		if !errors.As(err, &refused) || !errors.Is(err, kiterr.ErrRefused) || refused.Type != capability.Namespace+"/"+typ || refused.Kit != "k" {
			t.Errorf("Accept(%s) = %v", typ, err)
		}
		if err := l.Plan(context.Background(), scene(), []capability.Contribution{ask("k", typ, "{}")}, new(plan.Plan)); err == nil {
			t.Errorf("Plan left %s out without a word", typ)
		}
	}
}

func TestEveryHandlerDeclinesWhatDoesNotDecode(t *testing.T) {
	for _, c := range []capability.Contribution{
		ask("k", "network-policy@1", `{"runtime":{"alow":["a"]}}`),
		ask("k", "lifecycle@1", `{}`),
		ask("k", "volume@1", `{"path":"rel"}`),
		ask("k", "sbx@1", `{}`),
	} {
		if err := builtin.Handlers(builtin.Host{Storage: storage{}}).Accept(context.Background(), scene(), c); err == nil {
			t.Errorf("accepted %s %s", c.Request.Type, c.Request.Config)
		}
	}
}

func TestRulesKeepWhoAskedForThem(t *testing.T) {
	l := builtin.Handlers(builtin.Host{Storage: storage{}})
	var p plan.Plan
	c := merged(ask("a", "network-policy@1", `{"install":{"allow":["i.example"]},"runtime":{"allow":["*.x"],"deny":["t.x"]}}`),
		ask("b", "network-policy@1", `{"runtime":{"allow":["*.x"]}}`))
	if err := l.Plan(context.Background(), scene(), []capability.Contribution{c}, &p); err != nil {
		t.Fatal(err)
	}
	want := []plan.EgressRule{
		{Phase: plan.Install, Pattern: "i.example", Allow: true, Source: "kit a"},
		{Phase: plan.Runtime, Pattern: "*.x", Allow: true, Source: "kit a"},
		{Phase: plan.Runtime, Pattern: "t.x", Source: "kit a"},
		{Phase: plan.Runtime, Pattern: "*.x", Allow: true, Source: "kit b"},
	}
	if len(p.Egress.Rules) != len(want) {
		t.Fatalf("rules: %+v", p.Egress.Rules)
	}
	for i := range want {
		if !reflect.DeepEqual(p.Egress.Rules[i], want[i]) {
			t.Errorf("rule %d = %+v, want %+v", i, p.Egress.Rules[i], want[i])
		}
	}
}

func TestBoundsTravelIntoTheRules(t *testing.T) {
	l := builtin.Handlers(builtin.Host{Storage: storage{}, Rule: egress.CheckRule})
	good := ask("a", "network-policy@2", `{"runtime":{"allow":["i.example",{"hosts":["a.example","b.example:443"],"methods":["GET"],"paths":["/x/**"]}],"deny":[{"hosts":["*.example"],"methods":["ANY"],"paths":["/admin"]}]}}`)
	if err := l.Accept(context.Background(), scene(), good); err != nil {
		t.Fatal(err)
	}
	var p plan.Plan
	if err := l.Plan(context.Background(), scene(), []capability.Contribution{good}, &p); err != nil {
		t.Fatal(err)
	}
	get, admin := []string{"GET"}, []string{"/admin"}
	want := []plan.EgressRule{
		{Phase: plan.Runtime, Pattern: "i.example", Allow: true, Source: "kit a"},
		{Phase: plan.Runtime, Pattern: "a.example", Allow: true, Source: "kit a", Methods: get, Paths: []string{"/x/**"}},
		{Phase: plan.Runtime, Pattern: "b.example:443", Allow: true, Source: "kit a", Methods: get, Paths: []string{"/x/**"}},
		{Phase: plan.Runtime, Pattern: "*.example", Source: "kit a", Methods: []string{"ANY"}, Paths: admin},
	}
	if !reflect.DeepEqual(p.Egress.Rules, want) {
		t.Errorf("rules %+v", p.Egress.Rules)
	}
	bad := ask("a", "network-policy@2", `{"runtime":{"allow":[{"hosts":["a.example"],"methods":["GET"],"paths":["/a/../b"]}]}}`)
	if err := l.Accept(context.Background(), scene(), bad); !errors.Is(err, kiterr.ErrRefused) {
		t.Errorf("a path that no request can have: %v", err)
	}
}

func TestAPatternThatTheBoundaryCannotMatchIsDeclined(t *testing.T) {
	l := builtin.Handlers(builtin.Host{Storage: storage{}, Rule: func(r plan.EgressRule) error {
		if strings.Contains(r.Pattern, "[") {
			return errors.New("no")
		}
		return nil
	}})
	if err := l.Accept(context.Background(), scene(), ask("k", "network-policy@1", `{"runtime":{"allow":["a[b"]}}`)); !errors.Is(err, kiterr.ErrRefused) {
		t.Errorf("Accept = %v", err)
	}
}

func TestHooksStandInCompositionOrderWithTheirOwnIndex(t *testing.T) {
	l := builtin.Handlers(builtin.Host{Storage: storage{}})
	var p plan.Plan
	c := merged(
		ask("first", "lifecycle@1", `{"install":[{"command":"one"},{"command":["two","2"],"user":"7","env":["A"]}],"interactive":[]}`),
		ask("second", "lifecycle@1", `{"install":[{"command":"three"}],"startup":[{"command":"s","background":true}],
			"files":[{"path":"/a/../b","content":"x","mode":"0600","overwrite":false},{"path":"/c"}]}`))
	if err := l.Plan(context.Background(), scene(), []capability.Contribution{c}, &p); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, h := range p.Hooks {
		got = append(got, h.Kit+" "+string(h.Phase)+" "+strings.Join(h.Argv, " ")+" "+h.User)
	}
	want := "first install sh -c one |first install two 2 7|second install sh -c three |second runtime sh -c s "
	if s := strings.Join(got, "|"); s != want {
		t.Errorf("hooks:\n%s\nwant\n%s", s, want)
	}
	if h := p.Hooks; h[0].Index != 0 || h[1].Index != 1 || h[2].Index != 0 || !h[3].Background || h[1].Env[0] != "A" {
		t.Errorf("hooks: %+v", h)
	}
	if len(p.Files) != 2 || p.Files[0] != (plan.File{Kit: "second", Path: "/b", Content: "x", Mode: 0o600}) ||
		p.Files[1] != (plan.File{Kit: "second", Path: "/c", Overwrite: true}) {
		t.Errorf("files: %+v", p.Files)
	}
	if !p.Launch.InteractiveStated || len(p.Launch.Interactive) != 0 {
		t.Errorf("a stated empty tail got lost: %+v", p.Launch)
	}
}

func TestVolumesAreMountedForTheImagesUser(t *testing.T) {
	l := builtin.Handlers(builtin.Host{Storage: storage{}})
	var p plan.Plan
	err := l.Plan(context.Background(), scene(), []capability.Contribution{
		merged(ask("a", "volume@1", `{"path":"/data/","size":"1g","mode":"0700"}`), ask("b", "volume@1", `{"path":"/data","size":"1024m","mode":"700"}`)),
		ask("a", "volume@1", `{"path":"/run/x","tmpfs":true,"size":"16m"}`),
	}, &p)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Machine.Mounts) != 2 || len(p.Volumes) != 2 {
		t.Fatalf("%+v", p)
	}
	m := p.Machine.Mounts[0]
	if m.Kind != plan.MountBind || m.Path != "/data" || m.Source != "/home/volumes/t/data" || m.UID != 1000 || m.GID != 1000 || m.Mode != 0o700 || m.Owner != nil {
		t.Errorf("block mount: %+v", m)
	}
	if v := p.Volumes[0]; strings.Join(v.Kits, ",") != "a,b" || v.Note != "the size is advisory: no loops here" || v.Bounded || *v.SizeBytes != 1<<30 || *v.Mode != 0o700 {
		t.Errorf("block volume: %+v", v)
	}
	m = p.Machine.Mounts[1]
	if m.Kind != plan.MountTmpfs || m.SizeBytes != 16<<20 || m.UID != 1000 || m.Mode != 0o755 || p.Volumes[1].Note != "" {
		t.Errorf("tmpfs: %+v %+v", m, p.Volumes[1])
	}
}

// A size is a bound where the host can make it one, and storage that is kept
// stays what it is.
func TestASizeBoundsStorageWhereItCan(t *testing.T) {
	size := int64(1 << 20)
	kept := storage{"t/dir": {Path: "/dir", SizeBytes: &size}, "t/img": {Path: "/img", SizeBytes: &size, Bounded: true}}
	for _, c := range []struct {
		host    volume.Storage
		config  string
		kind    plan.MountKind
		source  string
		note    string
		refused bool
	}{
		{boundedStorage{}, `{"path":"/a","size":"1m"}`, plan.MountImage, "/home/volumes/t/a.img", "", false},
		{boundedStorage{}, `{"path":"/a"}`, plan.MountBind, "/home/volumes/t/a", "", false},
		{boundedStorage{kept}, `{"path":"/dir","size":"1m"}`, plan.MountBind, "/home/volumes/t/dir", "advisory", false},
		{boundedStorage{kept}, `{"path":"/img","size":"1m"}`, plan.MountImage, "/home/volumes/t/img.img", "", false},
		{kept, `{"path":"/img","size":"1m"}`, "", "", "", true},
	} {
		var p plan.Plan
		err := builtin.Handlers(builtin.Host{Storage: c.host}).Plan(context.Background(), scene(), []capability.Contribution{ask("k", "volume@1", c.config)}, &p)
		if c.refused {
			if !errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), "no loops here") {
				t.Errorf("%s: %v", c.config, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.config, err)
			continue
		}
		m, v := p.Machine.Mounts[0], p.Volumes[0]
		if m.Kind != c.kind || m.Source != c.source || v.Source != c.source || v.Bounded != (c.kind == plan.MountImage) || !strings.Contains(v.Note, c.note) || (c.note == "") != (v.Note == "") {
			t.Errorf("%s: %+v %+v", c.config, m, v)
		}
	}
}

func TestRetainedStorageOnOtherTermsRefusesTheCreation(t *testing.T) {
	size, mode := int64(1<<30), uint32(0o755)
	l := builtin.Handlers(builtin.Host{Storage: storage{"t/data": {Path: "/data", SizeBytes: &size, Mode: &mode}}})
	for config, want := range map[string]string{
		`{"path":"/data","size":"1g","mode":"755"}`:              "",
		`{"path":"/data","size":"1024m","mode":"0755"}`:          "",
		`{"path":"/data","size":"2g","mode":"755"}`:              "size",
		`{"path":"/data","mode":"755"}`:                          "size",
		`{"path":"/data","size":"1g","mode":"700"}`:              "mode",
		`{"path":"/data","size":"1g"}`:                           "mode",
		`{"path":"/data","size":"1g","mode":"755","tmpfs":true}`: "tmpfs",
		`{"path":"/other","size":"2g"}`:                          "",
	} {
		var p plan.Plan
		err := l.Plan(context.Background(), scene(), []capability.Contribution{ask("k", "volume@1", config)}, &p)
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", config, err)
		case want != "" && (!errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "/data")):
			t.Errorf("%s: %v, want a refusal that names /data and %s", config, err, want)
		case want != "" && len(p.Machine.Mounts) > 0:
			t.Errorf("%s: planned all the same", config)
		}
	}
}

func TestStorageOverTheMachinesOwnTreesIsDeclined(t *testing.T) {
	l := builtin.Handlers(builtin.Host{Storage: storage{}})
	for path, ok := range map[string]bool{"/proc": false, "/proc/sys": false, "/dev/x": false, "/sys": false, "/process": true, "/srv/proc": true} {
		err := l.Accept(context.Background(), scene(), ask("k", "volume@1", `{"path":"`+path+`"}`))
		if (err == nil) != ok {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestSbxOwnsFourVariablesAndTheWorkspace(t *testing.T) {
	l := builtin.Handlers(builtin.Host{Storage: storage{}})
	p := plan.Plan{Launch: plan.Launch{Dir: "/", Env: []string{"A=1", "SANDBOX_NAME=forged", "IS_SANDBOX=0"}}}
	s := scene()
	if err := l.Plan(context.Background(), s, []capability.Contribution{ask("w", "sbx@1", "")}, &p); err != nil {
		t.Fatal(err)
	}
	want := "A=1 IS_SANDBOX=1 SANDBOX_ID=id-1 SANDBOX_NAME=t WORKSPACE_DIR=/home/agent/workspace"
	if got := strings.Join(p.Launch.Env, " "); got != want {
		t.Errorf("env %s\nwant %s", got, want)
	}
	if !p.Launch.Bash || p.Launch.Dir != "/home/agent/workspace" || len(p.Launch.Owned) != 4 {
		t.Errorf("launch %+v", p.Launch)
	}
}

func TestSbxDeclinesAnImageThatDoesNotKeepItsHalf(t *testing.T) {
	l := builtin.Handlers(builtin.Host{Storage: storage{}})
	for what, spoil := range map[string]func(*handler.Image){
		"no user":      func(i *handler.Image) { i.User = "" },
		"unknown user": func(i *handler.Image) { i.IdentityErr = errors.New("user x is not in /etc/passwd") },
		"no bash": func(i *handler.Image) {
			i.Executable = func(path string) error {
				if path == "/bin/bash" {
					return errors.New("/bin/bash is missing")
				}
				return nil
			}
		},
		"": func(i *handler.Image) { i.Executable = func(string) error { return nil } },
	} {
		s := scene()
		spoil(&s.Image)
		err := l.Accept(context.Background(), s, ask("w", "sbx@1", ""))
		if (err == nil) != (what == "") || err != nil && !errors.Is(err, kiterr.ErrRefused) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
