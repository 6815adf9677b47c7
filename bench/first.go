package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// What the whole command is judged by, in crun's time.
const (
	runBar  = 1
	runTail = 3 // 99th percentile, in medians

	// tailRounds is how many samples a 99th percentile has that is not just the
	// largest of them.
	tailRounds = 100
)

// durable is the name of a sandbox that is made for one command and stays.
const durable = "durable"

// says is what every side of these comparisons runs: one word, whose first byte ends
// the time.
var says = []string{"/bin/echo", "up"}

// first measures from the start of a program to the first byte of what the command
// in the sandbox prints, and the whole life of such a sandbox.
func first(_ context.Context, o options, f *fixture, r *report) error {
	peer, err := newCrun(filepath.Join(f.home, "crun-first"), f.layers)
	if err != nil {
		return err
	}
	defer peer.close()
	w, err := newStopwatch()
	if err != nil {
		return err
	}
	rounds := max(o.rounds, tailRounds)
	if o.quick {
		rounds = o.rounds
	}
	var run, whole, stays, peerRun, peerWhole series
	for i := range rounds {
		id := fmt.Sprintf("first%d-%d", os.Getpid(), i)
		steps := []func() error{
			func() error { // one command for one sandbox
				var byteAt time.Duration
				s, err := w.time(func() (err error) {
					byteAt, err = f.firstByte(append([]string{"run", "--rm", "--exec", workloadRef, "--kit", mixinRef, "--"}, says...)...)
					return err
				})
				run, whole = append(run, sample{wall: byteAt}), append(whole, s)
				return err
			},
			func() error { // the peer
				var byteAt time.Duration
				up, err := w.keep(func() error {
					begun := time.Now()
					if err := peer.create(id); err != nil {
						return err
					}
					if err := peer.start(id); err != nil {
						return err
					}
					said, err := peer.firstByte(id)
					byteAt = said.Sub(begun)
					return err
				})
				if err != nil {
					return err
				}
				down, err := w.time(func() error { return peer.remove(id) })
				peerRun, peerWhole = append(peerRun, sample{wall: byteAt}), append(peerWhole, up.plus(down))
				return err
			},
			func() error { // a sandbox that stays, and a command in it
				var byteAt time.Duration
				_, err := w.keep(func() error {
					begun := time.Now()
					if err := f.kitbox("create", "-q", "--name", durable, workloadRef, "--kit", mixinRef); err != nil {
						return err
					}
					before := time.Since(begun)
					after, err := f.firstByte(append([]string{"exec", durable, "--"}, says...)...)
					byteAt = before + after
					return err
				})
				stays = append(stays, sample{wall: byteAt})
				return errors.Join(err, f.kitbox("rm", durable))
			},
		}
		if err := w.turns(i, steps); err != nil {
			return err
		}
	}
	const ours = "`kitbox run --rm --exec KIT --kit KIT2 -- echo`, boundary and 3 hooks"
	r.add(tailed(compared(fmt.Sprintf("%s: from its start to the first byte of output, %d rounds", ours, rounds), "crun create, start, exec, to the same", run, peerRun, runBar, 0), run))
	r.add(tailed(compared(fmt.Sprintf("%s: its whole life, %d rounds", ours, rounds), "crun create, start, exec, delete", whole, peerWhole, runBar, 0), whole))
	r.add(compared("`kitbox create`, on disk for good, and `kitbox exec`: from the start to the first byte of output", "crun create, start, exec, to the same", stays, peerRun, 0, 0))
	return nil
}

// tailed judges l by the tail of s as well.
func tailed(l line, s series) line {
	tail := float64(quantile(s.walls(), 0.99)) / float64(median(s.walls()))
	l.bar += fmt.Sprintf(", p99 ≤ %d× p50 (%.1f×)", runTail, tail)
	l.ok = verdict(l.ok == pass && tail <= runTail)
	return l
}

// firstByte runs the program to its end and returns how long it took to print the
// first byte.
func (f *fixture) firstByte(args ...string) (time.Duration, error) {
	errs, err := os.CreateTemp("", "kitbox-bench-err-")
	if err != nil {
		return 0, err
	}
	defer os.Remove(errs.Name())
	defer errs.Close()
	cmd := exec.Command(filepath.Join(f.programs, "kitbox"), args...)
	cmd.Stderr = errs
	begun := time.Now()
	said, err := hear(cmd, cmd.Run)
	if err != nil {
		b, _ := os.ReadFile(errs.Name())
		return 0, fmt.Errorf("kitbox %s: %w: %s", args[0], err, b)
	}
	return said.Sub(begun), nil
}

// hear gives cmd a pipe for its output, has run run it, and returns when the first
// byte of what [says] prints arrived.
func hear(cmd *exec.Cmd, run func() error) (said time.Time, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return said, err
	}
	defer r.Close()
	cmd.Stdout = w
	ended := make(chan error, 1)
	go func() {
		err := run()
		w.Close() // so that a program that says nothing is not waited for
		ended <- err
	}()
	var b [1]byte
	_, err = io.ReadFull(r, b[:])
	said = time.Now()
	rest, rerr := io.ReadAll(io.LimitReader(r, 1<<10))
	err = errors.Join(err, rerr, <-ended)
	if got := string(b[:]) + string(rest); err == nil && got != says[1]+"\n" {
		err = fmt.Errorf("it printed %q", got)
	}
	return said, err
}
