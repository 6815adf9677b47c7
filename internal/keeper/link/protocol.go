// Package link is how commands speak with the keeper of a sandbox: the socket in
// the sandbox's state directory, what is said on it, and how a keeper's process
// is started and ended.
//
// What a keeper does when it is asked is in package keeper.
package link

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/publish"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// The protocol is one JSON object per packet on a unix socket of sequential
// packets, so that a file descriptor travels with exactly the reply it belongs
// to. A connection carries one request; for exec and watch it stays open, and
// its end means something.

// SocketName is the socket's name in a sandbox's state directory.
const SocketName = "keeper.sock"

// maxPacket bounds a packet both ways. It stays below the smallest default send
// buffer of Linux (212992 bytes), above which a packet cannot be sent at all.
const maxPacket = 128 << 10

// An Operation is what a request asks for.
type Operation string

// The operations.
const (
	OpStatus Operation = "status" // one reply
	OpExec   Operation = "exec"   // one reply with a connection to the guest; a command is in flight until the caller hangs up
	OpStop   Operation = "stop"   // one reply, after which the keeper ends
	OpPorts  Operation = "ports"  // one reply with the ports; publishes or takes one back first, if the request says so
	OpWatch  Operation = "watch"  // replies until the boot is over
	OpRules  Operation = "rules"  // one reply, after the rules recorded now are in force
	OpOwners Operation = "owners" // one reply, after what was made in mounted directories belongs to their owners
)

// A Request is what a caller asks, once per connection.
type Request struct {
	Op Operation `json:"op"`

	// For exec: admit the caller to a sandbox whose startup hooks still run.
	// Nothing admits anybody while install hooks run.
	Early bool `json:"early,omitempty"`

	// For status: how long the guest may take to show that it is there. Zero
	// does not ask it.
	ProbeMillis int64 `json:"probeMillis,omitempty"`

	// For ports.
	Publish   *publish.Port `json:"publish,omitempty"`
	Unpublish string        `json:"unpublish,omitempty"` // a key

	// For stop.
	GraceMillis int64 `json:"graceMillis,omitempty"`
	IfIdle      bool  `json:"ifIdle,omitempty"`
	Remove      bool  `json:"remove,omitempty"`
}

// A Reply is an answer, or an event on the way to it.
type Reply struct {
	OK    bool     `json:"ok"`
	Error *Failure `json:"error,omitempty"`

	Status *Status        `json:"status,omitempty"` // of a status request
	Event  *sandbox.Event `json:"event,omitempty"`  // of a watch: not the last reply

	Ports []publish.Port `json:"ports,omitempty"` // of a ports request

	Busy bool `json:"busy,omitempty"` // of a stop with IfIdle: nothing was done
}

// Status is what a keeper says of its sandbox.
type Status struct {
	State    sandbox.State `json:"state"`
	Phase    string        `json:"phase"`
	PID      int           `json:"pid"` // of the guest, 0 before it runs
	Keeper   int           `json:"keeper"`
	Commands int           `json:"commands"`
	Unused   time.Time     `json:"unused,omitzero"` // since when nobody uses it; zero while somebody does
	Problems []string      `json:"problems,omitempty"`
}

// Bind makes the socket named SocketName in dir and listens. The path is
// spelled through the directory's descriptor, since a state directory may be
// deeper than the 108 bytes that a socket address holds.
func Bind(dir string) (*net.UnixListener, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	if err := os.Remove(filepath.Join(dir, SocketName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	// Nobody may connect before the mode is set: the socket is made 0600.
	old := syscall.Umask(0o177)
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: socketPath(d)})
	syscall.Umask(old)
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	return l, nil
}

// Connect opens a connection to the socket in dir.
func Connect(dir string) (*net.UnixConn, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: socketPath(d)})
}

func socketPath(dir *os.File) string {
	return "/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) + "/" + SocketName
}

// Send writes v as one packet, with file f if it is not nil.
func Send(c *net.UnixConn, v any, f *os.File) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(b) > maxPacket {
		return fmt.Errorf("packet of %d bytes is too long", len(b))
	}
	var oob []byte
	if f != nil {
		oob = unix.UnixRights(int(f.Fd()))
	}
	_, _, err = c.WriteMsgUnix(b, oob, nil)
	return err
}

// Receive reads one packet of at most max bytes into v and returns the file
// that came with it, or nil. The end of the connection is [io.EOF].
func Receive(c *net.UnixConn, v any, max int) (*os.File, error) {
	b, oob := make([]byte, max), make([]byte, unix.CmsgSpace(4))
	n, on, flags, _, err := c.ReadMsgUnix(b, oob)
	if err != nil {
		return nil, err
	}
	f := firstFile(oob[:on])
	switch {
	case n == 0:
		err = io.EOF
	case flags&unix.MSG_TRUNC != 0:
		err = errors.New("packet is too long")
	default:
		err = json.Unmarshal(b[:n], v)
	}
	if err != nil && f != nil {
		f.Close()
		f = nil
	}
	return f, err
}

func firstFile(oob []byte) *os.File {
	ms, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	var first *os.File
	for i := range ms {
		fds, err := unix.ParseUnixRights(&ms[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			if first != nil {
				unix.Close(fd)
				continue
			}
			first = os.NewFile(uintptr(fd), "guest")
		}
	}
	return first
}

// Peer returns the credentials of the process at the other end, as they were
// when it connected or listened.
func Peer(c *net.UnixConn) (*unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	if cerr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); cerr != nil {
		return nil, cerr
	}
	return cred, err
}
