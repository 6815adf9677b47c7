package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// What many sandboxes at once are judged by.
const (
	listBar   = time.Second
	fleetSize = 300
	makers    = 4 // at a time
	listings  = 5
)

// fleet has many sandboxes at once and lists them.
func fleet(_ context.Context, o options, f *fixture, r *report) (err error) {
	if o.fleet <= 0 {
		return nil
	}
	names := make([]string, o.fleet)
	for i := range names {
		names[i] = fmt.Sprintf("fleet%d", i)
	}
	before, err := available()
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, each(names, func(n string) error { return f.kitbox("rm", n) }))
	}()
	begun := time.Now()
	if err := each(names, func(n string) error { return f.kitbox("create", "-q", "--name", n, workloadRef, "--kit", mixinRef) }); err != nil {
		return err
	}
	took := time.Since(begun)
	time.Sleep(idleTime)
	after, err := available()
	if err != nil {
		return err
	}
	var lists series
	for range listings {
		begun := time.Now()
		out, err := exec.Command(filepath.Join(f.programs, "kitbox"), "ls").Output()
		if err != nil {
			return err
		}
		lists = append(lists, sample{wall: time.Since(begun)})
		if ready := strings.Count(string(out), " ready "); ready != o.fleet+1 {
			return fmt.Errorf("%d sandboxes are ready, want %d", ready, o.fleet+1)
		}
	}
	r.add(line{what: fmt.Sprintf("`kitbox ls` of %d running sandboxes", o.fleet+1), ours: times(lists), peer: "–",
		theirs: fmt.Sprintf("made in %s, %s of the machine's memory each", show(took), mib((before-after)/int64(o.fleet))),
		bar:    "within " + show(listBar), ok: verdict(median(lists.walls()) <= listBar)})
	return nil
}

// each does f to all names, a few at a time.
func each(names []string, f func(string) error) error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error // guarded by mu
	next := make(chan string)
	for range makers {
		wg.Go(func() {
			for n := range next {
				if err := f(n); err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
				}
			}
		})
	}
	for _, n := range names {
		next <- n
	}
	close(next)
	wg.Wait()
	return errors.Join(errs...)
}
