// Package publish makes ports of a sandbox reachable from the host: it listens
// on the host's loopback and carries what arrives to the loopback inside, so
// that a server which listens on 127.0.0.1 there works like any other.
//
// It listens nowhere else, and it never connects to anything but the loopback of
// the one machine. What is published, and on which port of the host, is recorded
// in the sandbox's state directory, so that a restart brings back the same.
package publish

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// The transports.
const (
	TCP = "tcp"
	UDP = "udp"
)

// Operator is the source of a port that the user published.
const Operator = "operator"

// A Port is one publication.
type Port struct {
	Container uint16 `json:"container"`
	Transport string `json:"transport"`
	Host      uint16 `json:"host"`             // on the loopback of both families; 0: not chosen yet
	Pinned    bool   `json:"pinned,omitempty"` // Host was chosen by the user, and no other will do
	Name      string `json:"name,omitempty"`
	Source    string `json:"source"` // "kit <ref>, <ref>" or [Operator]

	Listening bool `json:"listening,omitempty"` // not recorded
	V4Only    bool `json:"v4Only,omitempty"`    // the host has no ::1; not recorded
}

// Key is container/transport, which identifies a publication.
func (p Port) Key() string { return Key(p.Container, p.Transport) }

// Key is the identity of the publication of a port.
func Key(container uint16, transport string) string {
	return fmt.Sprintf("%d/%s", container, transport)
}

// A Record is what is kept of the ports of a sandbox.
type Record struct {
	Version  int      `json:"version"`
	Ports    []Port   `json:"ports"`
	Withheld []string `json:"withheld,omitempty"` // keys that Kits ask for and the user took back
}

const (
	recordName    = "ports.json"
	recordVersion = 1
)

// Load reads the record in a sandbox's state directory and brings it into line
// with what its Kits ask for. A missing file is an empty record.
func Load(dir string, declared []plan.Port) (*Record, error) {
	r := &Record{}
	name := filepath.Join(dir, recordName)
	b, err := os.ReadFile(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, durable.Explain(name, err)
	default:
		if err := json.Unmarshal(b, r); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if r.Version != recordVersion {
			return nil, fmt.Errorf("%s has version %d, this kitbox reads version %d", name, r.Version, recordVersion)
		}
	}
	r.Version = recordVersion
	var ports []Port
	for _, d := range declared {
		p := Port{Container: d.Container, Transport: d.Transport, Name: d.Name, Source: "kit " + strings.Join(d.Kits, ", ")}
		if slices.Contains(r.Withheld, p.Key()) {
			continue
		}
		if old := r.find(p.Key()); old != nil {
			p.Host, p.Pinned = old.Host, old.Pinned
		}
		ports = append(ports, p)
	}
	for _, p := range r.Ports {
		if p.Source == Operator && !slices.ContainsFunc(ports, func(q Port) bool { return q.Key() == p.Key() }) {
			ports = append(ports, p)
		}
	}
	r.Ports = ports
	return r, nil
}

// Save replaces the record.
func (r *Record) Save(dir string) error {
	c := *r
	c.Ports = slices.Clone(r.Ports)
	for i := range c.Ports {
		c.Ports[i].Listening, c.Ports[i].V4Only = false, false
	}
	b, err := json.MarshalIndent(c, "", "\t")
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, recordName), append(b, '\n'), 0o600)
}

func (r *Record) find(key string) *Port {
	for i := range r.Ports {
		if r.Ports[i].Key() == key {
			return &r.Ports[i]
		}
	}
	return nil
}

// Add records p. A port that is published already is [kiterr.ErrExists].
func (r *Record) Add(p Port) error {
	if p.Container == 0 || p.Transport != TCP && p.Transport != UDP {
		return fmt.Errorf("port %s: a port is 1 to 65535, with tcp or udp", p.Key())
	}
	if old := r.find(p.Key()); old != nil {
		return fmt.Errorf("port %s is published as %d already; unpublish it first: %w", p.Key(), old.Host, kiterr.ErrExists)
	}
	p.Listening, p.V4Only = false, false
	r.Withheld = slices.DeleteFunc(r.Withheld, func(k string) bool { return k == p.Key() })
	r.Ports = append(r.Ports, p)
	return nil
}

// Drop takes a publication back, also one that a Kit asks for.
func (r *Record) Drop(key string) error {
	p := r.find(key)
	if p == nil {
		return fmt.Errorf("port %s is not published: %w", key, kiterr.ErrNotFound)
	}
	if p.Source != Operator {
		r.Withheld = append(r.Withheld, key)
	}
	r.Ports = slices.DeleteFunc(r.Ports, func(p Port) bool { return p.Key() == key })
	return nil
}
