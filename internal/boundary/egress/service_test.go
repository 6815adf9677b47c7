package egress

import (
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/plan"
)

func hostPort(port uint16, proto Protocol, v6 bool) Service {
	name := "host-port " + string(proto)
	if v6 {
		name += "6"
	}
	return Service{Hosts: []string{HostAlias, HostAliasDocker}, Port: port, Protocol: proto, V6: v6, Name: name, Source: "kit k"}
}

func TestOnlyServicesOpenNamesOfTheBoundary(t *testing.T) {
	services := []Service{hostPort(5432, TCP, false), hostPort(53, UDP, false), hostPort(80, TCP, false), hostPort(80, TCP, true), hostPort(81, TCP, true)}
	for _, tt := range []struct {
		rules    []string
		host     string
		port     uint16
		proto    Protocol
		v6       bool
		want     string // name of the service; empty: refused
		say, dns string // in the reason; what the resolver says
	}{
		{nil, HostAlias, 5432, TCP, false, "host-port tcp", "granted by", "granted by"},
		{nil, "Host.Docker.Internal.", 5432, TCP, true, "host-port tcp", "granted by", "granted by"},
		{nil, HostAlias, 53, UDP, false, "host-port udp", "granted by", "granted by"},
		{nil, HostAlias, 5432, UDP, false, "", "udp/5432 was not granted there, only tcp/5432", "granted"},
		{nil, HostAlias, 53, TCP, false, "", "only tcp/5432", "granted"},
		{nil, HostAlias, 5433, TCP, false, "", "tcp/5433 was not granted", "granted"},
		{nil, HostAlias, 80, TCP, true, "host-port tcp6", "granted", "granted"},
		{nil, HostAlias, 80, TCP, false, "host-port tcp", "granted", "granted"},
		{nil, HostAlias, 81, TCP, false, "host-port tcp6", "granted", "granted"}, // one family there: whoever asks gets it
		{[]string{"runtime allow *", "runtime allow host.docker.internal", "runtime allow **.internal:9", "runtime allow " + HostAlias + " operator"}, HostAlias, 9, TCP, false, "", "not granted", "granted"},
		{[]string{"runtime allow **"}, RegistryAlias, 443, TCP, false, "", "nothing was granted there", "nothing was granted"},
		{[]string{"runtime allow **"}, "x.y.kitbox.internal", 443, TCP, false, "", "name of the boundary", "name of the boundary"},
		{[]string{"runtime deny **"}, HostAlias, 5432, TCP, false, "", "denied by **", "denied by **"},
		{[]string{"runtime deny " + HostAlias + ":5432"}, HostAlias, 5432, TCP, false, "", "denied by", "granted by"},
		{[]string{"runtime deny " + HostAlias + ":5432"}, HostAlias, 80, TCP, false, "host-port tcp", "granted", "granted"},
		{[]string{"runtime deny " + HostAliasDocker + ":5432"}, HostAlias, 5432, TCP, false, "", "denied by", "granted by"},
		{[]string{"install deny **"}, HostAlias, 5432, TCP, false, "host-port tcp", "granted", "granted"},
	} {
		p := must(t, tt.rules...).WithServices(services)
		v := p.Decide(Request{Phase: plan.Runtime, Host: tt.host, Port: tt.port, Protocol: tt.proto, V6: tt.v6})
		got := ""
		if v.Service != nil {
			got = v.Service.Name
		}
		if got != tt.want || v.Allow != (tt.want != "") || !strings.Contains(v.Why, tt.say) || v.Allow && (v.Source != "kit k" || v.Rule != tt.want) {
			t.Errorf("%v: %s %s/%d v6=%v: %+v", tt.rules, tt.host, tt.proto, tt.port, tt.v6, v)
		}
		if d := p.CouldAllow(plan.Runtime, tt.host); !strings.Contains(d.Why, tt.dns) || d.Allow != strings.HasPrefix(d.Why, "granted") {
			t.Errorf("%v: %s resolves: %+v", tt.rules, tt.host, d)
		}
	}
	var none *Policy
	if v := none.Decide(tcp(HostAlias, 80)); v.Allow || v.Why == "" {
		t.Errorf("no policy: %+v", v)
	}
	if v := none.WithServices(services).Decide(Request{Phase: plan.Install, Host: HostAlias, Port: 80, Protocol: TLS}); !v.Allow {
		t.Errorf("services alone: %+v", v)
	}
}

func TestRequestsToAServiceCanBeDenied(t *testing.T) {
	p, err := New([]plan.EgressRule{{Phase: plan.Runtime, Pattern: HostAlias, Methods: []string{"DELETE"}, Source: "operator"}})
	if err != nil {
		t.Fatal(err)
	}
	p = p.WithServices([]Service{hostPort(80, TCP, false), hostPort(80, UDP, false)})
	if v := p.Decide(tcp(HostAlias, 80)); !v.Allow || !v.Inspect || v.Service == nil {
		t.Errorf("connection: %+v", v)
	}
	if v := p.DecideRequest(tcp(HostAlias, 80), "GET", "/"); !v.Allow {
		t.Errorf("GET: %+v", v)
	}
	if v := p.DecideRequest(tcp(HostAliasDocker, 80), "DELETE", "/"); v.Allow || v.Source != "operator" {
		t.Errorf("DELETE: %+v", v)
	}
	if v := p.Decide(Request{Phase: plan.Runtime, Host: HostAlias, Port: 80, Protocol: UDP}); v.Allow || !strings.Contains(v.Why, "datagrams") {
		t.Errorf("datagrams: %+v", v)
	}
}
