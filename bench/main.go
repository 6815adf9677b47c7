// Command bench measures kitbox beside its peers in one run, in turns, and
// writes the tables of bench/README.md.
//
// Only ratios mean something on a machine that does other things too: every
// round runs ours and the peer's one after the other, the ratio is taken within
// the round, and the middle of all rounds is what is judged. Processor time is
// the second opinion, since it does not wait for its turn.
//
// It needs root, crun, a static busybox and the built programs (`make bench`).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

type options struct {
	rounds   int
	quick    bool
	strict   bool
	programs string // directory with kitbox and kit-guest
	only     string // the one group of measurements to take; empty: all
	fleet    int    // sandboxes to have at once; 0: that is not measured
	write    string // file to write the tables into; empty: none
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 20, "rounds per measurement")
	flag.BoolVar(&o.quick, "quick", false, "three rounds of small sizes, to see that everything works")
	flag.BoolVar(&o.strict, "strict", false, "exit with status 1 when a bar is missed")
	flag.StringVar(&o.programs, "programs", "bin", "directory with kitbox and kit-guest")
	flag.StringVar(&o.only, "only", "", "take only these measurements: start, first, memory, compose, build, workspaces, egress, intercepted, closing or fleet")
	flag.IntVar(&o.fleet, "fleet", fleetSize, "have this many sandboxes at once, and list them; 0: not measured, as with -quick")
	flag.StringVar(&o.write, "write", "", "file whose measured part is replaced by this run")
	flag.Parse()
	asked := false
	flag.Visit(func(f *flag.Flag) { asked = asked || f.Name == "fleet" })
	if o.quick && !asked {
		o.fleet = 0
	}
	if err := mainErr(o); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

func mainErr(o options) error {
	if o.quick {
		o.rounds = 3
	}
	if o.rounds < 1 {
		return errors.New("at least one round is needed")
	}
	r, err := run(context.Background(), o)
	if err != nil {
		return err
	}
	fmt.Print(r.text())
	if o.write != "" {
		if err := r.write(o.write); err != nil {
			return err
		}
	}
	if missed := r.missed(); o.strict && missed > 0 {
		return fmt.Errorf("%d bars are missed", missed)
	}
	return nil
}

// run measures everything.
func run(ctx context.Context, o options) (_ *report, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("the peer needs root: run this as root")
	}
	// Keepers and containers become our children when those who started
	// them end, so that their processor time is counted too.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "kitbox-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	programs, err := filepath.Abs(o.programs)
	if err != nil {
		return nil, err
	}
	f, err := newFixture(ctx, filepath.Join(dir, "home"), programs)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	r := &report{machine: machine(), rounds: o.rounds, load: load()}
	for _, m := range []struct {
		name string
		take func(context.Context, options, *fixture, *report) error
	}{{"start", start}, {"first", first}, {"memory", memory}, {"compose", compose}, {"build", building}, {"workspaces", workspaces}, {"egress", egress}, {"intercepted", intercepted}, {"closing", closing}, {"fleet", fleet}} {
		if o.only != "" && o.only != m.name {
			continue
		}
		if err := m.take(ctx, o, f, r); err != nil {
			return nil, err
		}
	}
	r.loadAfter = load()
	return r, nil
}
