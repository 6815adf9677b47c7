package handler_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/internal/gpu"
	"github.com/kitbox-dev/kitbox/internal/handler/builtin"
	"github.com/kitbox-dev/kitbox/internal/handler/resources"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

func TestResourcesThatTheHostLacksAreRefused(t *testing.T) {
	host := resources.Host{CPUMillis: 2000, MemoryBytes: 4 << 30}
	held := builtin.Handlers(builtin.Host{Storage: storage{}, Resources: host})
	host.Unenforced = func(l plan.Limits) []string {
		if l.MemoryBytes > 0 {
			return []string{"memory: no cgroup controller is delegated"}
		}
		return nil
	}
	host.GPUs = func() gpu.Found { return gpu.Found{GPUs: []gpu.GPU{{Name: "g0"}}} }
	unheld := builtin.Handlers(builtin.Host{Storage: storage{}, Resources: host})
	for _, c := range []struct {
		config string
		l      string
		limits plan.Limits
		want   string
	}{
		{`{"cpu":2,"memory":"4g"}`, "held", plan.Limits{}, ""},
		{`{"cpu":2.5}`, "held", plan.Limits{}, "2.5 cores and this machine has 2 cores"},
		{`{"cpu":2.5}`, "held", plan.Limits{CPUMillis: 1000}, ""},
		{`{"memory":"5g"}`, "held", plan.Limits{}, "--memory"},
		{`{"memory":"5g"}`, "held", plan.Limits{MemoryBytes: 1 << 30}, ""},
		{`{"memory":"1k"}`, "held", plan.Limits{}, "at least"},
		{`{"gpu":"all"}`, "held", plan.Limits{}, "GPU all"},
		{`{"gpu":"all"}`, "unheld", plan.Limits{}, ""},
		{`{"gpu":"2"}`, "unheld", plan.Limits{}, "this machine has 1"},
		{`{"gpu":"some"}`, "unheld", plan.Limits{}, "no some"},
		{`{"gpu":"0"}`, "unheld", plan.Limits{}, "a count such as 1"},
		{`{"memory":"1g"}`, "unheld", plan.Limits{}, "no cgroup controller is delegated; 'kitbox doctor' says"},
		{`{"cpu":1}`, "unheld", plan.Limits{}, ""},
	} {
		l, s := held, scene()
		if c.l == "unheld" {
			l = unheld
		}
		s.Limits = c.limits
		err := l.Accept(context.Background(), s, ask("k", "resources@1", c.config))
		switch {
		case c.want == "":
			if err != nil {
				t.Errorf("%s %s: %v", c.l, c.config, err)
			}
		case !errors.Is(err, kiterr.ErrRefused) || !strings.Contains(err.Error(), c.want):
			t.Errorf("%s %s: %v, want %q", c.l, c.config, err, c.want)
		}
	}
}

func TestResourcesBecomeLimitsUnlessTheOperatorSetsThem(t *testing.T) {
	l := builtin.Handlers(builtin.Host{Storage: storage{}})
	optional := ask("b", "resources@1", `{"memory":"1g"}`)
	optional.Request.Optional = true
	for _, c := range []struct {
		part     capability.Contribution
		operator plan.Limits
		want     plan.Limits
		bounds   int
	}{
		{ask("a", "resources@1", `{"cpu":0.001,"memory":"1g"}`), plan.Limits{}, plan.Limits{CPUMillis: 10, MemoryBytes: 1 << 30, Enforce: true}, 2},
		{ask("a", "resources@1", `{"cpu":0}`), plan.Limits{}, plan.Limits{Enforce: true}, 0},
		{optional, plan.Limits{}, plan.Limits{MemoryBytes: 1 << 30}, 1},
		{optional, plan.Limits{MemoryBytes: 5, Pids: 7}, plan.Limits{MemoryBytes: 5, Pids: 7}, 1},
	} {
		var p plan.Plan
		p.Machine.Limits = c.operator
		s := scene()
		s.Limits = c.operator
		if err := l.Plan(context.Background(), s, []capability.Contribution{c.part}, &p); err != nil {
			t.Fatal(err)
		}
		if p.Machine.Limits != c.want || len(p.Bounds) != c.bounds {
			t.Errorf("%s: %+v %+v, want %+v", c.part.Request.Config, p.Machine.Limits, p.Bounds, c.want)
		}
	}
}

