package account

import (
	"context"
	"errors"

	"github.com/kitbox-dev/kitbox/internal/guest/client"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// maxAccounts bounds a file of accounts that is read out of a machine.
const maxAccounts = 1 << 20

// Running finds a user in the accounts of the running machine whose guest answers
// cl. A file that is missing has no accounts.
func Running(ctx context.Context, cl *client.Client, user string) (plan.Identity, error) {
	read := func(name string) (string, error) {
		b, err := cl.ReadFile(ctx, name, maxAccounts)
		if errors.Is(err, kiterr.ErrNotFound) {
			return "", nil
		}
		return string(b), err
	}
	passwd, err := read("/etc/passwd")
	if err != nil {
		return plan.Identity{}, err
	}
	group, err := read("/etc/group")
	if err != nil {
		return plan.Identity{}, err
	}
	return Lenient(passwd, group, user)
}
