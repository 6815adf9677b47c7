package agent

import "github.com/kitbox-dev/kitbox/internal/guest/protocol"

// session counts an operation as one that somebody waits for, until end is called.
func (a *Agent) session() (end func()) {
	ended := make(chan struct{})
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sessions[ended] = struct{}{}
	return func() {
		a.mu.Lock()
		delete(a.sessions, ended)
		a.mu.Unlock()
		close(ended)
	}
}

// underWay tells how many sessions there are, and when they have ended. The host
// asks when it has lost count; those that begin later it knows.
func (a *Agent) underWay(c *protocol.Conn) {
	a.mu.Lock()
	var all []chan struct{}
	for s := range a.sessions {
		all = append(all, s)
	}
	a.mu.Unlock()
	if a.answer(c, protocol.Answer{Sessions: len(all)}) != nil || len(all) == 0 {
		return
	}
	lost := make(chan struct{})
	go func() {
		defer close(lost)
		_, _ = c.Read() // the host says nothing more; it ends with the connection
	}()
	for _, s := range all {
		select {
		case <-s:
		case <-lost:
			return
		}
	}
	_ = a.answer(c, protocol.Answer{})
}
