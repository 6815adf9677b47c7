// Package protocol is the language between a host and the guest of a machine:
// frames on one stream per operation.
//
// A connection carries one operation. The host sends one [KindRequest] frame,
// the guest one [KindAnswer] frame, and what follows depends on the
// operation: nothing, or data on up to three numbered streams with credit in
// the other direction, and for a command a final [KindExit]. The stream may
// be a unix socket, vsock, a serial port or anything else that keeps order.
// Only on unix sockets can file descriptors travel along; every operation
// works without them.
//
// The guest's half is in package agent, the host's in package client. Neither
// trusts the other side's lengths: a frame over its bound, more data than
// credit was given for, and an unknown kind all end the connection.
package protocol

import "fmt"

// Version is the version of this protocol. It travels in every request and
// every answer, and both sides refuse any other: host and guest come from one
// build, so a difference means that one of them is stale.
const Version = 1

// The bounds on one frame's body, in bytes.
const (
	// MaxMessage bounds the JSON of a request or an answer. An argv plus an
	// environment can reach the kernel's own bound of 2 MiB, and JSON may
	// need six bytes for one.
	MaxMessage = 13 << 20
	// MaxData bounds one data frame.
	MaxData = 64 << 10
	// Window is how many bytes of one stream may be on their way before the
	// receiver has said that it consumed any.
	Window = 256 << 10
)

// A Kind says what a frame is.
type Kind byte

// The kinds of frames. A data frame with an empty body ends its stream.
const (
	KindRequest Kind = 1 + iota // host to guest, JSON [Request]; the first frame
	KindAnswer                  // guest to host, JSON [Answer]; the first frame back
	KindIn                      // data, host to guest: a command's stdin, a file's content
	KindOut                     // data, guest to host: stdout, a terminal, a file's content
	KindErr                     // data, guest to host: stderr
	KindCredit                  // 5 bytes: the data kind, then how many bytes of it were consumed
	KindResize                  // 4 bytes: rows, columns
	KindSignal                  // 1 byte: a Linux signal number
	KindExit                    // guest to host, JSON [Exit]; the last frame
	kindEnd
)

// maxBody returns the largest body that kind k may have; k is valid.
func (k Kind) maxBody() int {
	switch k {
	case KindRequest, KindAnswer:
		return MaxMessage
	case KindIn, KindOut, KindErr:
		return MaxData
	case KindCredit:
		return 5
	case KindResize:
		return 4
	case KindSignal:
		return 1
	default: // KindExit
		return 4 << 10
	}
}

// An Op names an operation.
type Op string

// The operations.
const (
	OpInfo     Op = "info"     // who is there; [Answer.Info]
	OpExec     Op = "exec"     // run a command
	OpWrite    Op = "write"    // write a file; content on KindIn, then a second answer
	OpRead     Op = "read"     // read a file; content on KindOut
	OpStat     Op = "stat"     // describe a file; [Answer.Stat]
	OpPack     Op = "pack"     // read a tree; a tar on KindOut, then a second answer
	OpUnpack   Op = "unpack"   // write a tree; a tar on KindIn, then a second answer
	OpDial     Op = "dial"     // connect to a loopback port; KindIn and KindOut
	OpAwait    Op = "await"    // the end of a command that stays; KindExit
	OpSessions Op = "sessions" // what is under way for somebody; [Answer.Sessions], then a second answer
	OpShutdown Op = "shutdown" // end all processes; the answer comes when they are gone
)

// A Request opens an operation. Exactly the field that Op names is set.
type Request struct {
	Version  int       `json:"version"`
	Op       Op        `json:"op"`
	Exec     *Exec     `json:"exec,omitempty"`
	Write    *Write    `json:"write,omitempty"`
	Read     *Read     `json:"read,omitempty"`
	Stat     *Stat     `json:"stat,omitempty"`
	Pack     *Pack     `json:"pack,omitempty"`
	Unpack   *Unpack   `json:"unpack,omitempty"`
	Dial     *Dial     `json:"dial,omitempty"`
	Await    *Await    `json:"await,omitempty"`
	Shutdown *Shutdown `json:"shutdown,omitempty"`
}

// Exec asks for a command to be run in a session of its own.
type Exec struct {
	// Argv is the command; at least one element. A name without a slash is
	// looked up in the PATH of Env, as seen by the guest.
	Argv []string `json:"argv"`
	Env  []string `json:"env"` // NAME=value, complete: the guest adds nothing
	Dir  string   `json:"dir"` // working directory, absolute; empty: /

	UID  uint32   `json:"uid"`
	GID  uint32   `json:"gid"`
	GIDs []uint32 `json:"gids,omitempty"` // supplementary groups, all of them

	// TTY gives the command a terminal of its own for all three streams,
	// with this size before its first byte; its output is on KindOut.
	TTY  bool   `json:"tty,omitempty"`
	Rows uint16 `json:"rows,omitempty"` // 0: 24
	Cols uint16 `json:"cols,omitempty"` // 0: 80

	// Stdin says that the host will send KindIn. Without it and without a
	// passed descriptor, stdin is /dev/null (or the idle terminal).
	Stdin bool `json:"stdin,omitempty"`

	// Passed lists which of 0, 1 and 2 came along as descriptors, in that
	// order. Those streams then carry no frames. Not with TTY.
	Passed []int `json:"passed,omitempty"`

	// Detach leaves the command running when the connection ends. Its
	// streams are /dev/null and the connection ends with the answer.
	Detach bool `json:"detach,omitempty"`

	// Stay leaves the command running when the connection is lost, of which
	// neither it nor what it started notices anything: what they print is
	// dropped then, and after the command's end. Its stdout and stderr are one
	// stream, on KindOut. Not with TTY, Detach or passed descriptors.
	Stay bool `json:"stay,omitempty"`

	// Key is what a command that stays can be awaited by when its connection
	// was lost, at most [MaxKey] bytes; empty: it cannot.
	Key string `json:"key,omitempty"`
}

