package keeper

import (
	"context"
	"net"

	"github.com/kitbox-dev/kitbox/internal/driver"
	"github.com/kitbox-dev/kitbox/internal/guest/client"
	"github.com/kitbox-dev/kitbox/internal/keeper/link"
	"github.com/kitbox-dev/kitbox/internal/publish"
)

// publish makes the sandbox's ports reachable. One that cannot be had is a
// problem of the sandbox, not the end of it.
func (k *Keeper) publish() {
	cl := &client.Client{Dial: func(ctx context.Context) (net.Conn, error) { return k.Driver.Dial(ctx, k.Plan.Machine.ID) }}
	p, problems := publish.Open(k.Dir, k.Plan.Ports, publish.Dialer{
		TCP: cl.DialTCP,
		UDP: func(ctx context.Context, port uint16, v6 bool) (net.Conn, error) {
			ns, err := driver.NetNS(ctx, k.Driver, k.Plan.Machine.ID)
			if err != nil {
				return nil, err
			}
			defer ns.Close()
			return publish.DialUDP(ns, port, v6)
		},
	}, k.log())
	k.mu.Lock()
	k.ports = p
	for _, err := range problems {
		k.problems = append(k.problems, err.Error())
	}
	k.mu.Unlock()
}

// serveLoopback answers a request about ports.
func (k *Keeper) serveLoopback(c *net.UnixConn, r link.Request) {
	if err := k.admit(hangup(c), true); err != nil {
		k.answer(c, link.Reply{Error: link.Failed(err)})
		return
	}
	k.mu.Lock()
	p := k.ports
	k.mu.Unlock()
	if p == nil {
		k.answer(c, link.Reply{Error: link.Failed(errEnded(k.Plan.Name))})
		return
	}
	var err error
	if r.Unpublish != "" {
		err = p.Unpublish(r.Unpublish)
	}
	if err == nil && r.Publish != nil {
		_, err = p.Publish(*r.Publish)
	}
	k.answer(c, link.Reply{OK: err == nil, Error: link.Failed(err), Ports: p.List()})
}
