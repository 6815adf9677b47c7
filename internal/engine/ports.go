package engine

import (
	"context"
	"errors"
	"net"
	"strconv"

	"github.com/kitbox-dev/kitbox/internal/keeper/link"
	"github.com/kitbox-dev/kitbox/internal/publish"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// Ports implements [sandbox.Publisher].
func (b *box) Ports(ctx context.Context) ([]sandbox.Port, error) {
	var ports []publish.Port
	err := b.attended().Answering(ctx, func(ctx context.Context) (err error) {
		ports, err = b.keeper().Ports(ctx)
		return err
	})
	if errors.Is(err, link.ErrNone) {
		var r *publish.Record
		if r, err = b.portRecord(); err == nil {
			ports = r.Ports
		}
	}
	if err != nil {
		return nil, err
	}
	out := []sandbox.Port{}
	for _, p := range ports {
		out = append(out, shownPort(p))
	}
	return out, nil
}

// portRecord is what is recorded; a boot listens by it.
func (b *box) portRecord() (*publish.Record, error) {
	p, err := b.plan()
	if err != nil {
		return nil, err
	}
	return publish.Load(b.sb.Dir(), p.Ports)
}

func shownPort(p publish.Port) sandbox.Port {
	s := sandbox.Port{Container: p.Container, Transport: p.Transport, Host: p.Host, Name: p.Name, Source: p.Source, Addresses: []string{}}
	if p.Listening {
		s.Addresses = append(s.Addresses, net.JoinHostPort("127.0.0.1", strconv.Itoa(int(p.Host))))
		if !p.V4Only {
			s.Addresses = append(s.Addresses, net.JoinHostPort("::1", strconv.Itoa(int(p.Host))))
		}
	}
	return s
}

// Publish implements [sandbox.Publisher].
func (b *box) Publish(ctx context.Context, o sandbox.PublishOptions) (sandbox.Port, error) {
	p := publish.Port{Container: o.Container, Transport: o.Transport, Host: o.Host, Pinned: o.Host != 0, Source: publish.Operator}
	if p.Transport == "" {
		p.Transport = publish.TCP
	}
	var ports []publish.Port
	err := b.attended().Answering(ctx, func(ctx context.Context) (err error) {
		ports, err = b.keeper().Publish(ctx, p)
		return err
	})
	if errors.Is(err, link.ErrNone) {
		err = b.editPorts(ctx, func(r *publish.Record) error {
			err := r.Add(p)
			ports = r.Ports
			return err
		})
	}
	if err != nil {
		return sandbox.Port{}, b.named(err)
	}
	for _, q := range ports {
		if q.Key() == p.Key() {
			p = q
		}
	}
	return shownPort(p), nil
}

// Unpublish implements [sandbox.Publisher].
func (b *box) Unpublish(ctx context.Context, container uint16, transport string) error {
	if transport == "" {
		transport = publish.TCP
	}
	key := publish.Key(container, transport)
	err := b.attended().Answering(ctx, func(ctx context.Context) error { return b.keeper().Unpublish(ctx, key) })
	if errors.Is(err, link.ErrNone) {
		err = b.editPorts(ctx, func(r *publish.Record) error { return r.Drop(key) })
	}
	return b.named(err)
}

// editPorts changes the record of a sandbox that nobody keeps.
func (b *box) editPorts(ctx context.Context, edit func(*publish.Record) error) error {
	l, err := b.sb.Lock(ctx, "ports")
	if err != nil {
		return err
	}
	defer l.Unlock()
	r, err := b.portRecord()
	if err != nil {
		return err
	}
	if err := edit(r); err != nil {
		return err
	}
	return r.Save(b.sb.Dir())
}
