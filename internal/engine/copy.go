package engine

import (
	"context"
	"fmt"
	"io"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/account"
	"github.com/kitbox-dev/kitbox/internal/guest/client"
	"github.com/kitbox-dev/kitbox/internal/guest/protocol"
	"github.com/kitbox-dev/kitbox/internal/keeper/link"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/sandbox"
)

var _ sandbox.Copier = (*box)(nil)

// visit opens a session for f.
func (b *box) visit(ctx context.Context, f func(p *plan.Plan, dial link.Dial) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p, err := b.plan()
	if err != nil {
		return err
	}
	s, err := b.reach(ctx, true)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := f(p, s.Dialer(b.keeper())); err != nil {
		return fmt.Errorf("sandbox %s: %w", b.sb.Name, err)
	}
	return nil
}

// inside is p as a path of the sandbox. A dot at its end says something to whoever
// copies and is kept from here.
func inside(l plan.Launch, p string) string {
	if !path.IsAbs(p) {
		p = strings.TrimSuffix(l.Dir, "/") + "/" + p
	}
	return path.Clean(p)
}

// StatFile implements [sandbox.Copier].
func (b *box) StatFile(ctx context.Context, p string, follow bool) (st sandbox.FileInfo, err error) {
	err = b.visit(ctx, func(pl *plan.Plan, dial link.Dial) error {
		i, err := (&client.Client{Dial: dial}).Stat(ctx, inside(pl.Launch, p), follow)
		st = sandbox.FileInfo{Size: i.Size, Dir: i.Mode&unix.S_IFMT == unix.S_IFDIR, Link: i.Link}
		return err
	})
	return st, err
}

// Pack implements [sandbox.Copier].
func (b *box) Pack(ctx context.Context, p, name string, follow bool, w io.Writer) error {
	return b.visit(ctx, func(pl *plan.Plan, dial link.Dial) error {
		return (&client.Client{Dial: dial}).Pack(ctx, protocol.Pack{Path: inside(pl.Launch, p), Name: name, Follow: follow}, w)
	})
}

// Unpack implements [sandbox.Copier].
func (b *box) Unpack(ctx context.Context, dir string, o sandbox.UnpackOptions, r io.Reader) error {
	return b.visit(ctx, func(pl *plan.Plan, dial link.Dial) error {
		id := pl.Launch.User
		switch {
		case o.Preserve:
			id = plan.Identity{}
		case o.User != "":
			var err error
			if id, err = account.Running(ctx, &client.Client{Dial: dial}, o.User); err != nil {
				return err
			}
		}
		return (&client.Client{Dial: dial}).Unpack(ctx, protocol.Unpack{Dir: inside(pl.Launch, dir), UID: id.UID, GID: id.GID, Preserve: o.Preserve}, r)
	})
}
