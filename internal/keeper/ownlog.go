package keeper

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/keeper/link"
)

// An ownLog is a keeper's log, begun anew when it is long: a keeper lives for as long as
// its sandbox, and whoever is inside can give it something to complain of.
type ownLog struct {
	dir  string
	out  []*os.File // descriptors of it, all of which follow; what is written goes to the first
	held int64      // bytes
}

// Write writes whole messages. It is not for concurrent use, which a [slog.Handler] sees
// to.
func (o *ownLog) Write(p []byte) (int, error) {
	if o.held > link.MaxLog {
		o.held = 0 // if it cannot be begun anew it grows, and that is tried again later
		if f, err := link.OpenLog(o.dir); err == nil {
			for _, out := range o.out {
				_ = unix.Dup3(int(f.Fd()), int(out.Fd()), 0)
			}
			f.Close()
		}
	}
	n, err := o.out[0].Write(p)
	o.held += int64(n)
	return n, err
}
