package proxy

import (
	"testing"

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
