package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/kitbox-dev/kitbox/internal/account"
	"github.com/kitbox-dev/kitbox/internal/driver"
	"github.com/kitbox-dev/kitbox/internal/guest/client"
	"github.com/kitbox-dev/kitbox/internal/keeper/link"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// machineGuest is the guest of one machine, over its driver.
type machineGuest struct {
	dial link.Dial
	user plan.Identity
}

// NewGuest returns the guest of p's machine.
func NewGuest(d driver.Driver, p *plan.Plan) Guest {
	return &machineGuest{user: p.Launch.User, dial: func(ctx context.Context) (net.Conn, error) { return d.Dial(ctx, p.Machine.ID) }}
}

func (g *machineGuest) client() *client.Client { return &client.Client{Dial: g.dial} }

// Run implements [Guest].
func (g *machineGuest) Run(ctx context.Context, c Command, out io.Writer) (int, error) {
	id, err := g.identity(ctx, c.User)
	if err != nil {
		return 0, err
	}
	home := id.Home
	if home == "" {
		home = "/"
	}
	env := c.Env
	if !has(env, "HOME") {
		env = append(env[:len(env):len(env)], "HOME="+home)
	}
	r := client.ExecRequest{Argv: c.Args, Env: env, Dir: c.Dir, UID: id.UID, GID: id.GID, GIDs: id.Gids, Stay: c.Stay, Key: c.Key}
	if c.Stay {
		exit, err := g.client().Exec(ctx, r, client.Stdio{Stdout: out})
		return exit.Code, err
	}
	p, err := newPipe(out)
	if err != nil {
		return 0, err
	}
	exit, err := g.client().Exec(ctx, r, client.Stdio{Stdout: p.w, Stderr: p.w})
	p.finish()
	return exit.Code, err
}

// Await implements [Guest].
func (g *machineGuest) Await(ctx context.Context, key string) (int, error) {
	exit, err := g.client().Await(ctx, key)
	return exit.Code, err
}

// Sessions implements [Guest].
func (g *machineGuest) Sessions(ctx context.Context, told func(n int)) error {
	return g.client().Sessions(ctx, told)
}

// identity finds who c runs as. The image's own user is known, also when its
// accounts do not name it.
func (g *machineGuest) identity(ctx context.Context, user string) (plan.Identity, error) {
	switch user {
	case fmt.Sprintf("%d:%d", g.user.UID, g.user.GID):
		return g.user, nil
	case "0":
		// Root needs no record, and a hook that repairs the accounts must
		// not depend on them.
		return plan.Identity{Name: "root", Home: "/root"}, nil
	}
	return account.Running(ctx, g.client(), user)
}

// Alive implements [Guest].
func (g *machineGuest) Alive(ctx context.Context) error {
	_, err := g.client().Info(ctx)
	return err
}

// WriteFile implements [Guest].
func (g *machineGuest) WriteFile(ctx context.Context, f plan.File, id plan.Identity) error {
	return g.client().WriteFile(ctx, client.File{Path: f.Path, Mode: f.Mode, UID: id.UID, GID: id.GID,
		KeepExisting: !f.Overwrite, Parents: true}, []byte(f.Content))
}

// MakeDir implements [Guest].
func (g *machineGuest) MakeDir(ctx context.Context, path string, id plan.Identity) error {
	if _, err := g.client().Stat(ctx, path, true); !errors.Is(err, kiterr.ErrNotFound) {
		return err
	}
	var said tail
	said.max = 1 << 10
	// Root makes the way there; the directory itself is the user's.
	exit, err := g.client().Exec(ctx, client.ExecRequest{
		Argv: []string{"/bin/sh", "-c", `mkdir -p -- "$1" && chown "$2" "$1"`, "sh", path, fmt.Sprintf("%d:%d", id.UID, id.GID)},
		Env:  []string{"PATH=" + defaultPath},
	}, client.Stdio{Stdout: &said, Stderr: &said})
	if err != nil {
		return err
	}
	if exit.Code != 0 {
		return fmt.Errorf("mkdir ended with status %d: %s", exit.Code, said.bytes())
	}
	return nil
}

func has(env []string, name string) bool {
	for _, kv := range env {
		if len(kv) > len(name) && kv[len(name)] == '=' && kv[:len(name)] == name {
			return true
		}
	}
	return false
}
