package control_test

import (
	"io"
	"net"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/control"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

func TestAllowedNameReachesItsRoute(t *testing.T) {
	g := newGuest(t)
	at := serve(t, "tcp4", func(c net.Conn) { io.Copy(c, c); c.(*net.TCPConn).CloseWrite() })
	log := newDecisions()
	start(t, g, control.Config{
		Sandbox: "one", Log: log.log,
		Policy: policy(t, "runtime allow echo.example:7"),
		Routes: []plan.Route{route("echo.example", at)},
	})
	for _, network := range []string{"ip4", "ip6"} {
		c, err := g.dialName(network, "echo.example", 7)
		if err != nil {
			t.Fatalf("%s: %v", network, err)
		}
		defer c.Close()
		io.WriteString(c, "hello")
		c.(*net.TCPConn).CloseWrite()
		if got, err := read(c); got != "hello" || err != nil {
			t.Errorf("%s: echo = %q, %v", network, got, err)
		}
	}
	d := log.wait(t, "the connection", func(d audit.Decision) bool { return d.Kind == audit.Connect })
	if d.Verdict != audit.Allow || d.Host != "echo.example" || d.Rule != "echo.example:7" || d.Sandbox != "one" || !strings.HasPrefix(d.Dialled, "127.0.0.1:") {
		t.Errorf("logged %+v", d)
	}
}
