package dockerauth

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/store/durable"
)

// A memory is what registries have said, as the state file has it. Nothing of it
// is secret. A client that has learned where tokens are issued goes on with that
// when the keeper is another one, and the login must be shown there all the same.
type memory struct {
	Version    int              `json:"version"`
	Registries []memoryRegistry `json:"registries"`
	Services   []memoryService  `json:"services"`
}

type memoryRegistry struct {
	Registry string `json:"registry"`
	Asks     string `json:"asks"` // "basic" or "bearer"
}

type memoryService struct {
	Host       string   `json:"host"`
	Port       uint16   `json:"port"`
	Paths      []string `json:"paths"`
	Registries []string `json:"registries"`
}

// maxMemory bounds the state file, in bytes; the bounds of what is learned are
// far below it.
const maxMemory = 1 << 20

// recall takes up what an earlier presenter has learned. Of registries that are
// not granted any more nothing is.
func (p *Presenter) recall() error {
	if p.state == "" {
		return nil
	}
	b, err := os.ReadFile(p.state)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return durable.Explain(p.state, err)
	}
	var m memory
	if err := json.Unmarshal(b, &m); err != nil || m.Version != 1 || len(b) > maxMemory {
		return fmt.Errorf("%s does not say what registries asked for; delete it, and they are asked again", p.state)
	}
	for _, g := range p.grants {
		for _, r := range m.Registries {
			if r.Registry == g.Registry && (r.Asks == "basic" || r.Asks == "bearer") {
				g.asked(r.Asks)
			}
		}
		for _, s := range m.Services {
			if !slices.Contains(s.Registries, g.Registry) {
				continue
			}
			for _, path := range s.Paths {
				p.learn(g, place{s.Host, s.Port}, path)
			}
		}
	}
	return nil
}

// remember writes the state file. One that cannot be written costs no request.
func (p *Presenter) remember() {
	if p.state == "" {
		return
	}
	m := memory{Version: 1}
	for _, g := range p.grants {
		if asks := g.scheme(); asks != "" {
			m.Registries = append(m.Registries, memoryRegistry{g.Registry, asks})
		}
	}
	p.writing.Lock()
	defer p.writing.Unlock()
	p.mu.Lock()
	for at, s := range p.services {
		o := memoryService{Host: at.host, Port: at.port, Paths: slices.Clone(s.paths)}
		for _, g := range s.grants {
			o.Registries = append(o.Registries, g.Registry)
		}
		m.Services = append(m.Services, o)
	}
	p.mu.Unlock()
	b, err := json.MarshalIndent(m, "", "  ")
	if err == nil {
		err = durable.WriteFile(p.state, append(b, '\n'), 0o600)
	}
	if err != nil {
		p.log(audit.Decision{Kind: audit.Request, Verdict: audit.Failed, Host: "*", Protocol: "https",
			Why: fmt.Sprintf("what registries asked for is forgotten when the keeper ends: %v", err)})
	}
}
