package publish

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/guest/client"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// A Dialer reaches the loopback of the machine.
type Dialer struct {
	TCP func(ctx context.Context, port uint16, v6 bool) (client.HalfCloser, error)
	UDP func(ctx context.Context, port uint16, v6 bool) (net.Conn, error)
}

// bounds of what strangers on the host can make a sandbox's keeper hold.
const (
	maxFlows    = 512              // connections, or senders of datagrams, of one port
	dialTime    = 10 * time.Second // to the loopback inside
	udpIdle     = 60 * time.Second // after which a sender is forgotten
	acceptPause = 50 * time.Millisecond
	tries       = 32 // for a port that is free in both families
)

// A Publisher listens. Make it with [Open]; its methods can be called
// concurrently.
type Publisher struct {
	dir  string
	dial Dialer
	log  *slog.Logger

	mu   sync.Mutex
	rec  *Record              // guarded by mu
	open map[string]*listener // guarded by mu; by key
	done bool                 // guarded by mu
}

// Open listens for every port that is declared or recorded in dir. A port of the
// host that is taken by now is replaced by another, unless the user chose it;
// whatever cannot be had is an error in problems, and the rest works.
func Open(dir string, declared []plan.Port, d Dialer, log *slog.Logger) (p *Publisher, problems []error) {
	p = &Publisher{dir: dir, dial: d, log: log, open: map[string]*listener{}}
	rec, err := Load(dir, declared)
	if err != nil {
		return p, []error{err}
	}
	p.rec = rec
	if len(rec.Ports) == 0 {
		return p, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	changed := false
	for i := range rec.Ports {
		before := rec.Ports[i].Host
		if err := p.listen(&rec.Ports[i]); err != nil {
			problems = append(problems, err)
		}
		changed = changed || rec.Ports[i].Host != before
	}
	if changed {
		if err := rec.Save(dir); err != nil {
			problems = append(problems, err)
		}
	}
	return p, problems
}

// listen begins to serve port, and sets its Host. The caller holds mu.
func (p *Publisher) listen(port *Port) error {
	s, err := listen(port.Transport, port.Host)
	if err != nil && port.Host != 0 && !port.Pinned && errors.Is(err, unix.EADDRINUSE) {
		s, err = listen(port.Transport, 0)
	}
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("port %s: port %d of this machine is in use by another program; choose another, or none for a free one", port.Key(), port.Host)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("port %s: port %d of this machine takes a privilege; choose one from 1024 on", port.Key(), port.Host)
	case err != nil:
		return fmt.Errorf("port %s: %w", port.Key(), err)
	}
	port.Host, port.Listening, port.V4Only = s.host, true, s.v4only
	l := &listener{port: port.Container, sockets: s, dial: p.dial, log: p.log, flows: map[io.Closer]bool{}}
	p.open[port.Key()] = l
	l.serve()
	return nil
}

// List returns what is published.
func (p *Publisher) List() []Port {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rec == nil {
		return nil
	}
	return slices.Clone(p.rec.Ports)
}

var errClosed = errors.New("the sandbox is stopping")

// Publish adds a port and returns it with its Host.
func (p *Publisher) Publish(port Port) (Port, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done || p.rec == nil {
		return port, errClosed
	}
	withheld := slices.Clone(p.rec.Withheld)
	if err := p.rec.Add(port); err != nil {
		return port, err
	}
	added := p.rec.find(port.Key())
	err := p.listen(added)
	if err == nil {
		if err = p.rec.Save(p.dir); err == nil {
			return *added, nil
		}
	}
	p.shut(port.Key())
	p.rec.Ports, p.rec.Withheld = p.rec.Ports[:len(p.rec.Ports)-1], withheld
	return port, err
}

// Unpublish takes a port back and ends the connections through it.
func (p *Publisher) Unpublish(key string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done || p.rec == nil {
		return errClosed
	}
	if err := p.rec.Drop(key); err != nil {
		return err
	}
	p.shut(key)
	return p.rec.Save(p.dir)
}

// shut ends one listener. The caller holds mu.
func (p *Publisher) shut(key string) {
	if l := p.open[key]; l != nil {
		l.close()
		delete(p.open, key)
	}
}

// Close ends everything. Closing twice does nothing.
func (p *Publisher) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done = true
	for key := range p.open {
		p.shut(key)
	}
}

// sockets are the two of one port.
type sockets struct {
	host   uint16
	v4only bool
	tcp    []*net.TCPListener
	udp    []*net.UDPConn
}

func (s *sockets) close() {
	for _, l := range s.tcp {
		l.Close()
	}
	for _, l := range s.udp {
		l.Close()
	}
}

// listen takes the same port on the loopback of both families; 0 means one that
// is free in both. A host without ::1 gives 127.0.0.1 alone.
func listen(transport string, host uint16) (*sockets, error) {
	var err error
	for range tries {
		s := &sockets{host: host}
		if err = s.add(transport, "127.0.0.1"); err != nil {
			return nil, err
		}
		err = s.add(transport, "::1")
		switch {
		case err == nil:
			return s, nil
		case errors.Is(err, unix.EADDRNOTAVAIL), errors.Is(err, unix.EAFNOSUPPORT):
			s.v4only = true
			return s, nil
		}
		s.close()
		if host != 0 || !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	return nil, err
}

func (s *sockets) add(transport, ip string) error {
	addr := net.JoinHostPort(ip, strconv.Itoa(int(s.host)))
	family := "4"
	if ip == "::1" {
		family = "6"
	}
	if transport == UDP {
		a, err := net.ResolveUDPAddr("udp"+family, addr)
		if err != nil {
			return err
		}
		c, err := net.ListenUDP("udp"+family, a)
		if err != nil {
			return err
		}
		s.host = c.LocalAddr().(*net.UDPAddr).AddrPort().Port()
		s.udp = append(s.udp, c)
		return nil
	}
	a, err := net.ResolveTCPAddr("tcp"+family, addr)
	if err != nil {
		return err
	}
	l, err := net.ListenTCP("tcp"+family, a)
	if err != nil {
		return err
	}
	s.host = l.Addr().(*net.TCPAddr).AddrPort().Port()
	s.tcp = append(s.tcp, l)
	return nil
}
