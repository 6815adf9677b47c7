package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
)

// greet serves on a loopback address of this machine, saying who it is.
func greet(t *testing.T, network, addr, text string) (port int, asked *atomic.Int64) {
	t.Helper()
	asked = new(atomic.Int64)
	done := make(chan struct{})
	if strings.HasPrefix(network, "udp") {
		pc, err := net.ListenPacket(network, addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { pc.Close(); <-done })
		go func() {
			defer close(done)
			b := make([]byte, 2000)
			for {
				_, from, err := pc.ReadFrom(b)
				if err != nil {
					return
				}
				asked.Add(1)
				pc.WriteTo([]byte(text+"\n"), from)
			}
		}()
		return pc.LocalAddr().(*net.UDPAddr).Port, asked
	}
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			asked.Add(1)
			io.WriteString(c, text+"\n")
			c.Close()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port, asked
}

func TestServicesOfTheHostAreReachedAtItsNamesAndNothingElseIs(t *testing.T) {
	tcp4, _ := greet(t, "tcp4", "127.0.0.1:0", "tcp of 127.0.0.1")
	tcp6, _ := greet(t, "tcp6", "[::1]:0", "tcp of ::1")
	udp4, _ := greet(t, "udp4", "127.0.0.1:0", "udp of 127.0.0.1")
	udp6, _ := greet(t, "udp6", "[::1]:0", "udp of ::1")
	closed, asked := greet(t, "tcp4", "127.0.0.1:0", "not for you")
	entry := func(port int, more string) string {
		return fmt.Sprintf("  - type: com.docker.sandbox/host-port@1\n    config: {port: %d%s}\n", port, more)
	}
	dir := kit(t, "  - type: com.docker.sandbox/network-policy@1\n    config: {runtime: {allow: [host.docker.internal, '**']}}\n"+
		entry(tcp4, ", name: base")+entry(tcp6, ", family: ipv6")+entry(udp4, ", transport: udp")+entry(udp6, ", transport: udp, family: ipv6"))

	// Under a floor it needs a word like everything that a Kit may reach.
	if o := kitbox(t, "plan", "--deny-all", dir); o.Code != 3 || !strings.Contains(o.Stderr, fmt.Sprintf("host-port tcp4/%d", tcp4)) {
		t.Errorf("a floor without a word: %+v", o)
	}
	create(t, "neighbour", dir)
	type probe struct {
		transport string
		port      int
		want      string
	}
	reach := func(when string, probes ...probe) {
		t.Helper()
		for _, p := range probes {
			for _, name := range []string{"host.kitbox.internal", "host.docker.internal"} {
				o := kitbox(t, "exec", "neighbour", "--", "bash", "-c", fmt.Sprintf("exec 3<>/dev/%s/%s/%d && { echo hello >&3; timeout 5 head -n1 <&3; }", p.transport, name, p.port))
				if got := strings.TrimSpace(o.Stdout); got != p.want {
					t.Errorf("%s: %s/%d at %s: %q, want %q\n%s", when, p.transport, p.port, name, got, p.want, o.Stderr)
				}
			}
		}
	}
	granted := []probe{{"tcp", tcp4, "tcp of 127.0.0.1"}, {"tcp", tcp6, "tcp of ::1"}, {"udp", udp4, "udp of 127.0.0.1"}, {"udp", udp6, "udp of ::1"}}
	reach("at first", granted...)
	reach("not granted", probe{"tcp", closed, ""}, probe{"udp", tcp4, ""}, probe{"tcp", udp4, ""})
	if asked.Load() != 0 {
		t.Error("a service that was not granted was reached")
	}

	log := ok(t, "policy", "log", "neighbour", "--json")
	for _, want := range []string{fmt.Sprintf(`"rule": "host-port tcp4/%d"`, tcp4), fmt.Sprintf(`"rule": "host-port udp6/%d"`, udp6), fmt.Sprintf(`"port": %d`, closed), `"source": "kit ` + dir} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %s:\n%s", want, log)
		}
	}
	if ls := ok(t, "policy", "ls", "neighbour"); !strings.Contains(ls, fmt.Sprintf("host.kitbox.internal:%d (host-port tcp4/%d)", tcp4, tcp4)) {
		t.Errorf("policy ls:\n%s", ls)
	}
	if ps := ok(t, "ports", "neighbour"); !strings.Contains(ps, fmt.Sprintf("[::1]:%d/udp", udp6)) || !strings.Contains(ps, "(base)") {
		t.Errorf("ports:\n%s", ps)
	}
	check := func(code int, args ...string) {
		t.Helper()
		if o := kitbox(t, append([]string{"policy", "check"}, args...)...); o.Code != code {
			t.Errorf("policy check %v: %+v", args, o)
		}
	}
	check(0, "neighbour", fmt.Sprintf("host.docker.internal:%d", tcp4))
	check(0, "--udp", "neighbour", fmt.Sprintf("host.kitbox.internal:%d", udp4))
	check(2, "neighbour", fmt.Sprintf("host.docker.internal:%d", closed))
	var plan struct{ HostPorts []struct{ Port int } }
	if err := json.Unmarshal([]byte(ok(t, "plan", "--json", dir)), &plan); err != nil || len(plan.HostPorts) != 4 {
		t.Errorf("plan: %v, %+v", err, plan)
	}

	ok(t, "restart", "neighbour")
	reach("after a restart", granted...)

	// What the operator denies is denied.
	ok(t, "policy", "deny", "--sandbox", "neighbour", fmt.Sprintf("host.kitbox.internal:%d", tcp4))
	reach("denied", probe{"tcp", tcp4, ""}, granted[1])
}

func TestTheHostHasNoNameWithoutAGrant(t *testing.T) {
	port, asked := greet(t, "tcp4", "127.0.0.1:0", "not for you")
	create(t, "stranger", "--route", fmt.Sprintf("host.docker.internal=127.0.0.1:%d", port), kit(t,
		"  - type: com.docker.sandbox/network-policy@1\n    config: {runtime: {allow: [host.docker.internal, host.kitbox.internal, '*']}}\n"))
	o := sh(t, "stranger", "", fmt.Sprintf("getent hosts host.docker.internal host.kitbox.internal; curl -sS --max-time 5 http://host.docker.internal:%d; curl -sS --max-time 5 http://198.18.0.4:%d", port, port))
	if o.Stdout != "" || asked.Load() != 0 {
		t.Errorf("%+v, asked %d times", o, asked.Load())
	}
}
