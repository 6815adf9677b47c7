package capability

import (
	"fmt"

	"github.com/kitbox-dev/kitbox/kiterr"
)

// A RefusedError says that a host declined a request it understood.
type RefusedError struct {
	Kit    string // the Kit that asks; may be empty
	Type   string // the capability type asked for
	Reason string // one clause, no final period, shown to the user
}

func (e *RefusedError) Error() string {
	if e.Kit != "" {
		return fmt.Sprintf("kit %s: capability %s refused: %s", e.Kit, e.Type, e.Reason)
	}
	return fmt.Sprintf("capability %s refused: %s", e.Type, e.Reason)
}

// Is makes every RefusedError match [kiterr.ErrRefused].
func (e *RefusedError) Is(target error) bool { return target == kiterr.ErrRefused }
