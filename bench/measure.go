package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A sample is what one operation took.
type sample struct {
	wall, cpu time.Duration
}

func (s sample) plus(o sample) sample { return sample{s.wall + o.wall, s.cpu + o.cpu} }

// A series is one side of a comparison, a sample for each round.
type series []sample

// A stopwatch measures operations. Processor time is this process's and that of
// everything it started which has ended, so an operation that leaves processes
// to end by themselves is charged for them.
type stopwatch struct {
	staying map[int]bool // children that do not end
}

// newStopwatch takes the children there are now for such as stay.
func newStopwatch() (*stopwatch, error) {
	now, err := children()
	if err != nil {
		return nil, err
	}
	w := &stopwatch{map[int]bool{}}
	for _, pid := range now {
		w.staying[pid] = true
	}
	return w, nil
}

// settleTime is how long what an operation has left behind may take to end.
const settleTime = 10 * time.Second

// time runs op. What op leaves running is waited for outside the time.
func (w *stopwatch) time(op func() error) (sample, error) {
	self, kids, begun := used(unix.RUSAGE_SELF), used(unix.RUSAGE_CHILDREN), time.Now()
	if err := op(); err != nil {
		return sample{}, err
	}
	s := sample{wall: time.Since(begun), cpu: used(unix.RUSAGE_SELF) - self}
	if err := w.settle(); err != nil {
		return sample{}, err
	}
	s.cpu += used(unix.RUSAGE_CHILDREN) - kids
	return s, nil
}

// keep runs op, whose processes stay.
func (w *stopwatch) keep(op func() error) (sample, error) {
	self, kids, begun := used(unix.RUSAGE_SELF), used(unix.RUSAGE_CHILDREN), time.Now()
	if err := op(); err != nil {
		return sample{}, err
	}
	s := sample{time.Since(begun), used(unix.RUSAGE_SELF) - self + used(unix.RUSAGE_CHILDREN) - kids}
	now, err := children()
	for _, pid := range now {
		w.staying[pid] = true
	}
	return s, err
}

// turns runs steps, in round another one first, so that none always follows the one that
// leaves the most work to the kernel.
func (w *stopwatch) turns(round int, steps []func() error) error {
	for i := range steps {
		if err := steps[(round+i)%len(steps)](); err != nil {
			return err
		}
		if err := w.settle(); err != nil {
			return err
		}
	}
	return nil
}

// settle waits until every child that does not stay has ended, and collects
// those.
func (w *stopwatch) settle() error {
	for end := time.Now().Add(settleTime); ; {
		now, err := children()
		if err != nil {
			return err
		}
		var left []int
		for _, pid := range now {
			if got, err := unix.Wait4(pid, nil, unix.WNOHANG, nil); got == pid || errors.Is(err, unix.ECHILD) {
				delete(w.staying, pid)
			} else if !w.staying[pid] {
				left = append(left, pid)
			}
		}
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("processes %v have not ended", left)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// children lists the processes whose parent is this one.
func children() ([]int, error) {
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var out []int
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + d.Name() + "/stat")
		if err != nil {
			continue // it has ended
		}
		// The name is in parentheses and may have some of its own.
		rest := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(rest) > 1 && rest[1] == strconv.Itoa(os.Getpid()) {
			out = append(out, pid)
		}
	}
	return out, nil
}

func used(who int) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(who, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// quantile returns the smallest value that at least the share q of ds does not
// exceed.
func quantile[T cmp.Ordered](ds []T, q float64) T {
	ds = slices.Clone(ds)
	slices.Sort(ds)
	i := int(q*float64(len(ds))+0.999999) - 1
	return ds[min(max(i, 0), len(ds)-1)]
}

func median[T cmp.Ordered](ds []T) T { return quantile(ds, 0.5) }

func (s series) walls() (ds []time.Duration) {
	for _, x := range s {
		ds = append(ds, x.wall)
	}
	return ds
}

func (s series) cpus() (ds []time.Duration) {
	for _, x := range s {
		ds = append(ds, x.cpu)
	}
	return ds
}

// ratio compares two series round by round and returns the middle: what disturbs
// the machine for a while disturbs both sides of a round.
func ratio(ours, theirs []time.Duration) float64 {
	var rs []float64
	for i := range ours {
		if theirs[i] > 0 {
			rs = append(rs, float64(ours[i])/float64(theirs[i]))
		}
	}
	if len(rs) == 0 {
		return 0
	}
	return median(rs)
}
