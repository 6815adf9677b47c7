package namespace

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/driver"
	"github.com/kitbox-dev/kitbox/internal/driver/drivertest/rootfs"
	"github.com/kitbox-dev/kitbox/internal/driver/userns"
	"github.com/kitbox-dev/kitbox/internal/guest/client"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// guestPath is kit-guest, built once.
var guestPath = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv(rootlessVariable); dir != "" {
		return dir + "/kit-guest", nil
	}
	return rootfs.BuildGuest(scratch)
})

var scratch string

func TestMain(m *testing.M) {
	if os.Args[0] == "kit-guest" {
		for { // a guest that says nothing
			time.Sleep(time.Hour)
		}
	}
	enterRootless()
	if id := os.Getenv(dieVariable); id != "" {
		mainStartAndDie(id)
	}
	var err error
	if scratch, err = os.MkdirTemp("", "namespace"); err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(scratch)
	os.Exit(code)
}

// newDriver returns a driver with a directory of its own, whose machines are
// gone when t ends.
func newDriver(t *testing.T) *Driver {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("machines need root")
	}
	guest, err := guestPath()
	if err != nil {
		t.Fatal(err)
	}
	d := &Driver{Dir: t.TempDir(), GuestPath: guest}
	t.Cleanup(func() {
		ms, err := d.List(context.Background())
		if err != nil {
			t.Error(err)
		}
		for _, m := range ms {
			if err := d.Remove(context.Background(), m.ID); err != nil {
				t.Errorf("removing %s: %v", m.ID, err)
			}
		}
	})
	return d
}

// ids is a range that no other test of this package uses.
var ids = func() plan.IDMap {
	if os.Getenv(rootlessVariable) != "" {
		return plan.IDMap{} // what an ordinary user has
	}
	return plan.IDMap{Base: 1_000_000_000, Size: 65536}
}()

// newMachine is the smallest useful machine.
func newMachine(t *testing.T) plan.Machine {
	t.Helper()
	name := strings.ToLower(strings.NewReplacer("/", "-", "#", "-").Replace(t.Name()))
	return plan.Machine{ID: fmt.Sprintf("%.100s-%d", name, os.Getpid()), Hostname: "box", Layers: []string{rootfs.Layer(t)}, IDMap: ids}
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// up creates and starts m.
func up(t *testing.T, d *Driver, m plan.Machine) *client.Client {
	t.Helper()
	if err := d.Create(within(t), m); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(within(t), m.ID); err != nil {
		t.Fatal(err)
	}
	return guestOf(d, m.ID)
}

func guestOf(d driver.Driver, id string) *client.Client {
	return &client.Client{Dial: func(ctx context.Context) (net.Conn, error) { return d.Dial(ctx, id) }}
}

// sh runs a script as root of the machine and returns what it wrote.
func sh(t *testing.T, cl *client.Client, script string) string {
	t.Helper()
	out, code := shCode(t, cl, script)
	if code != 0 {
		t.Fatalf("%s: status %d\n%s", script, code, out)
	}
	return out
}

func shCode(t *testing.T, cl *client.Client, script string) (string, int) {
	t.Helper()
	var out bytes.Buffer
	exit, err := cl.Exec(within(t), client.ExecRequest{Argv: []string{"sh", "-c", script}, Env: []string{"PATH=/bin:/usr/bin"}},
		client.Stdio{Stdout: &out, Stderr: &out})
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return out.String(), exit.Code
}

func TestAMachineRuns(t *testing.T) {
	d, m := newDriver(t), newMachine(t)
	cl := up(t, d, m)
	if got := sh(t, cl, "hostname; id -u"); got != "box\n0\n" {
		t.Errorf("got %q", got)
	}
	if err := d.Stop(within(t), m.ID, time.Second); err != nil {
		t.Fatal(err)
	}
	if err := d.Remove(within(t), m.ID); err != nil {
		t.Fatal(err)
	}
}

func BenchmarkLife(b *testing.B) {
	dir := b.TempDir()
	layer := dir + "/layer"
	if err := rootfs.Make(layer); err != nil {
		b.Fatal(err)
	}
	guest, err := guestPath()
	if err != nil {
		b.Fatal(err)
	}
	d := &Driver{Dir: dir + "/m", GuestPath: guest}
	ctx := context.Background()
	var sum [6]time.Duration
	n := 0
	for b.Loop() {
		m := plan.Machine{ID: "bench", Hostname: "box", Layers: []string{layer}, IDMap: ids}
		cl := guestOf(d, m.ID)
		run := func() error {
			_, err := cl.Exec(ctx, client.ExecRequest{Argv: []string{"/bin/true"}}, client.Stdio{})
			return err
		}
		for i, f := range []func() error{
			func() error { return d.Create(ctx, m) },
			func() error { return d.Start(ctx, m.ID) },
			run, run,
			func() error { return d.Stop(ctx, m.ID, 0) },
			func() error { return d.Remove(ctx, m.ID) },
		} {
			t := time.Now()
			if err := f(); err != nil {
				b.Fatal(err)
			}
			sum[i] += time.Since(t)
		}
		n++
	}
	for i, name := range []string{"create", "start", "exec1", "exec2", "stop", "remove"} {
		b.ReportMetric(float64(sum[i].Microseconds())/float64(n)/1000, name+"-ms")
	}
}

func TestAnExchangedIDIsMappedOnce(t *testing.T) {
	for _, c := range []struct {
		own  userns.Range
		swap uint32
		want string
	}{
		{userns.Range{Inside: 0, Outside: 20001, Size: 1}, 1000, "[{1000 0 1}]"},
		{userns.Range{Inside: 1, Outside: 700000, Size: 65536}, 1000, "[{1 1 999} {0 1000 1} {1001 1001 64536}]"},
		{userns.Range{Inside: 1, Outside: 700000, Size: 65536}, 1, "[{0 1 1} {2 2 65535}]"},
		{userns.Range{Inside: 1, Outside: 700000, Size: 65536}, 65536, "[{1 1 65535} {0 65536 1}]"},
		{userns.Range{Inside: 0, Outside: 700000, Size: 3000}, 1000, "[{1000 0 1} {1 1 999} {0 1000 1} {1001 1001 1999}]"},
		{userns.Range{Inside: 1, Outside: 700000, Size: 65536}, 0, "[{1 1 65536}]"},
		{userns.Range{Inside: 0, Outside: 20001, Size: 1}, 0, "[{0 0 1}]"},
	} {
		if got := fmt.Sprint(swapped(c.own, c.swap)); got != c.want {
			t.Errorf("%+v, %d: %s, want %s", c.own, c.swap, got, c.want)
		}
	}
}
