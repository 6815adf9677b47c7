package handler_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/internal/handler/builtin"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

func TestServicesOfTheHostArePlannedWithWhoAsked(t *testing.T) {
	l := builtin.Handlers(builtin.Host{Storage: storage{}})
	cs := []capability.Contribution{
		merged(ask("a", "host-port@1", `{"port":5432,"name":"db"}`), ask("b", "host-port@1", `{"port":5432,"transport":"tcp"}`)),
		ask("b", "host-port@1", `{"port":53,"transport":"udp","family":"ipv6"}`),
	}
	var p plan.Plan
	if err := l.Plan(context.Background(), scene(), cs, &p); err != nil {
		t.Fatal(err)
	}
	want := []plan.HostPort{{Port: 5432, Transport: "tcp", Family: "ipv4", Name: "db", Kits: []string{"a", "b"}}, {Port: 53, Transport: "udp", Family: "ipv6", Kits: []string{"b"}}}
	if !reflect.DeepEqual(p.HostPorts, want) || p.HostPorts[1].Key() != "udp6/53" {
		t.Errorf("planned %+v", p.HostPorts)
	}
	if err := l.Accept(context.Background(), scene(), ask("a", "host-port@1", `{"port":0}`)); err == nil {
		t.Error("port 0 was accepted")
	}
	cs = nil
	for i := range 65 {
		cs = append(cs, ask("a", "host-port@1", fmt.Sprintf(`{"port":%d}`, i+1)))
	}
	var refused *capability.RefusedError
	if err := l.Plan(context.Background(), scene(), cs, new(plan.Plan)); !errors.As(err, &refused) || !strings.Contains(refused.Reason, "64") {
		t.Errorf("65 services: %v", err)
	}
}

func TestTheRegistryIsAnnouncedOnce(t *testing.T) {
	l := builtin.Handlers(builtin.Host{Storage: storage{}, Registry: "registry.kitbox.internal"})
	p := plan.Plan{Launch: plan.Launch{Env: []string{"A=1", "KIT_REGISTRY=evil.example"}, Owned: []string{"SANDBOX_NAME"}}}
	if err := l.Plan(context.Background(), scene(), []capability.Contribution{merged(ask("a", "kit-registry@1", ""), ask("b", "kit-registry@1", ""))}, &p); err != nil {
		t.Fatal(err)
	}
	if p.Registry == nil || !reflect.DeepEqual(p.Registry.Kits, []string{"a", "b"}) || !reflect.DeepEqual(p.Launch.Env, []string{"A=1", "KIT_REGISTRY=registry.kitbox.internal"}) ||
		!reflect.DeepEqual(p.Launch.Owned, []string{"KIT_REGISTRY", "SANDBOX_NAME"}) {
		t.Errorf("planned %+v, %+v", p.Registry, p.Launch)
	}
	var refused *capability.RefusedError
	if err := builtin.Handlers(builtin.Host{Storage: storage{}}).Accept(context.Background(), scene(), ask("a", "kit-registry@1", "")); !errors.As(err, &refused) {
		t.Errorf("without a registry: %v", err)
	}
}
