package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
)

// patientLookup bounds the lookup of a name that a proxy of the host's network
// resolves again. Many hosts behind one cannot resolve names outside, and some are
// left to wait by their resolver.
const patientLookup = 2 * time.Second

// behind returns what the name of req, which is reached through the proxy via,
// resolves to here, so that whoever runs the DNS of an allowed name cannot lead the
// proxy into its own network by it. (An owner who answers the proxy otherwise can;
// only the proxy can prevent that.) None is returned if it does not resolve here, and
// then no rule may deny addresses.
func (p *Proxy) behind(ctx context.Context, rules Rules, req egress.Request, via string) ([]netip.Addr, error) {
	addrs := p.lookupBehind(ctx, req.Host)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for i, a := range addrs {
		addrs[i] = a.Unmap()
		if err := p.judgeAddr(rules, req, true, addrs[i]); err != nil {
			return nil, err
		}
	}
	if len(addrs) == 0 {
		if d, ok := rules.Policy.DeniesAddrs(req.Phase, req.Port); ok {
			v := unjudged(req.Host, via, d)
			return nil, &refusal{v.Why, v}
		}
	}
	return addrs, nil
}

// unjudged is the refusal of a name that only the proxy via can resolve, while d
// denies addresses.
func unjudged(host, via string, d egress.Verdict) egress.Verdict {
	return egress.Verdict{Rule: d.Rule, Source: d.Source,
		Why: fmt.Sprintf("%s does not resolve here, so it cannot be told whether what the proxy %s connects to is %s", host, via, d.Why)}
}

// lookupBehind is lookup for names that need not resolve; those that did not just now
// are not looked up again.
func (p *Proxy) lookupBehind(ctx context.Context, name string) []netip.Addr {
	if p.unresolved.has(name) {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, patientLookup)
	defer cancel()
	addrs, err := p.lookup(bounded, name)
	if (err != nil || len(addrs) == 0) && ctx.Err() == nil {
		p.unresolved.add(name)
	}
	return slices.Clone(addrs)
}

// lookup resolves a name on the host.
func (p *Proxy) lookup(ctx context.Context, name string) ([]netip.Addr, error) {
	lookup := p.Lookup
	if lookup == nil {
		lookup = hostLookup
	}
	addrs, err := lookup(ctx, name)
	var nx *net.DNSError
	switch {
	case err == nil:
		return addrs, nil
	case errors.As(err, &nx) && nx.IsNotFound:
		return nil, fmt.Errorf("%s does not resolve", name)
	}
	return nil, fmt.Errorf("lookup of %s: %w", name, err)
}

// names remembers some for a while. Its zero value is empty.
type names struct {
	mu sync.Mutex
	at map[string]time.Time // guarded by mu
}

const (
	nameAge  = 30 * time.Second
	maxNames = 1024
)

func (n *names) has(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	at, ok := n.at[name]
	return ok && time.Since(at) < nameAge
}

func (n *names) add(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.at == nil || len(n.at) >= maxNames {
		n.at = map[string]time.Time{}
	}
	n.at[name] = time.Now()
}
