// Package agent is the guest: it runs inside a machine as PID 1, ends what is
// left over, and does what the host asks on streams of package protocol.
//
// It runs with the rights of the machine's root and no more, and it is the
// only process of the machine that the host talks to. The host does not trust
// it: whatever it says, package client checks. How a machine is built around
// it is in package inside; a driver that lets something else build the
// machine starts the agent in a finished one.
package agent

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/guest/protocol"
)

// requestTimeout is how long a new connection may take to say what it wants.
const requestTimeout = 10 * time.Second

// maxConns bounds the operations under way. The host is the only peer; the
// bound keeps a fault there from becoming an out-of-memory here.
const maxConns = 4096

// An Agent serves one machine. Its zero value is ready.
type Agent struct {
	// Grace is how long processes of a command whose connection was lost
	// have between SIGTERM and SIGKILL. Zero means 3 seconds.
	Grace time.Duration

	boot   string
	reaper reaper

	mu       sync.Mutex
	stopping bool             // guarded by mu
	terms    map[int]struct{} // guarded by mu: sessions with a terminal
	kept     []*kept          // guarded by mu: commands that can be awaited, oldest first

	sessions map[chan struct{}]struct{} // guarded by mu: closed at the end of each
}

func (a *Agent) grace() time.Duration {
	if a.Grace == 0 {
		return 3 * time.Second
	}
	return a.Grace
}

// Serve answers on ln until ln is closed. It takes over the reaping of this
// process's children, so nothing else in the process may wait for one.
func (a *Agent) Serve(ln net.Listener) error {
	// Whatever else is open here is nobody's business in a command.
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return os.NewSyscallError("close_range", err)
	}
	var id [8]byte
	rand.Read(id[:]) // never fails
	a.boot = hex.EncodeToString(id[:])
	a.terms = map[int]struct{}{}
	a.sessions = map[chan struct{}]struct{}{}
	a.reaper.start()

	slots := make(chan struct{}, maxConns)
	for {
		c, err := ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			// Out of descriptors or memory: the condition passes, an
			// agent that gave up would not come back.
			time.Sleep(50 * time.Millisecond)
			continue
		}
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			a.serve(protocol.NewConn(c))
		}()
	}
}

// serve handles one connection from its request to its end.
func (a *Agent) serve(c *protocol.Conn) {
	defer c.Close()
	c.Raw().SetReadDeadline(time.Now().Add(requestTimeout))
	c.AcceptFDs(3)
	f, err := c.Read()
	passed := c.TakeFDs()
	c.AcceptFDs(0)
	defer func() {
		for _, f := range passed {
			f.Close()
		}
	}()
	if err != nil || f.Kind != protocol.KindRequest {
		return
	}
	c.Raw().SetReadDeadline(time.Time{})

	// The version is looked at first: another one may have other fields.
	var v struct {
		Version int `json:"version"`
	}
	if json.Unmarshal(f.Body, &v) != nil || v.Version != protocol.Version {
		a.fail(c, protocol.Faultf(protocol.FaultInvalid,
			"this guest speaks version %d, not %d: restart the machine", protocol.Version, v.Version))
		return
	}
	var r protocol.Request
	if err := protocol.Decode(f.Body, &r); err != nil {
		a.fail(c, protocol.Faultf(protocol.FaultInvalid, "%v", err))
		return
	}

	if r.Op == protocol.OpExec && r.Exec != nil && !r.Exec.Stay || r.Op == protocol.OpPack || r.Op == protocol.OpUnpack {
		defer a.session()()
	}
	switch {
	case r.Op == protocol.OpInfo:
		_ = a.answer(c, protocol.Answer{Info: &protocol.Info{Processes: countProcesses(), Boot: a.boot}})
	case r.Op == protocol.OpExec && r.Exec != nil:
		a.exec(c, r.Exec, passed)
	case r.Op == protocol.OpWrite && r.Write != nil:
		a.write(c, r.Write)
	case r.Op == protocol.OpRead && r.Read != nil:
		a.read(c, r.Read)
	case r.Op == protocol.OpStat && r.Stat != nil:
		a.stat(c, r.Stat)
	case r.Op == protocol.OpPack && r.Pack != nil:
		a.pack(c, r.Pack)
	case r.Op == protocol.OpUnpack && r.Unpack != nil:
		a.unpack(c, r.Unpack)
	case r.Op == protocol.OpDial && r.Dial != nil:
		a.dial(c, r.Dial)
	case r.Op == protocol.OpAwait && r.Await != nil:
		a.await(c, r.Await)
	case r.Op == protocol.OpSessions:
		a.underWay(c)
	case r.Op == protocol.OpShutdown && r.Shutdown != nil:
		a.shutdown(c, r.Shutdown)
	default:
		a.fail(c, protocol.Faultf(protocol.FaultInvalid, "no operation %q in this request", r.Op))
	}
}

// answer sends v. A host that has gone needs no answer, so errors end nothing.
func (a *Agent) answer(c *protocol.Conn, v protocol.Answer, files ...*os.File) error {
	v.Version = protocol.Version
	return c.WriteMessage(protocol.KindAnswer, v, files...)
}

func (a *Agent) fail(c *protocol.Conn, f *protocol.Fault) {
	_ = a.answer(c, protocol.Answer{Fault: f})
}

// shutdown ends every other process of the machine.
func (a *Agent) shutdown(c *protocol.Conn, r *protocol.Shutdown) {
	if os.Getpid() != 1 {
		// kill(-1) reaches everything this process may signal.
		a.fail(c, protocol.Faultf(protocol.FaultInvalid, "not the first process of a machine"))
		return
	}
	a.mu.Lock()
	a.stopping = true
	a.mu.Unlock()
	grace := time.Duration(min(max(r.GraceMillis, 0), 24*3600*1000)) * time.Millisecond
	a.endAll(grace)
	_ = a.answer(c, protocol.Answer{})
}
