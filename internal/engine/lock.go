package engine

import (
	"context"

	"github.com/kitbox-dev/kitbox/internal/compose"
	"github.com/kitbox-dev/kitbox/sandbox"
)

var _ sandbox.Locker = (*Engine)(nil)

// Lock implements [sandbox.Locker].
func (e *Engine) Lock(ctx context.Context, o sandbox.CreateOptions) (*sandbox.Lock, error) {
	if err := e.privilege(); err != nil {
		return nil, err
	}
	if err := e.ready(); err != nil {
		return nil, err
	}
	return e.composer.Lock(ctx, o)
}

// CompareLocks implements [sandbox.Locker].
func (e *Engine) CompareLocks(a, b *sandbox.Lock) (sandbox.LockChanges, error) {
	return compose.CompareLocks(a, b)
}
