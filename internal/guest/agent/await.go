package agent

import (
	"slices"

	"github.com/kitbox-dev/kitbox/internal/guest/protocol"
)

// A kept is a command whose end can be asked for later.
type kept struct {
	key  string
	done chan struct{}
	exit protocol.Exit // valid once done is closed
}

// maxKept is how many of them are remembered; the oldest is forgotten first.
const maxKept = 256

// keep remembers the end that comes on done under key, and passes it on.
func (a *Agent) keep(key string, done <-chan protocol.Exit) <-chan protocol.Exit {
	k := &kept{key: key, done: make(chan struct{})}
	a.mu.Lock()
	a.kept = append(slices.DeleteFunc(a.kept, func(o *kept) bool { return o.key == key }), k)
	if over := len(a.kept) - maxKept; over > 0 {
		a.kept = slices.Delete(a.kept, 0, over)
	}
	a.mu.Unlock()
	passed := make(chan protocol.Exit, 1)
	go func() {
		k.exit = <-done
		close(k.done)
		passed <- k.exit
	}()
	return passed
}

// await tells how a command ends.
func (a *Agent) await(c *protocol.Conn, r *protocol.Await) {
	a.mu.Lock()
	i := slices.IndexFunc(a.kept, func(k *kept) bool { return k.key == r.Key })
	var k *kept
	if i >= 0 {
		k = a.kept[i]
	}
	a.mu.Unlock()
	if k == nil {
		a.fail(c, protocol.Faultf(protocol.FaultNotFound, "no command was started as %q", r.Key))
		return
	}
	if a.answer(c, protocol.Answer{}) != nil {
		return
	}
	lost := make(chan struct{})
	go func() {
		defer close(lost)
		_, _ = c.Read() // the host says nothing more; it ends with the connection
	}()
	select {
	case <-k.done:
		_ = c.WriteMessage(protocol.KindExit, k.exit)
	case <-lost:
	}
}
