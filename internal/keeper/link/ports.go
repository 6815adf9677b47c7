package link

import (
	"context"

	"github.com/kitbox-dev/kitbox/internal/publish"
)

// Ports returns what is published.
func (c Client) Ports(ctx context.Context) ([]publish.Port, error) {
	return c.changePorts(ctx, Request{Op: OpPorts})
}

// Publish publishes p and returns all that is published then.
func (c Client) Publish(ctx context.Context, p publish.Port) ([]publish.Port, error) {
	return c.changePorts(ctx, Request{Op: OpPorts, Publish: &p})
}

// Unpublish takes the publication with this key back.
func (c Client) Unpublish(ctx context.Context, key string) error {
	_, err := c.changePorts(ctx, Request{Op: OpPorts, Unpublish: key})
	return err
}

func (c Client) changePorts(ctx context.Context, r Request) ([]publish.Port, error) {
	conn, release, err := c.open(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer release()
	a, f, err := c.ask(ctx, conn, r)
	if f != nil {
		f.Close()
	}
	return a.Ports, err
}
