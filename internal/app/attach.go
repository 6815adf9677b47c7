package app

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/ca"
	"github.com/kitbox-dev/kitbox/internal/boundary/control"
	"github.com/kitbox-dev/kitbox/internal/boundary/credential"
	"github.com/kitbox-dev/kitbox/internal/boundary/dns"
	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/boundary/proxy"
	"github.com/kitbox-dev/kitbox/internal/keeper"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/registry"
	"github.com/kitbox-dev/kitbox/internal/secret/vault"
)

// namesFile remembers which name got which synthetic address, so that addresses
// that programs of the sandbox still hold mean the same to the next keeper.
const namesFile = "names.jsonl"

// rootsVariable names a file with certificates of authorities that the boundary
// accepts besides the system's, when it verifies a host it looks into.
const rootsVariable = "KITBOX_UPSTREAM_CA"

// certificates are what sandboxes of this home trust besides what their images do:
// its authority, and those that the operator accepts for hosts, which are passed
// through as often as they are looked into.
func certificates(ctx context.Context, dir, roots string) ([]string, error) {
	a, err := ca.Open(ctx, dir)
	if err != nil {
		return nil, err
	}
	certs := []string{a.PEM()}
	if roots == "" {
		return certs, nil
	}
	b, err := os.ReadFile(roots)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", rootsVariable, err)
	}
	for len(b) > 0 {
		var block *pem.Block
		if block, b = pem.Decode(b); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue // a key, say, which is not for them
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", rootsVariable, roots, err)
		}
		certs = append(certs, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: block.Bytes})))
	}
	return certs, nil
}

// An attacher makes boundaries for sandboxes of one home.
type attacher struct {
	home      string
	authority string // directory of the home's authority
	roots     string // file; empty: the system's alone
	secrets   *vault.Vault
	ahead     *staging
}

// A staging is the part of the next boundary that is made while its machine comes
// up: making the namespace and its filter takes about as long as the machine takes
// to build itself, and neither needs the other.
type staging struct {
	mu   sync.Mutex
	next chan *control.Stage // gets one, or nil; guarded by mu; nil when none was begun
}

// prepare begins a stage, unless one waits to be taken.
func (a attacher) prepare() {
	a.ahead.mu.Lock()
	defer a.ahead.mu.Unlock()
	if a.ahead.next != nil {
		return
	}
	next := make(chan *control.Stage, 1)
	a.ahead.next = next
	go func() {
		stage, err := control.Prepare()
		if err != nil {
			stage = nil // Start tries again, and says what is wrong
		}
		next <- stage
	}()
}

// stage takes what was begun; nil when nothing was.
func (a attacher) stage() *control.Stage {
	a.ahead.mu.Lock()
	defer a.ahead.mu.Unlock()
	if a.ahead.next == nil {
		return nil
	}
	defer func() { a.ahead.next = nil }()
	return <-a.ahead.next
}

// leaf opens the authority when it is first needed: most sandboxes never do.
func (a attacher) leaf() func(host string) (*tls.Certificate, error) {
	open := sync.OnceValues(func() (*ca.Authority, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		return ca.Open(ctx, a.authority)
	})
	return func(host string) (*tls.Certificate, error) {
		authority, err := open()
		if err != nil {
			return nil, err
		}
		return authority.Leaf(host)
	}
}

// pool is who may sign for hosts; nil is the system's.
func (a attacher) pool() (*x509.CertPool, error) {
	if a.roots == "" {
		return nil, nil
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(a.roots)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", rootsVariable, err)
	}
	if !pool.AppendCertsFromPEM(b) {
		return nil, fmt.Errorf("%s: %s holds no certificate", rootsVariable, a.roots)
	}
	return pool, nil
}

