package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/boundary/intercept"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// TestWhatIsDoneForARequestEndsWithItsPhase has requests whose connections the change
// cuts, whose connections somebody else has cut a moment before, and whose connections
// stay: a token that is fetched for one outlives its connection.
func TestWhatIsDoneForARequestEndsWithItsPhase(t *testing.T) {
	rules := func(stays bool) Rules {
		rs := []plan.EgressRule{{Phase: plan.Install, Pattern: "a.example", Allow: true, Source: "kit k"}}
		if stays {
			rs = append(rs, plan.EgressRule{Phase: plan.Runtime, Pattern: "a.example", Allow: true, Source: "kit k", Methods: []string{"GET"}, Paths: []string{"/other"}})
		}
		p, err := egress.New(rs)
		if err != nil {
			t.Fatal(err)
		}
		return Rules{Phase: plan.Runtime, Policy: p}
	}
	for what, c := range map[string]struct{ ended, stays, alone bool }{
		"cut": {}, "cut before": {ended: true}, "stays": {stays: true}, "stays, and was cut before": {ended: true, stays: true},
		"cannot stay": {stays: true, alone: true},
	} {
		client, _ := pair(t)
		cancelled, told := 0, 0
		q := &request{method: "GET", path: "/", proof: NewProof(nil), cancel: func(error) intercept.Cancelled {
			cancelled++
			return intercept.Cancelled{Alone: c.alone, Tell: func() { told++ }}
		}}
		f := &flow{host: "a.example", named: true, port: 443, client: client, cancel: func() {}, ended: make(chan struct{}), requests: []*request{q}}
		if c.ended {
			f.end()
		}
		var log []audit.Decision
		p := &Proxy{Rules: func() Rules { return rules(c.stays) }, Log: func(ds ...audit.Decision) { log = append(log, ds...) },
			flows: map[*flow]struct{}{f: {}}}
		done := q.proof.revocation()
		n := p.Rejudge()
		p.tells.Wait()
		select {
		case <-done:
		default:
			t.Errorf("%s: what is done for the request goes on", what)
		}
		ends, tells, cuts := 0, 0, 0
		if c.stays && !c.ended {
			ends, tells = 1, 1
		}
		if (!c.stays || c.alone) && !c.ended {
			tells, cuts = 0, 1
		}
		if f.gate.shut.Load() != (c.ended || cuts > 0) {
			t.Errorf("%s: the connection is cut: %v", what, f.gate.shut.Load())
		}
		if n != cuts || cancelled != ends || told != tells {
			t.Errorf("%s: %d connections cut, the request cancelled %d times and told %d times", what, n, cancelled, told)
		}
		requests := 0
		for _, d := range log {
			if d.Kind != audit.Cut || d.Count != 1 {
				t.Errorf("%s: the log says %+v", what, d)
			}
			if d.Path == "/" {
				requests++
			}
		}
		if len(log) != cuts+1 || requests != 1 {
			t.Errorf("%s: the log says %+v", what, log)
		}
		if p.Rejudge(); len(log) != cuts+1 {
			t.Errorf("%s: the log says it again: %+v", what, log)
		}
		p.tells.Wait()
	}
}

// TestConnectionsToOnePlaceAreOneLine cuts some to each of two.
func TestConnectionsToOnePlaceAreOneLine(t *testing.T) {
	flows := map[*flow]struct{}{}
	for i, host := range []string{"a.example", "b.example", "a.example", "a.example", "a.example"} {
		client, _ := pair(t)
		flows[&flow{host: host, named: true, port: 443, v6: i == 3, client: client, cancel: func() {}, ended: make(chan struct{})}] = struct{}{}
	}
	var log []audit.Decision
	p := &Proxy{Rules: func() Rules { return Rules{Phase: plan.Runtime} }, Log: func(ds ...audit.Decision) { log = append(log, ds...) }, flows: flows}
	if n := p.Rejudge(); n != 5 {
		t.Errorf("%d were cut", n)
	}
	p.tells.Wait()
	counts := map[string]int{}
	for _, d := range log {
		counts[d.Host] += d.Count
	}
	if len(log) != 2 || counts["a.example"] != 4 || counts["b.example"] != 1 {
		t.Errorf("%+v", log)
	}
}