// MaxKey bounds a key, in bytes.
const MaxKey = 256

// Await asks how the command ends that was started last with a key. The answer says
// that there is one, and KindExit follows at its end.
type Await struct {
	Key string `json:"key"`
}

// Write asks for a file to be replaced in one step. It is done with the rights
// of UID, so that a file of an ordinary user cannot be led elsewhere by a
// symbolic link that this user made.
type Write struct {
	Path string `json:"path"` // absolute
	Mode uint32 `json:"mode"` // permission bits; 0: 0644
	UID  uint32 `json:"uid"`
	GID  uint32 `json:"gid"`
	Size int64  `json:"size"` // exact length of the content that follows

	// KeepExisting leaves a file that is already there as it is, whatever it
	// is, and answers success.
	KeepExisting bool `json:"keepExisting,omitempty"`

	// Parents creates missing directories, mode 0755, owned by UID and GID.
	Parents bool `json:"parents,omitempty"`
}

// Read asks for the content of a regular file. A larger one than MaxBytes is
// refused rather than cut.
type Read struct {
	Path     string `json:"path"`
	MaxBytes int64  `json:"maxBytes"`
}

// Stat asks for what is at a path.
type Stat struct {
	Path string `json:"path"`
	// Follow describes what a final symbolic link points at.
	Follow bool `json:"follow,omitempty"`
}

// Pack asks for a tree of files as a tar, read by root.
type Pack struct {
	Path   string `json:"path"`             // absolute
	Name   string `json:"name"`             // of the top in the tar; ".": what is in a directory
	Follow bool   `json:"follow,omitempty"` // a top that is a symbolic link
}

// Unpack asks for a tar to be written into a directory, with the rights of UID,
// to whom it then belongs.
type Unpack struct {
	Dir string `json:"dir"` // absolute, exists
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`

	// Preserve keeps the owners and modes of the tar. UID is 0 then.
	Preserve bool `json:"preserve,omitempty"`
}

// Dial asks for a TCP connection to a port on the machine's loopback.
type Dial struct {
	Port uint16 `json:"port"`
	V6   bool   `json:"v6,omitempty"` // ::1 rather than 127.0.0.1

	// Pass asks for the socket itself instead of frames. The guest may
	// ignore it; [Answer.Passed] says whether it came.
	Pass bool `json:"pass,omitempty"`
}

// Shutdown asks for the end of every process but the guest: SIGTERM, then
// after the grace SIGKILL.
type Shutdown struct {
	GraceMillis int64 `json:"graceMillis"`
}

// An Answer is the guest's reply. Fault is nil exactly when the operation
// succeeded or began.
type Answer struct {
	Version int    `json:"version"`
	Fault   *Fault `json:"fault,omitempty"`

	Info *Info     `json:"info,omitempty"`
	Stat *FileInfo `json:"stat,omitempty"`
	PID  int       `json:"pid,omitempty"` // of a started command, in the machine

	// Sessions is how many commands and copies are under way that end with
	// their connection. Another answer follows when these have ended; none
	// follows when it is 0.
	Sessions int `json:"sessions,omitempty"`

	Passed bool `json:"passed,omitempty"` // the socket of a Dial came along
}

// Info describes the guest.
type Info struct {
	Processes int    `json:"processes"` // in the machine, the guest included
	Boot      string `json:"boot"`      // random, differs at each boot
}

// FileInfo describes a file.
type FileInfo struct {
	Size int64  `json:"size"`
	Mode uint32 `json:"mode"` // st_mode, type bits included
	UID  uint32 `json:"uid"`
	GID  uint32 `json:"gid"`
	Link string `json:"link,omitempty"` // target of a symbolic link
}

// An Exit is how a command ended.
type Exit struct {
	Code   int `json:"code"`             // 0-255; 128+Signal when a signal ended it
	Signal int `json:"signal,omitempty"` // 0 when it exited by itself
}

// A FaultCode is the family of a fault.
type FaultCode string

// The families of faults.
const (
	FaultCannotStart FaultCode = "cannot-start" // the command was never executed
	FaultNotFound    FaultCode = "not-found"
	FaultInvalid     FaultCode = "invalid" // the request makes no sense, or another version
	FaultRefused     FaultCode = "refused" // nobody listens on the port
	FaultTooLarge    FaultCode = "too-large"
	FaultFailed      FaultCode = "failed" // anything else
)

// A Fault says why an operation did not happen.
type Fault struct {
	Code FaultCode `json:"code"`
	Text string    `json:"text"`
}

func (f *Fault) Error() string { return f.Text }

// Faultf returns a fault of family code.
func Faultf(code FaultCode, format string, args ...any) *Fault {
	return &Fault{Code: code, Text: fmt.Sprintf(format, args...)}
}
