// Package drivertest judges drivers by the sentences of package driver, and by
// what a machine promises about isolation. Every check says in its name what
// is promised.
//
// It needs nothing of a driver but its interface and looks at machines from
// the inside, with commands of a busybox, and from the outside, with /proc.
// Package rootfs makes the root filesystem for it.
package drivertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kitbox-dev/kitbox/internal/driver"
	"github.com/kitbox-dev/kitbox/internal/guest/client"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// A Subject is a driver under test and what it can be asked.
type Subject struct {
	// Open returns a driver whose machines are kept in dir. Called twice
	// with one dir, the second driver is as another process's. Required.
	Open func(dir string) driver.Driver

	// Machine is the pattern of all machines: its layers hold a busybox, its
	// id map is one the driver takes. Required.
	Machine plan.Machine

	// StartAndDie starts machine id of dir in another process and returns
	// when that process was killed. Nil where no such process can be made;
	// the check is then left out.
	StartAndDie func(ctx context.Context, dir, id string) error

	// Cannot names checks that this backend cannot pass, with the reason.
	Cannot map[string]string
}

// T is the part of [testing.T] that the suite needs. It is an interface so
// that the suite's own test can hand it something that records failures.
type T interface {
	Run(name string, f func(T))
	Errorf(format string, args ...any)
	Skipf(format string, args ...any)
	TempDir() string
}

// A check judges one promise.
type check struct {
	name string
	run  func(x *trial) error
}

// Names returns the names of all checks.
func Names() []string {
	var names []string
	for _, c := range checks() {
		names = append(names, c.name)
	}
	return names
}

func checks() []check {
	var all []check
	all = append(all, lifeChecks...)
	all = append(all, contentChecks...)
	all = append(all, coverChecks...)
	all = append(all, limitChecks...)
	all = append(all, deviceChecks...)
	return append(all, isolationChecks...)
}

// Run checks s; only names, if there are any.
func Run(ctx context.Context, t T, s Subject, names ...string) {
	for name := range s.Cannot {
		if !contains(Names(), name) {
			t.Errorf("no check is called %q", name)
		}
	}
	for _, c := range checks() {
		if len(names) > 0 && !contains(names, c.name) {
			continue
		}
		t.Run(c.name, func(t T) {
			if why, ok := s.Cannot[c.name]; ok {
				t.Skipf("%s", why)
				return
			}
			judge(ctx, t, s, c)
		})
	}
}

func contains(list []string, s string) bool {
	for _, l := range list {
		if l == s {
			return true
		}
	}
	return false
}

// limit bounds one check.
const limit = 2 * time.Minute

func judge(ctx context.Context, t T, s Subject, c check) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	x := &trial{ctx: ctx, s: s, dir: t.TempDir(), scratch: t.TempDir()}
	x.d = s.Open(x.dir)
	err := c.run(x)
	x.cleanup()
	if errors.Is(err, errSkip) {
		t.Skipf("%v", err)
		return
	}
	if err != nil {
		t.Errorf("%v", err)
	}
}

var errSkip = errors.New("not for this subject")

// A trial is one check under way.
type trial struct {
	ctx     context.Context
	s       Subject
	d       driver.Driver
	dir     string // of the driver
	scratch string // of the check, on the host
	made    []string
}

// serial makes ids that no other machine of this system has.
var serial = func() *atomic.Int64 {
	n := new(atomic.Int64)
	n.Store(time.Now().UnixNano())
	return n
}()

// machine returns a new machine by the pattern.
func (x *trial) machine() plan.Machine {
	m := x.s.Machine
	m.ID = fmt.Sprintf("t%x", serial.Add(1))
	m.Hostname = "box"
	x.made = append(x.made, m.ID)
	return m
}

// cleanup removes what a check left, through a driver that is not broken.
func (x *trial) cleanup() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, id := range x.made {
		_ = x.d.Remove(ctx, id)
	}
}

// up makes and starts m.
func (x *trial) up(m plan.Machine) (*client.Client, error) {
	if err := x.d.Create(x.ctx, m); err != nil {
		return nil, fmt.Errorf("Create: %w", err)
	}
	if err := x.d.Start(x.ctx, m.ID); err != nil {
		return nil, fmt.Errorf("Start: %w", err)
	}
	return guest(x.d, m.ID), nil
}

func guest(d driver.Driver, id string) *client.Client {
	return &client.Client{Dial: func(ctx context.Context) (net.Conn, error) { return d.Dial(ctx, id) }}
}

var environment = []string{"PATH=/bin:/usr/bin"}

// sh runs a script as root of the machine and returns what it wrote and its
// status.
func (x *trial) sh(cl *client.Client, script string) (string, int, error) {
	return x.as(cl, 0, script)
}

func (x *trial) as(cl *client.Client, id uint32, script string) (string, int, error) {
	var out bytes.Buffer
	exit, err := cl.Exec(x.ctx, client.ExecRequest{Argv: []string{"sh", "-c", script}, Env: environment, UID: id, GID: id},
		client.Stdio{Stdout: &out, Stderr: &out})
	if err != nil {
		return "", 0, fmt.Errorf("running %q: %w", script, err)
	}
	return strings.TrimSpace(out.String()), exit.Code, nil
}

// want runs a script that must succeed and write exactly text.
func (x *trial) want(cl *client.Client, script, text string) error {
	out, code, err := x.sh(cl, script)
	if err != nil {
		return err
	}
	if code != 0 || out != text {
		return fmt.Errorf("%q: status %d, %q; want %q", script, code, out, text)
	}
	return nil
}

// shows makes and starts m, and runs a script in it as want does.
func (x *trial) shows(m plan.Machine, script, text string) error {
	cl, err := x.up(m)
	if err != nil {
		return err
	}
	return x.want(cl, script, text)
}

// fails runs a script that must not succeed.
func (x *trial) fails(cl *client.Client, script string) error {
	out, code, err := x.sh(cl, script)
	if err != nil {
		return err
	}
	if code == 0 {
		return fmt.Errorf("%q succeeded: %q", script, out)
	}
	return nil
}

// find returns the entry of id in List.
func (x *trial) find(id string) (driver.Machine, bool, error) {
	ms, err := x.d.List(x.ctx)
	if err != nil {
		return driver.Machine{}, false, fmt.Errorf("List: %w", err)
	}
	for _, m := range ms {
		if m.ID == id {
			return m, true, nil
		}
	}
	return driver.Machine{}, false, nil
}

// hostPIDs returns the processes of this system whose command line holds
// marker: those of a machine are visible from outside.
func hostPIDs(marker string) []string {
	var pids []string
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		b, err := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if err == nil && bytes.Contains(b, []byte(marker)) && e.Name() != "self" && e.Name() != "thread-self" {
			pids = append(pids, e.Name())
		}
	}
	return pids
}

// eventually tries f until it succeeds or some seconds have passed.
func (x *trial) eventually(f func() error) error {
	end := time.Now().Add(20 * time.Second)
	for {
		err := f()
		if err == nil || time.Now().After(end) || x.ctx.Err() != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}
