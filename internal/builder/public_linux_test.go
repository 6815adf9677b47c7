package builder

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/needs"
)

func TestThePublicNetworkLeadsToPublicHostsByName(t *testing.T) {
	for _, need := range []string{"nsenter", "busybox"} {
		needs.Root(t, "it makes namespaces")
		needs.Program(t, need, "apt-get install util-linux busybox-static")
	}
	p, err := newPublicNetwork(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	public, private := netip.MustParseAddr("93.184.216.34"), netip.MustParseAddr("127.0.0.1")
	p.config.Lookup = func(_ context.Context, name string) ([]netip.Addr, error) {
		if strings.HasPrefix(name, "public.") {
			return []netip.Addr{public}, nil
		}
		return []netip.Addr{private}, nil
	}
	p.config.Dial = func(_ context.Context, to netip.AddrPort) (net.Conn, error) {
		here, there := net.Pipe()
		go func() {
			fmt.Fprintf(there, "reached %s\n", to)
			there.Close()
		}()
		return here, nil
	}
	ns, err := p.New(context.Background(), "", struct{}{})
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	path := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.(*publicNamespace).ns.Fd())
	inside := func(args ...string) string {
		cmd := exec.Command("nsenter", append([]string{"--net=" + path, "busybox"}, args...)...)
		in, err := cmd.StdinPipe() // held open: some programs end with their input
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(out)
		cmd.Wait()
		return string(b)
	}
	address := regexp.MustCompile(`Address(?: 1)?: (198\.1[89]\.\d+\.\d+)\n`)
	for name, want := range map[string]string{"public.kitbox.example": "reached 93.184.216.34:80\n", "private.kitbox.example": ""} {
		found := address.FindAllStringSubmatch(inside("nslookup", name, "198.18.0.1"), -1)
		if len(found) == 0 {
			t.Errorf("%s has no address", name)
			continue
		}
		if got := inside("nc", "-w", "5", found[len(found)-1][1], "80"); got != want {
			t.Errorf("a step that connects to %s reads %q, want %q", name, got, want)
		}
	}
}
