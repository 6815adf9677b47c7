package proxy

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
)

// TestWhatPipesHoldIsBounded has more of them in use than may be large, as many flows
// make whose readers take nothing.
func TestWhatPipesHoldIsBounded(t *testing.T) {
	var ps pipes
	var all []*pipe
	held := 0
	for range 3 * maxBig {
		p := ps.get()
		if p == nil {
			t.Fatal("no pipe")
		}
		all = append(all, p)
		held += p.size
	}
	if most := maxBig*most + 2*maxBig*some; held > most {
		t.Errorf("%d pipes hold %d bytes, and may hold %d", len(all), held, most)
	}
	for i, p := range all {
		if i%2 == 0 {
			ps.put(p)
		} else {
			ps.discard(p)
		}
	}
	if len(ps.free) != maxFree {
		t.Errorf("%d pipes are kept", len(ps.free))
	}
	ps.close()
	if ps.big != 0 {
		t.Errorf("%d large pipes are left", ps.big)
	}
	if p := ps.get(); p == nil {
		t.Error("none can be had then")
	} else if ps.put(p); ps.big != 0 || ps.free != nil {
		t.Error("it was kept")
	}
	starve(t)
	if ps.get() != nil || ps.big != 0 {
		t.Errorf("%d large pipes of none", ps.big)
	}
}

// TestSpliceIsFaithful sends random bytes in random pieces both ways at once, past
// readers that pause, until each end closes its half in its own time: what arrives is
// what was sent, whatever the pipes are like.
func TestSpliceIsFaithful(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, p *Proxy){
		"large pipes": func(*testing.T, *Proxy) {},
		"small pipes": func(_ *testing.T, p *Proxy) { p.pipes.big = maxBig },
		"pages": func(t *testing.T, p *Proxy) { // as of a user who has too many
			for range maxFree {
				var fds [2]int
				if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
					t.Fatal(err)
				}
				if _, err := unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, 4096); err != nil {
					t.Fatal(err)
				}
				p.pipes.put(&pipe{fds[0], fds[1], some})
			}
		},
		"none": func(t *testing.T, _ *Proxy) { starve(t) },
	} {
		t.Run(name, func(t *testing.T) {
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			const flows = 4
			p := &Proxy{}
			var ends [flows][4]*net.TCPConn
			for i := range flows {
				ends[i][0], ends[i][1] = pair(t)
				ends[i][2], ends[i][3] = pair(t)
			}
			prepare(t, p)
			var over sync.WaitGroup
			for i, e := range ends {
				f := &flow{client: e[0], cancel: func() {}, ended: make(chan struct{})}
				f.attach(e[2], route{})
				over.Go(func() { p.relay(f, e[2], audit.Decision{}, false) })
				for way, c := range [][2]*net.TCPConn{{e[1], e[3]}, {e[3], e[1]}} {
					r := rand.New(rand.NewPCG(seed, uint64(2*i+way)))
					sent := make([]byte, r.IntN(4<<20))
					for j := range sent {
						sent[j] = byte(r.Uint32())
					}
					pauses := rand.New(rand.NewPCG(seed+1, uint64(2*i+way)))
					over.Go(func() {
						for rest := sent; len(rest) > 0; {
							n := min(len(rest), 1+r.IntN(1<<r.IntN(20)))
							c[0].Write(rest[:n])
							rest = rest[n:]
						}
						c[0].CloseWrite()
					})
					over.Go(func() {
						c[1].SetReadDeadline(time.Now().Add(30 * time.Second))
						var got bytes.Buffer
						for {
							_, err := io.CopyN(&got, c[1], int64(1+pauses.IntN(1<<pauses.IntN(21))))
							if errors.Is(err, io.EOF) {
								break
							}
							if err != nil {
								t.Errorf("flow %d, way %d: %v after %d bytes of %d", i, way, err, got.Len(), len(sent))
								return
							}
							if pauses.IntN(8) == 0 {
								time.Sleep(time.Duration(pauses.IntN(3000)) * time.Microsecond)
							}
						}
						if !bytes.Equal(got.Bytes(), sent) {
							t.Errorf("flow %d, way %d: %d bytes came of %d, or others", i, way, got.Len(), len(sent))
						}
					})
				}
			}
			over.Wait()
			p.over()
		})
	}
}
