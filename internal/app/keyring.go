package app

import (
	"context"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/boundary/dockerauth"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/secret"
)

// loginAge is how long a login is good for that somebody may have taken out of a
// credential helper without telling docker's configuration. To ask a helper costs a
// process, and a pull is dozens of requests.
const loginAge = 5 * time.Second

// settled is how old a change of a file must be before another one is sure to have a
// later time.
const settled = time.Second

// A keyring finds registry logins for one sandbox. One is read again as soon as docker's
// configuration has changed, which docker login and logout do whatever helper there is,
// and when it is older than loginAge. Its zero value is ready; its methods can be called
// concurrently.
type keyring struct {
	find func(ctx context.Context, dir, registry string) (fetch.Login, error) // nil: fetch.FindLogin
	now  func() time.Time                                                     // nil: time.Now

	mu   sync.Mutex
	keys map[string]*key // guarded by mu; by registry
}

type key struct {
	turn chan struct{} // holds one while nobody has it; a helper may take long, and a context ends the wait
	dockerauth.Login
	stamp stamp
	read  time.Time
}

// A stamp changes whenever a file does.
type stamp struct {
	dev, ino      uint64
	size          int64
	changed, data unix.Timespec
}

// stampOf also reports whether a later change is sure to make another stamp.
func stampOf(path string, now time.Time) (stamp, bool) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return stamp{}, false
	}
	return stamp{st.Dev, st.Ino, st.Size, st.Ctim, st.Mtim}, now.Sub(time.Unix(st.Ctim.Unix())) > settled
}

// Login is a [dockerauth.Source].
func (k *keyring) Login(ctx context.Context, a plan.DockerAuth) (dockerauth.Login, error) {
	k.mu.Lock()
	if k.keys == nil {
		k.keys = map[string]*key{}
	}
	e := k.keys[a.Registry]
	if e == nil {
		e = &key{turn: make(chan struct{}, 1)}
		e.turn <- struct{}{}
		k.keys[a.Registry] = e
	}
	k.mu.Unlock()
	select {
	case <-e.turn:
		defer func() { e.turn <- struct{}{} }()
	case <-ctx.Done():
		return dockerauth.Login{}, context.Cause(ctx)
	}
	begun := time.Now()
	if k.now != nil {
		begun = k.now()
	}
	is, sure := stampOf(filepath.Join(a.Config, "config.json"), begun)
	if sure && is == e.stamp && !e.read.IsZero() && begun.Sub(e.read) < loginAge {
		return e.Login, nil
	}
	find := k.find
	if find == nil {
		find = fetch.FindLogin
	}
	l, err := find(ctx, a.Config, a.Registry)
	if err != nil {
		e.read = time.Time{}
		return dockerauth.Login{}, err
	}
	e.Login = dockerauth.Login{Username: l.Username, Password: secret.New([]byte(l.Password)), Identity: secret.New([]byte(l.IdentityToken))}
	e.stamp, e.read = is, begun
	return e.Login, nil
}
