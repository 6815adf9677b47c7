package oci

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
	"github.com/kitbox-dev/kitbox/internal/needs"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

func TestMain(m *testing.M) {
	if id := os.Getenv(dieVariable); id != "" {
		d := &Driver{Dir: os.Getenv("DIR"), GuestPath: os.Getenv("GUEST"), Runtime: os.Getenv("RUNTIME")}
		if err := d.Start(context.Background(), id); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	os.Exit(m.Run())
}

// The variable that turns the test program into one that starts a machine and
// dies.
const dieVariable = "OCI_TEST_START_AND_DIE"

// suiteT makes a testing.T fit the suite.
type suiteT struct{ *testing.T }

func (t suiteT) Run(name string, f func(drivertest.T)) {
	t.T.Run(name, func(t *testing.T) { f(suiteT{t}) })
}

func TestPromises(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("machines need root")
	}
	layer := rootfs.Layer(t)
	guest := rootfs.Guest(t)
	for _, name := range []string{"crun", "runc"} {
		t.Run(name, func(t *testing.T) {
			runtime := needs.Program(t, name, "apt-get install "+name)
			drivertest.Run(t.Context(), suiteT{t}, drivertest.Subject{
				Open:    func(dir string) driver.Driver { return &Driver{Dir: dir, GuestPath: guest, Runtime: runtime} },
				Machine: plan.Machine{Layers: []string{layer}, IDMap: plan.IDMap{Base: 1_100_000_000, Size: 65536}},
				StartAndDie: func(ctx context.Context, dir, id string) error {
					cmd := exec.CommandContext(ctx, "/proc/self/exe")
					cmd.Env = append(os.Environ(), dieVariable+"="+id, "DIR="+dir, "GUEST="+guest, "RUNTIME="+runtime)
					out, err := cmd.CombinedOutput()
					if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
						return fmt.Errorf("the starter did not die as it should: %v\n%s", err, out)
					}
					return nil
				},
			})
		})
	}
}

// The mounts of a runtime's process are nobody else's: not those of the main thread
// either, which is what /proc/self shows and which does not end.
func TestPrivateMountsLeaveTheProcessAlone(t *testing.T) {
	needs.Root(t, "only root makes mount namespaces")
	before, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		if err := privately(nil, func() error { return nil }); err != nil {
			t.Fatal(err)
		}
		if after, err := os.Readlink("/proc/self/ns/mnt"); after != before || err != nil {
			t.Fatalf("this process is in %s now, and was in %s (%v)", after, before, err)
		}
	}
}
