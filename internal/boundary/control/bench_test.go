package control_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"sort"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/boundary/control"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// BenchmarkStart is what a boundary adds to the start of a sandbox.
func BenchmarkStart(b *testing.B) {
	for _, staged := range []bool{false, true} {
		name := "whole"
		if staged {
			name = "prepared"
		}
		b.Run(name, func(b *testing.B) { benchmarkStart(b, staged) })
	}
}

func benchmarkStart(b *testing.B, staged bool) {
	p := policy(b, "runtime allow *.example.com")
	var cpu time.Duration
	var starts, closes []time.Duration
	for b.Loop() {
		g := newGuest(b)
		c := control.Config{GuestNetNS: g.ns, Phase: plan.Runtime, Policy: p}
		if staged {
			var err error
			if c.Stage, err = control.Prepare(); err != nil {
				b.Fatal(err)
			}
		}
		t, used := time.Now(), cpuTime()
		x, err := control.Start(context.Background(), c)
		if err != nil {
			b.Fatal(err)
		}
		starts = append(starts, time.Since(t))
		cpu += cpuTime() - used
		t = time.Now()
		if err := x.Close(); err != nil {
			b.Fatal(err)
		}
		closes = append(closes, time.Since(t))
		g.ns.Close()
	}
	b.ReportMetric(cpu.Seconds()*1000/float64(len(starts)), "ms-start-cpu")
	sort.Slice(closes, func(i, j int) bool { return closes[i] < closes[j] })
	b.ReportMetric(float64(closes[len(closes)/2].Microseconds())/1000, "ms-close-p50")
	sort.Slice(starts, func(i, j int) bool { return starts[i] < starts[j] })
	b.ReportMetric(float64(starts[len(starts)/2].Microseconds())/1000, "ms-start-p50")
	b.ReportMetric(float64(starts[len(starts)*9/10].Microseconds())/1000, "ms-start-p90")
}

// BenchmarkThroughput moves bytes from the sandbox to a server on the host's
// loopback, and in the same run without a boundary between. The ratio is what
// to look at: the machine is shared.
func BenchmarkThroughput(b *testing.B) {
	const size = 1 << 30
	g := newGuest(b)
	at := serve(b, "tcp4", func(c net.Conn) {
		var want [1]byte
		if _, err := io.ReadFull(c, want[:]); err != nil {
			return
		}
		if want[0] == 'd' {
			pour(c, size)
			return
		}
		drain(c, size)
		c.Write(want[:])
	})
	start(b, g, control.Config{Policy: policy(b, "runtime allow bulk.example"), Routes: []plan.Route{route("bulk.example", at)}})

	direct := func() (net.Conn, error) { return net.Dial("tcp", at.String()) }
	through := func() (net.Conn, error) { return g.dialName("ip4", "bulk.example", 80) }
	for _, dir := range []string{"up", "down"} {
		b.Run(dir, func(b *testing.B) {
			var took [2]time.Duration
			var cpu [2]time.Duration
			for b.Loop() {
				for i, dial := range []func() (net.Conn, error){direct, through} {
					c, err := dial()
					if err != nil {
						b.Fatal(err)
					}
					t, used := time.Now(), cpuTime()
					if err := transfer(c, dir, size); err != nil {
						b.Fatal(err)
					}
					took[i] += time.Since(t)
					cpu[i] += cpuTime() - used
					c.Close()
				}
			}
			gb := float64(size) / 1e9 * float64(b.N)
			b.ReportMetric(8*gb/took[0].Seconds(), "Gbit/s-direct")
			b.ReportMetric(8*gb/took[1].Seconds(), "Gbit/s-boundary")
			b.ReportMetric(took[0].Seconds()/took[1].Seconds(), "ratio")
			b.ReportMetric((cpu[1]-cpu[0]).Seconds()/gb, "cpu-s/GB-added")
		})
	}
}

func transfer(c net.Conn, dir string, size int64) error {
	if dir == "down" {
		if _, err := c.Write([]byte("d")); err != nil {
			return err
		}
		return drain(c, size)
	}
	if _, err := c.Write([]byte("u")); err != nil {
		return err
	}
	if err := pour(c, size); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 1))
	return err
}

func pour(w io.Writer, size int64) error {
	buf := make([]byte, 256<<10)
	for left := size; left > 0; {
		n, err := w.Write(buf[:min(left, int64(len(buf)))])
		if err != nil {
			return err
		}
		left -= int64(n)
	}
	return nil
}

func drain(r io.Reader, size int64) error {
	buf := make([]byte, 256<<10)
	for left := size; left > 0; {
		n, err := r.Read(buf[:min(left, int64(len(buf)))])
		if err != nil {
			return fmt.Errorf("%d bytes short: %w", left, err)
		}
		left -= int64(n)
	}
	return nil
}

// cpuTime is what this process has used. Client, boundary and server are one
// process here, so the difference to the direct transfer is the boundary.
func cpuTime() time.Duration {
	var u unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkConnect is a connection to a name that is already resolved, with
// one byte there and back, direct and through the boundary.
func BenchmarkConnect(b *testing.B) {
	g := newGuest(b)
	at := serve(b, "tcp4", func(c net.Conn) { io.CopyN(c, c, 1) })
	start(b, g, control.Config{Policy: policy(b, "runtime allow one.example"), Routes: []plan.Route{route("one.example", at)}})
	a, err := g.resolve("one.example", "ip4")
	if err != nil {
		b.Fatal(err)
	}
	run := func(b *testing.B, addr string) {
		var took []time.Duration
		for b.Loop() {
			t := time.Now()
			c, err := net.Dial("tcp", addr)
			if err != nil {
				b.Fatal(err)
			}
			c.Write([]byte{1})
			if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
				b.Fatal(err)
			}
			took = append(took, time.Since(t))
			c.Close()
		}
		sort.Slice(took, func(i, j int) bool { return took[i] < took[j] })
		b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs-p50")
	}
	b.Run("direct", func(b *testing.B) { run(b, at.String()) })
	b.Run("boundary", func(b *testing.B) {
		if err := g.do(func() error { run(b, fmt.Sprintf("%s:80", a)); return nil }); err != nil {
			b.Fatal(err)
		}
	})
}
