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

func TestLoginsArePlannedAsPlaceholders(t *testing.T) {
	asked := ""
	h := builtin.Host{Storage: storage{}, DockerConfig: "/home/me/.docker", Login: func(_ context.Context, registry string) error {
		asked = registry
		if registry != "docker.io" {
			return errors.New("no login")
		}
		return nil
	}}
	l := builtin.Handlers(h)
	var refused *capability.RefusedError
	if err := l.Accept(context.Background(), scene(), ask("a", "docker-auth@1", `{"registry":"ghcr.io"}`)); !errors.As(err, &refused) || refused.Reason != "no login" {
		t.Errorf("without a login: %v", err)
	}
	if err := l.Accept(context.Background(), scene(), ask("a", "docker-auth@1", `{"registry":"index.docker.io"}`)); err != nil || asked != "docker.io" {
		t.Errorf("docker.io: %v, asked %s", err, asked)
	}
	cs := []capability.Contribution{merged(ask("a", "docker-auth@1", `{"registry":"index.docker.io"}`), ask("b", "docker-auth@1", `{"registry":"docker.io"}`)),
		ask("b", "docker-auth@1", `{"registry":"r.test:5000"}`)}
	for env, want := range map[string]string{"A=1": "/home/agent/.docker/config.json", "DOCKER_CONFIG=/etc/docker/": "/etc/docker/config.json", "DOCKER_CONFIG=rel": "/home/agent/.docker/config.json"} {
		p := plan.Plan{Launch: plan.Launch{Env: []string{env}}}
		if err := l.Plan(context.Background(), scene(), cs, &p); err != nil {
			t.Fatal(err)
		}
		if len(p.DockerAuth) != 2 || p.DockerAuth[0].Registry != "docker.io" || !reflect.DeepEqual(p.DockerAuth[0].Kits, []string{"a", "b"}) || p.DockerAuth[0].Placeholder == p.DockerAuth[1].Placeholder || p.DockerAuth[1].Config != "/home/me/.docker" {
			t.Errorf("planned %+v", p.DockerAuth)
		}
		if len(p.Files) != 1 || p.Files[0].Path != want || p.Files[0].Mode != 0o600 || !strings.Contains(p.Files[0].Content, `"https://index.docker.io/v1/"`) || !strings.Contains(p.Files[0].Content, `"r.test:5000"`) {
			t.Errorf("%s: %+v", env, p.Files)
		}
	}
	if err := builtin.Handlers(builtin.Host{Storage: storage{}}).Accept(context.Background(), scene(), ask("a", "docker-auth@1", `{"registry":"docker.io"}`)); !errors.As(err, &refused) {
		t.Errorf("a host without logins: %v", err)
	}
}
