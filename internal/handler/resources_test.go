package handler_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
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
		{`{"memory":"1g"}`, "unheld", plan.Limits{}, "no cgroup controller"},
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