func TestGPUsBecomeDevicesOfTheMachine(t *testing.T) {
	ctl := plan.Device{Source: "/dev/gpuctl", Path: "/dev/gpuctl"}
	lib := plan.Mount{Kind: plan.MountBind, Source: "/usr/lib/gpu", Path: "/opt/gpu", ReadOnly: true}
	one := func(n string) gpu.GPU {
		return gpu.GPU{Name: "g" + n, Devices: []plan.Device{ctl, {Source: "/dev/g" + n, Path: "/dev/g" + n}}, Mounts: []plan.Mount{lib},
			Env: []string{"GPU=all", "WORKSPACE_DIR=/elsewhere"}, Notes: []string{"note " + n}}
	}
	found := gpu.Found{GPUs: []gpu.GPU{one("0"), one("1")}}
	l := builtin.Handlers(builtin.Host{Storage: storage{}, Resources: resources.Host{GPUs: func() gpu.Found { return found }}})
	made := func(cs ...capability.Contribution) (*plan.Plan, error) {
		p := new(plan.Plan)
		p.Launch.Env, p.Launch.Owned = []string{"GPU=none", "WORKSPACE_DIR=/w"}, []string{"WORKSPACE_DIR"}
		return p, l.Plan(context.Background(), scene(), []capability.Contribution{merged(cs...)}, p)
	}
	optional := ask("b", "resources@1", `{"gpu":"2"}`)
	optional.Request.Optional = true

	p, err := made(optional, ask("a", "resources@1", `{"cpu":1}`))
	if err != nil {
		t.Fatal(err)
	}
	want := []plan.Device{{Source: "/dev/gpuctl", Path: "/dev/gpuctl", Optional: true}, {Source: "/dev/g0", Path: "/dev/g0", Optional: true}, {Source: "/dev/g1", Path: "/dev/g1", Optional: true}}
	if !reflect.DeepEqual(p.Machine.Devices, want) || !reflect.DeepEqual(p.Machine.Mounts, []plan.Mount{lib}) {
		t.Errorf("devices %+v, mounts %+v", p.Machine.Devices, p.Machine.Mounts)
	}
	if !reflect.DeepEqual(p.Launch.Env, []string{"GPU=all", "WORKSPACE_DIR=/w"}) {
		t.Errorf("env %q", p.Launch.Env)
	}
	if g := (plan.GPU{Name: "g1", Asked: "2", Kits: []string{"b"}, Devices: []string{"/dev/gpuctl", "/dev/g1"}, Notes: []string{"note 1"}}); len(p.GPUs) != 2 || !reflect.DeepEqual(p.GPUs[1], g) {
		t.Errorf("shown %+v", p.GPUs)
	}

	// Whoever cannot do without makes it required.
	p, err = made(ask("a", "resources@1", `{"gpu":"g1"}`))
	if err != nil || len(p.Machine.Devices) != 2 || p.Machine.Devices[1] != (plan.Device{Source: "/dev/g1", Path: "/dev/g1"}) {
		t.Errorf("%+v, %v", p.Machine.Devices, err)
	}
	// No word of GPUs gives none.
	if p, err = made(ask("a", "resources@1", `{"cpu":1}`)); err != nil || len(p.Machine.Devices)+len(p.GPUs)+len(p.Machine.Mounts) != 0 {
		t.Errorf("%+v, %v", p, err)
	}
	// Between the judgement and the plan it may have gone.
	found = gpu.Found{}
	if _, err = made(ask("a", "resources@1", `{"gpu":"g1"}`)); !errors.Is(err, kiterr.ErrRefused) {
		t.Errorf("%v, want a refusal", err)
	}
	found.GPUs = []gpu.GPU{one("0"), {Name: "odd", Devices: []plan.Device{{Source: "/dev/other", Path: "/dev/g0"}}}}
	if _, err = made(ask("a", "resources@1", `{"gpu":"all"}`)); err == nil || !strings.Contains(err.Error(), "/dev/other") {
		t.Errorf("two devices at one path: %v", err)
	}
}
