// Package inside builds a machine from within: the guest, freshly made in
// empty namespaces, lays the root filesystem and everything mounted over it,
// then gives up what it needed for that.
//
// What the host contributes arrives as descriptors of mounts that are attached
// nowhere, so the host's own mount table never changes and there is nothing to
// clean up when either side is killed. The driver's half is in package
// internal/driver/namespace.
package inside

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
)

// A Config is what the driver tells the guest before it begins. Descriptors
// follow it, in this order: the layers, the writable directory, one for each
// bind among Mounts, and with Hides an empty file and an empty directory.
type Config struct {
	Hostname string  `json:"hostname"`
	Layers   int     `json:"layers"` // how many, lowest first
	Mounts   []Mount `json:"mounts"`
	Files    []File  `json:"files"`

	// Capabilities is the bounding set of everything but the guest, as Linux
	// names.
	Capabilities []string `json:"capabilities"`

	// Hides says that some of the mounts' covers hide something.
	Hides bool `json:"hides,omitempty"`

	// Locked says that even a root with every capability must not undo what
	// is read-only or covered.
	Locked bool `json:"locked,omitempty"`

	// Volatile says that nothing written in the machine outlives it, so that
	// nothing need wait for the disk.
	Volatile bool `json:"volatile,omitempty"`

	// OneID says that only id 0 exists.
	OneID bool `json:"oneId,omitempty"`

	// Cgroup2 mounts the unified cgroup tree, read-only, where programs look
	// for their limits.
	Cgroup2 bool `json:"cgroup2,omitempty"`

	// Groups mounts it writable: root of the machine may make groups of its own.
	Groups bool `json:"groups,omitempty"`
}

// A Mount is laid over the root, in order.
type Mount struct {
	Path     string `json:"path"`
	Bind     bool   `json:"bind"` // else tmpfs
	File     bool   `json:"file"` // of a bind: the source is no directory
	ReadOnly bool   `json:"readOnly"`
	Size     int64  `json:"size"`
	Mode     uint32 `json:"mode"`
	UID      uint32 `json:"uid"`
	GID      uint32 `json:"gid"`

	Covers []Cover `json:"covers,omitempty"` // of a bind of a directory; parents first
}

// A File is written into the writable layer, owned by root.
type File struct {
	Path    string `json:"path"`
	Content string `json:"content"`
	Mode    uint32 `json:"mode"`

	Append   bool `json:"append,omitempty"`   // to what is there, unless it holds it already
	Optional bool `json:"optional,omitempty"` // only if it is there
	Program  bool `json:"program,omitempty"`  // this program, instead of Content
	Link     bool `json:"link,omitempty"`     // a link to Content, unless something is there
	Java     bool `json:"java,omitempty"`     // Path is a pattern of key stores
}

// maxConfig bounds a configuration, boot files included.
const maxConfig = 16 << 20

// fdBatch is how many descriptors go in one message; the kernel's bound is 253.
const fdBatch = 200

// SendConfig gives c to a guest, which prepares itself while the driver gathers
// the descriptors.
func SendConfig(u *net.UnixConn, c *Config) error { return WriteConfig(u, c) }

// WriteConfig writes c for a guest that reads it from elsewhere than a connection.
func WriteConfig(u io.Writer, c *Config) error {
	body, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if len(body) > maxConfig {
		return fmt.Errorf("the machine's description has %d bytes, more than %d", len(body), maxConfig)
	}
	var head [4]byte
	binary.BigEndian.PutUint32(head[:], uint32(len(body)))
	_, err = u.Write(append(head[:], body...))
	return err
}

// SendFiles gives a guest the descriptors that follow its Config. It builds as
// soon as it has them.
func SendFiles(u *net.UnixConn, files []*os.File) error {
	for len(files) > 0 {
		batch := files[:min(fdBatch, len(files))]
		files = files[len(batch):]
		fds := make([]int, len(batch))
		for i, f := range batch {
			fds[i] = int(f.Fd())
		}
		if _, _, err := u.WriteMsgUnix([]byte{byte(len(batch))}, syscall.UnixRights(fds...), nil); err != nil {
			return err
		}
	}
	return nil
}

// ReceiveConfig is the guest's side of SendConfig and WriteConfig.
func ReceiveConfig(u io.Reader) (*Config, error) {
	var head [4]byte
	if _, err := io.ReadFull(u, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxConfig {
		return nil, errors.New("oversized configuration")
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(u, body); err != nil {
		return nil, err
	}
	c := new(Config)
	if err := json.Unmarshal(body, c); err != nil {
		return nil, err
	}
	return c, nil
}

// files is how many descriptors follow c.
func (c *Config) files() int {
	n := c.Layers + 1
	for _, m := range c.Mounts {
		if m.Bind {
			n++
		}
	}
	if c.Hides {
		n += 2
	}
	return n
}

// ReceiveFiles is the guest's side of SendFiles. The descriptors close on exec.
func ReceiveFiles(u *net.UnixConn, c *Config) ([]int, error) { return receive(u, c.files()) }

func receive(u *net.UnixConn, n int) ([]int, error) {
	var fds []int
	for len(fds) < n {
		var b [1]byte
		oob := make([]byte, syscall.CmsgSpace(4*fdBatch))
		_, oobn, flags, _, err := u.ReadMsgUnix(b[:], oob)
		if err != nil {
			return nil, err
		}
		if flags&syscall.MSG_CTRUNC != 0 {
			return nil, errors.New("too many descriptors for this process: raise the limit of open files")
		}
		msgs, err := syscall.ParseSocketControlMessage(oob[:oobn])
		if err != nil {
			return nil, err
		}
		got := 0
		for _, m := range msgs {
			some, err := syscall.ParseUnixRights(&m)
			if err != nil {
				return nil, err
			}
			fds = append(fds, some...)
			got += len(some)
		}
		if got == 0 || got != int(b[0]) {
			return nil, fmt.Errorf("%d of %d descriptors arrived", got, b[0])
		}
	}
	return fds, nil
}

// Report tells the driver how building went; nil means that the guest serves.
func Report(u *net.UnixConn, err error) {
	text := "ok"
	if err != nil {
		text = "no " + err.Error()
	}
	_, _ = u.Write([]byte(text))
}

// Await is the driver's side of Report.
func Await(u *net.UnixConn) error {
	text, err := io.ReadAll(io.LimitReader(u, 64<<10))
	if err != nil {
		return err
	}
	if string(text) == "ok" {
		return nil
	}
	if len(text) > 3 && string(text[:3]) == "no " {
		return errors.New(string(text[3:]))
	}
	return io.ErrUnexpectedEOF
}
