package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/kitbox-dev/kitbox/internal/app"
	"github.com/kitbox-dev/kitbox/internal/driver/namespace"
	"github.com/kitbox-dev/kitbox/internal/guest/client"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// The bars, in crun's time, and what is aimed at later.
const (
	driverBar           = 0.5
	engineBar           = 0.3
	execBar             = 1
	againBar            = 1
	versionBar          = 20 * time.Millisecond
	furtherPerRound     = 3 // further execs in a round, of each kind
	driverIDs           = 1_200_000_000
	driverMemory, tasks = 512 << 20, 512
)

// start measures starting and executing, all sides in turn in each round.
func start(ctx context.Context, o options, f *fixture, r *report) (err error) {
	peer, err := newCrun(filepath.Join(f.home, "crun"), f.layers)
	if err != nil {
		return err
	}
	defer peer.close()
	d := &namespace.Driver{Dir: filepath.Join(f.home, "bench-machines"), GuestPath: filepath.Join(f.programs, "kit-guest")}
	defer func() {
		list, lerr := d.List(context.Background())
		for _, m := range list {
			lerr = errors.Join(lerr, d.Remove(context.Background(), m.ID))
		}
		err = errors.Join(err, lerr)
	}()
	// One that is stopped and started; the idle one is left alone.
	if err := f.kitbox("create", "-q", "--name", twice, workloadRef, "--kit", mixinRef); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.kitbox("rm", twice)) }()
	rt, err := app.Runtime()
	if err != nil {
		return err
	}
	box, err := rt.Open(ctx, idle)
	if err != nil {
		return err
	}
	w, err := newStopwatch()
	if err != nil {
		return err
	}

	var driver, engine, process, version, again, graceful series
	var peerStart, peerExec, nothing, peerAgain series
	for i := range o.rounds {
		id := fmt.Sprintf("bench%d-%d", os.Getpid(), i)
		steps := []func() error{
			func() error { // the driver alone
				s, err := w.keep(func() error { return driverStart(ctx, d, id, f.layers) })
				if err != nil {
					return fmt.Errorf("driver: %w", err)
				}
				driver = append(driver, s)
				return d.Remove(ctx, id)
			},
			func() error { // the peer's whole life
				up, err := w.keep(func() error {
					if err := peer.create(id); err != nil {
						return err
					}
					if err := peer.start(id); err != nil {
						return err
					}
					return peer.exec(id)
				})
				if err != nil {
					return err
				}
				var further series
				for range furtherPerRound {
					s, err := w.keep(func() error { return peer.exec(id) })
					if err != nil {
						return err
					}
					further = append(further, s)
				}
				second, err := w.keep(func() error { return peer.again(id) })
				if err != nil {
					return err
				}
				peerAgain = append(peerAgain, second)
				peerStart, peerExec = append(peerStart, up), append(peerExec, further.middle())
				_, err = w.time(func() error { return peer.remove(id) })
				return err
			},
			func() error { // the end and the next start of one that stays
				s, err := w.keep(func() error { return f.again("--grace", "0s") })
				again = append(again, s)
				return err
			},
			func() error { // the same as people do it, with a process that ends when it is asked to
				if _, err := w.keep(func() error { return f.kitbox("exec", "-d", twice, "--", "sleep", "1000000") }); err != nil {
					return err
				}
				s, err := w.keep(func() error { return f.again() })
				graceful = append(graceful, s)
				return err
			},
			func() error { // further commands
				var in, out series
				for range furtherPerRound {
					s, err := w.time(func() error { return engineExec(ctx, box) })
					if err != nil {
						return fmt.Errorf("engine: %w", err)
					}
					in = append(in, s)
					if s, err = w.time(func() error { return f.kitbox("exec", idle, "--", "true") }); err != nil {
						return err
					}
					out = append(out, s)
				}
				engine, process = append(engine, in.middle()), append(process, out.middle())
				return nil
			},
			func() error { // a program that does nothing
				s, err := w.time(func() error { return f.kitbox("version") })
				if err != nil {
					return err
				}
				version = append(version, s)
				s, err = w.time(func() error { return exec.Command("true").Run() })
				nothing = append(nothing, s)
				return err
			},
		}
		if err := w.turns(i, steps); err != nil {
			return err
		}
	}
	r.add(compared("driver alone: create, start, first exec", "crun create, start, exec", driver, peerStart, driverBar, 0))
	r.add(compared("`kitbox stop --grace 0s` and `kitbox start`, boundary and 2 hooks", "crun delete --force, create, start", again, peerAgain, againBar, 0))
	r.add(compared("`kitbox stop` with its 10 s of grace, a process that ends on TERM, and `kitbox start`", "crun delete --force, create, start", graceful, peerAgain, againBar, 0))
	r.add(compared("further exec through the engine, in process", "crun exec", engine, peerExec, engineBar, 0))
	r.add(compared("further exec as a `kitbox exec` process", "crun exec", process, peerExec, execBar, 0))
	v := compared("`kitbox version`", "`true`", version, nothing, 0, 0)
	v.ours += fmt.Sprintf(", best %s, processor %s", show(slices.Min(version.walls())), show(median(version.cpus())))
	v.bar, v.ok = "within "+show(versionBar), verdict(median(version.walls()) <= versionBar)
	r.add(v)
	return nil
}

// again stops, with options, and starts the sandbox twice.
func (f *fixture) again(options ...string) error {
	if err := f.kitbox(append(append([]string{"stop", "-q"}, options...), twice)...); err != nil {
		return err
	}
	return f.kitbox("start", "-q", twice)
}

func (s series) middle() sample { return sample{median(s.walls()), median(s.cpus())} }

func driverStart(ctx context.Context, d *namespace.Driver, id string, layers []string) error {
	err := d.Create(ctx, plan.Machine{
		ID: id, Hostname: "bench", Layers: layers, IDMap: plan.IDMap{Base: driverIDs, Size: 65536},
		Limits: plan.Limits{MemoryBytes: driverMemory, Pids: tasks, CPUMillis: 2000},
	})
	if err != nil {
		return err
	}
	if err := d.Start(ctx, id); err != nil {
		return err
	}
	cl := &client.Client{Dial: func(ctx context.Context) (net.Conn, error) { return d.Dial(ctx, id) }}
	exit, err := cl.Exec(ctx, client.ExecRequest{Argv: []string{command}}, client.Stdio{})
	if err == nil && exit.Code != 0 {
		err = fmt.Errorf("status %d", exit.Code)
	}
	return err
}

func engineExec(ctx context.Context, box sandbox.Sandbox) error {
	res, err := box.Run(ctx, &sandbox.Cmd{Args: []string{command}})
	if err == nil && res.ExitCode != 0 {
		err = fmt.Errorf("status %d", res.ExitCode)
	}
	return err
}