// attach puts a boundary for p, with the rules given, around a network namespace.
func (a attacher) attach(ctx context.Context, netns *os.File, p *plan.Plan, rules []plan.EgressRule, phase plan.Phase, log *audit.Log, dir string) (keeper.Boundary, error) {
	policy, err := egress.New(rules)
	if err != nil {
		return nil, err
	}
	services := egress.ServicesOf(p)
	policy = policy.WithServices(services)
	roots, err := a.pool()
	if err != nil {
		return nil, err
	}
	presenter, err := a.presenter(p)
	if err != nil {
		return nil, err
	}
	names, err := openNames(filepath.Join(dir, namesFile))
	if err != nil {
		return nil, err
	}
	docker, err := logins(p, dir, log.Write)
	if err != nil {
		names.close()
		return nil, err
	}
	var presenters proxy.Presenters
	if docker != nil {
		presenters = append(presenters, docker)
	}
	if presenter != nil {
		presenters = append(presenters, presenter)
	}
	leaf := a.leaf()
	var up atomic.Pointer[control.Boundary]
	now := func() plan.Phase {
		if b := up.Load(); b != nil {
			return b.Phase()
		}
		return phase
	}
	kits, err := openRegistry(a.home, p, leaf, now, log.Write)
	if err != nil {
		names.close()
		return nil, err
	}
	stage := a.stage()
	b, err := control.Start(ctx, control.Config{Sandbox: p.Name, GuestNetNS: netns, Stage: stage, Phase: phase, Policy: policy,
		Routes: p.Egress.Routes, Log: log.Write, Failing: log.Failing, Names: names.earlier, OnName: names.add,
		Leaf: leaf, Roots: roots, Service: dialRegistry(kits), Presenter: presenters, Upstream: through(p.Egress.Upstream, roots)})
	if err != nil {
		if stage != nil {
			stage.Close()
		}
		names.close()
		if kits != nil {
			kits.Close()
		}
		return nil, err
	}
	up.Store(b)
	return boundary{b, names, services, kits}, nil
}

// presenter presents the credentials of p; nil when it has none.
func (a attacher) presenter(p *plan.Plan) (proxy.Presenter, error) {
	if len(p.Credentials) == 0 {
		return nil, nil
	}
	return credential.New(p.Credentials, &credential.Wallet{Vault: a.secrets, Sandbox: p.Name})
}

// boundary is a [control.Boundary] as the keeper wants it.
type boundary struct {
	b        *control.Boundary
	names    *names
	services []egress.Service
	registry *registry.Server // nil if there is none
}

// SetPhase implements [keeper.Boundary].
func (b boundary) SetPhase(_ context.Context, p plan.Phase) error {
	b.b.SetPhase(p)
	return nil
}

// SetRules implements [keeper.Boundary].
func (b boundary) SetRules(_ context.Context, rules []plan.EgressRule) error {
	policy, err := egress.New(rules)
	if err != nil {
		return err
	}
	b.b.SetPolicy(policy.WithServices(b.services))
	return nil
}

// Close implements [keeper.Boundary].
func (b boundary) Close() error {
	err := b.b.Close()
	if b.registry != nil {
		b.registry.Close()
	}
	return errors.Join(err, b.names.close())
}

// names is the file of synthetic names, one entry a line; later lines win.
type names struct {
	earlier []dns.Entry

	mu sync.Mutex
	f  *os.File // guarded by mu
}

func openNames(path string) (*names, error) {
	n := new(names)
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		var e dns.Entry
		// A line that a crash cut short is a name that nobody was told of.
		if json.Unmarshal(s.Bytes(), &e) == nil && e.Name != "" && e.Index != 0 {
			n.earlier = append(n.earlier, e)
		}
	}
	if n.f, err = os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600); err != nil {
		return nil, err
	}
	if len(b) > 0 && b[len(b)-1] != '\n' {
		if _, err := n.f.WriteString("\n"); err != nil {
			return nil, errors.Join(err, n.f.Close())
		}
	}
	return n, nil
}

// add records e before its address is given out. It does not wait for the disk:
// a power cut ends the programs that hold the address as well.
func (n *names) add(e dns.Entry) {
	n.mu.Lock()
	defer n.mu.Unlock()
	fmt.Fprintf(n.f, "{\"name\":%q,\"index\":%d}\n", e.Name, e.Index)
}

func (n *names) close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.f.Close()
}