// TestNobodyLearnsOfACutBeforeTheLog has a log that is slow, flows that are busy both
// ways, so that whoever carries them notices at once, one that is being dialled for, and
// one whose rules change while it is dialled.
func TestNobodyLearnsOfACutBeforeTheLog(t *testing.T) {
	unharmed := func(c *net.TCPConn) error {
		if _, err := io.Copy(io.Discard, c); !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		return nil
	}
	cut := func(ds []audit.Decision) bool { return ds[0].Kind == audit.Cut }

	t.Run("busy", func(t *testing.T) {
		client, sandbox := pair(t)
		up, host := pair(t)
		f := &flow{host: "a.example", named: true, port: 443, client: client, cancel: func() {}, ended: make(chan struct{})}
		f.attach(up, route{})
		done, moved, learnt := make(chan struct{}), make(chan struct{}, 2), make(chan error, 2)
		p := &Proxy{Rules: func() Rules { return Rules{Phase: plan.Runtime} }, flows: map[*flow]struct{}{f: {}}}
		p.Log = func(...audit.Decision) {
			<-done
			select {
			case err := <-learnt:
				t.Errorf("an end reads %v while the log is written", err)
			case <-time.After(50 * time.Millisecond):
			}
		}
		go func() {
			defer close(done)
			defer f.end()
			p.relay(f, up, audit.Decision{}, false)
		}()
		for _, c := range []*net.TCPConn{sandbox, host} {
			go func() {
				for chunk := make([]byte, 64<<10); ; {
					if _, err := c.Write(chunk); err != nil {
						return
					}
				}
			}()
			go func() {
				_, err := io.ReadFull(c, make([]byte, 10))
				moved <- struct{}{}
				if err == nil {
					_, err = io.Copy(io.Discard, c)
				}
				learnt <- err
			}()
		}
		<-moved
		<-moved
		p.Rejudge()
		p.tells.Wait()
		if f.mu.Lock(); !f.closed {
			t.Error("afterwards it is open")
		}
		f.mu.Unlock()
	})

	for what, rules := range map[string][]plan.EgressRule{
		"dialled for": nil,
		"dialled": {{Phase: plan.Runtime, Pattern: "a.example", Allow: true, Source: "kit k"},
			{Phase: plan.Runtime, Pattern: "93.184.216.0/24", Source: "kit k"}},
	} {
		t.Run(what, func(t *testing.T) {
			before, err := egress.New([]plan.EgressRule{{Phase: plan.Runtime, Pattern: "a.example", Allow: true, Source: "kit k"}})
			if err != nil {
				t.Fatal(err)
			}
			after, err := egress.New(rules)
			if err != nil {
				t.Fatal(err)
			}
			client, sandbox := pair(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			f := &flow{host: "a.example", named: true, port: 443, client: client, cancel: cancel, ended: make(chan struct{})}
			woken := make(chan struct{})
			defer context.AfterFunc(ctx, func() { f.end(); close(woken) })()
			policy, lines := before, 0
			dialling := make(chan struct{})
			p := &Proxy{Rules: func() Rules { return Rules{Phase: plan.Runtime, Policy: policy} }, flows: map[*flow]struct{}{f: {}},
				Own: func(netip.Addr) bool { return false },
				Lookup: func(context.Context, string) ([]netip.Addr, error) {
					return []netip.Addr{netip.MustParseAddr("93.184.216.34")}, nil
				},
				Log: func(ds ...audit.Decision) {
					if !cut(ds) {
						return
					}
					lines++
					if rules == nil {
						<-woken
					}
					sandbox.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
					if err := unharmed(sandbox); err != nil {
						t.Errorf("the sandbox reads %v while the log is written", err)
					}
				}}
			p.Dial = func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
				if rules != nil {
					policy = after
					if n := p.Rejudge(); n != 0 {
						t.Errorf("%d were cut while nothing was known of their addresses", n)
					}
					up, _ := pair(t)
					return up, nil
				}
				close(dialling)
				<-ctx.Done()
				return nil, ctx.Err()
			}
			dialled := make(chan error, 1)
			was := p.Rules()
			go func() {
				_, err := p.dial(ctx, f, was, audit.Decision{Kind: audit.Connect}, nil)
				dialled <- err
			}()
			if rules == nil {
				<-dialling
				policy = after
				p.Rejudge()
			}
			if err := <-dialled; err == nil {
				t.Error("it goes on")
			}
			p.tells.Wait()
			if lines != 1 || p.Flows() != 0 {
				t.Errorf("%d lines, %d flows", lines, p.Flows())
			}
			sandbox.SetReadDeadline(time.Now().Add(10 * time.Second))
			if _, err := io.Copy(io.Discard, sandbox); !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("afterwards the sandbox reads %v", err)
			}
		})
	}
}

// TestADialThatIsNotMadeIsNotWaitedFor has one begin on a flow that has been stopped
// while something was moved.
func TestADialThatIsNotMadeIsNotWaitedFor(t *testing.T) {
	client, _ := pair(t)
	f := &flow{client: client, cancel: func() {}, ended: make(chan struct{})}
	f.gate.enter()
	if first, idle := f.stop(); !first || idle {
		t.Fatal("stop")
	}
	f.gate.leave()
	p := &Proxy{}
	if _, err := p.dial(t.Context(), f, Rules{}, audit.Decision{}, nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("it was dialled for: %v", err)
	}
	now := make(chan time.Time)
	close(now)
	if !f.undialled(now) {
		t.Error("it is waited for")
	}
	f.tell()
}

// TestWhoeverChangesTheRulesWaits has two do so at once, the first of whom waits for what
// is being moved.
func TestWhoeverChangesTheRulesWaits(t *testing.T) {
	client, _ := pair(t)
	f := &flow{host: "a.example", named: true, port: 443, client: client, cancel: func() {}, ended: make(chan struct{})}
	p := &Proxy{Rules: func() Rules { return Rules{Phase: plan.Runtime} }, Log: func(...audit.Decision) {}, flows: map[*flow]struct{}{f: {}}}
	f.gate.enter()
	leave := sync.OnceFunc(f.gate.leave)
	defer leave()
	done := make(chan int, 2)
	go func() { done <- p.Rejudge() }()
	<-f.ended
	go func() { done <- p.Rejudge() }()
	select {
	case <-done:
		t.Fatal("something is being moved")
	case <-time.After(50 * time.Millisecond):
	}
	leave()
	if n := <-done + <-done; n != 1 {
		t.Errorf("%d were cut", n)
	}
	p.tells.Wait()
}

// TestPatienceIsForTheWholeChange looks at what is left of it as a change takes longer.
func TestPatienceIsForTheWholeChange(t *testing.T) {
	for into := time.Duration(0); into < 2*heed; into += heed / 10 {
		left := heedLeft(into)
		if left < heedLeast || into+left > heed && left != heedLeast {
			t.Errorf("%v into a change requests have %v", into, left)
		}
	}
	if heedLeft(0) != heed {
		t.Errorf("at first they have %v", heedLeft(0))
	}
}
