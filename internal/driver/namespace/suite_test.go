package namespace

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/driver"
	"github.com/kitbox-dev/kitbox/internal/driver/drivertest"
	"github.com/kitbox-dev/kitbox/internal/driver/drivertest/rootfs"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// suiteT makes a testing.T fit the suite.
type suiteT struct{ *testing.T }

func (t suiteT) Run(name string, f func(drivertest.T)) {
	t.T.Run(name, func(t *testing.T) { f(suiteT{t}) })
}

func TestPromises(t *testing.T) {
	newDriver(t)
	drivertest.Run(t.Context(), suiteT{t}, subject(t))
}

func subject(t *testing.T) drivertest.Subject {
	t.Helper()
	guest, err := guestPath()
	if err != nil {
		t.Fatal(err)
	}
	s := drivertest.Subject{
		Open:        func(dir string) driver.Driver { return &Driver{Dir: dir, GuestPath: guest} },
		Machine:     plan.Machine{Layers: []string{rootfs.Layer(t)}, IDMap: ids},
		StartAndDie: startAndDie(guest),
	}
	if ids.IsIdentity() {
		s.Cannot = map[string]string{
			"an owner map ties one user of the host to one of the machine": "only the system's root can translate owners, which is reported",
		}
	}
	return s
}

// The variable that turns the test program into one that starts a machine and
// dies. See TestMain.
const dieVariable = "NAMESPACE_TEST_START_AND_DIE"

func startAndDie(guest string) func(ctx context.Context, dir, id string) error {
	return func(ctx context.Context, dir, id string) error {
		cmd := exec.CommandContext(ctx, "/proc/self/exe")
		cmd.Env = append(os.Environ(), dieVariable+"="+id, "DIR="+dir, "GUEST="+guest)
		out, err := cmd.CombinedOutput()
		if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
			return fmt.Errorf("the starter did not die as it should: %v\n%s", err, out)
		}
		return nil
	}
}

// mainStartAndDie is the other process of startAndDie.
func mainStartAndDie(id string) {
	d := &Driver{Dir: os.Getenv("DIR"), GuestPath: os.Getenv("GUEST")}
	if err := d.Start(context.Background(), id); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}
