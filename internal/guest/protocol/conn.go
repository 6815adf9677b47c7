package protocol

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
)

// ErrProtocol means that the other side broke the rules of this package. The
// connection is of no further use.
var ErrProtocol = errors.New("guest protocol violated")

// headerSize is one byte of kind and four of length.
const headerSize = 5

// A Frame is one unit of the protocol.
type Frame struct {
	Kind Kind
	Body []byte // valid until the next Read of its Conn
}

// A Conn frames a stream. One goroutine may read while any number write.
type Conn struct {
	raw net.Conn

	buf        []byte // what was read ahead: buf[start:end]
	start, end int
	body       []byte

	// wantFDs is how many descriptors the reader accepts at this moment. The
	// kernel discards what arrives with a plain read, so that the other side
	// can push nothing on us that was not asked for.
	wantFDs int
	fds     []*os.File

	mu  sync.Mutex // writing
	out []byte     // guarded by mu
}

// NewConn returns a Conn on c and owns c from now on.
func NewConn(c net.Conn) *Conn {
	return &Conn{raw: c, buf: make([]byte, 16<<10)}
}

// Raw returns the stream below, for deadlines.
func (c *Conn) Raw() net.Conn { return c.raw }

// Close ends the connection and closes descriptors that nobody took.
func (c *Conn) Close() error { return c.raw.Close() }

// CanPass reports whether descriptors can travel on this connection.
func (c *Conn) CanPass() bool {
	_, ok := c.raw.(*net.UnixConn)
	return ok
}

// AcceptFDs makes following reads accept up to n descriptors; 0 turns that off
// and closes any that were not taken.
func (c *Conn) AcceptFDs(n int) {
	c.wantFDs = n
	if n == 0 {
		for _, f := range c.TakeFDs() {
			f.Close()
		}
	}
}

// TakeFDs returns the descriptors that have arrived; the caller closes them.
func (c *Conn) TakeFDs() []*os.File {
	fds := c.fds
	c.fds = nil
	return fds
}

// Read returns the next frame. A stream that ends between frames is io.EOF,
// one that ends inside a frame io.ErrUnexpectedEOF, one that is not ours
// [ErrProtocol].
func (c *Conn) Read() (Frame, error) {
	var h [headerSize]byte
	if err := c.fill(h[:]); err != nil {
		return Frame{}, err
	}
	kind := Kind(h[0])
	n := binary.BigEndian.Uint32(h[1:])
	if kind == 0 || kind >= kindEnd {
		return Frame{}, fmt.Errorf("%w: frame of kind %d", ErrProtocol, kind)
	}
	if uint64(n) > uint64(kind.maxBody()) {
		return Frame{}, fmt.Errorf("%w: %d bytes in a frame of kind %d", ErrProtocol, n, kind)
	}
	body, err := c.readBody(int(n))
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return Frame{}, err
	}
	return Frame{kind, body}, nil
}

// readBody grows its buffer as bytes arrive: a length alone must not make us
// allocate.
func (c *Conn) readBody(n int) ([]byte, error) {
	const step = MaxData
	if n <= step {
		if cap(c.body) < n {
			c.body = make([]byte, n, max(n, 4<<10))
		}
		body := c.body[:n]
		return body, c.fill(body)
	}
	var big bytes.Buffer
	piece := make([]byte, step)
	for n > 0 {
		p := piece[:min(n, step)]
		if err := c.fill(p); err != nil {
			return nil, err
		}
		big.Write(p)
		n -= len(p)
	}
	return big.Bytes(), nil
}

// fill reads exactly len(p) bytes.
func (c *Conn) fill(p []byte) error {
	got := 0
	for got < len(p) {
		if c.start == c.end {
			// A large rest goes straight to its place.
			if rest := p[got:]; len(rest) >= len(c.buf) && c.wantFDs == 0 {
				n, err := c.raw.Read(rest)
				got += n
				if n == 0 && err != nil {
					return short(err, got)
				}
				continue
			}
			n, err := c.receive(c.buf)
			if n == 0 && err != nil {
				return short(err, got)
			}
			c.start, c.end = 0, n
		}
		n := copy(p[got:], c.buf[c.start:c.end])
		c.start += n
		got += n
	}
	return nil
}

func short(err error, got int) error {
	if errors.Is(err, io.EOF) && got > 0 {
		return io.ErrUnexpectedEOF
	}
	return err
}

// receive is one read, with descriptors if they are wanted.
func (c *Conn) receive(p []byte) (int, error) {
	u, ok := c.raw.(*net.UnixConn)
	if !ok || c.wantFDs == 0 {
		return c.raw.Read(p)
	}
	oob := make([]byte, syscall.CmsgSpace(4*c.wantFDs))
	n, oobn, _, _, err := u.ReadMsgUnix(p, oob) // sets close-on-exec
	if oobn > 0 {
		c.collect(oob[:oobn])
	}
	if err != nil {
		return 0, err // ReadMsgUnix says -1
	}
	if n == 0 {
		err = io.EOF
	}
	return n, err
}

// collect keeps the descriptors of a control message, as many as are wanted.
func (c *Conn) collect(oob []byte) {
	msgs, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return
	}
	for _, m := range msgs {
		fds, err := syscall.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			if len(c.fds) >= c.wantFDs {
				syscall.Close(fd)
				continue
			}
			c.fds = append(c.fds, os.NewFile(uintptr(fd), "passed"))
		}
	}
}

// Write sends one frame. It may be called concurrently.
func (c *Conn) Write(kind Kind, body []byte) error { return c.write(kind, body, nil) }

func (c *Conn) write(kind Kind, body []byte, files []*os.File) error {
	if len(body) > kind.maxBody() {
		return fmt.Errorf("%d bytes do not fit a frame of kind %d", len(body), kind)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = append(c.out[:0], byte(kind), 0, 0, 0, 0)
	binary.BigEndian.PutUint32(c.out[1:], uint32(len(body)))
	c.out = append(c.out, body...)
	p := c.out
	if cap(c.out) > 2*MaxData {
		c.out = nil // a huge request must not stay in memory
	}
	if len(files) > 0 {
		n, err := c.sendFDs(p, files)
		if err != nil {
			return err
		}
		if p = p[n:]; len(p) == 0 {
			return nil // writing nothing to a peer that has gone is an error
		}
	}
	_, err := c.raw.Write(p)
	return err
}

// sendFDs sends the beginning of p together with files and returns how much of
// p went.
func (c *Conn) sendFDs(p []byte, files []*os.File) (int, error) {
	u, ok := c.raw.(*net.UnixConn)
	if !ok {
		return 0, errors.New("this connection cannot pass descriptors")
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	n, _, err := u.WriteMsgUnix(p, syscall.UnixRights(fds...), nil)
	return n, err
}

// WriteMessage sends v as JSON in a frame of kind, with files if there are any.
func (c *Conn) WriteMessage(kind Kind, v any, files ...*os.File) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return c.write(kind, body, files)
}

// ReadMessage reads one frame, which must be of kind, into v. Unknown fields
// and trailing data violate the protocol.
func (c *Conn) ReadMessage(kind Kind, v any) error {
	f, err := c.Read()
	if err != nil {
		return err
	}
	if f.Kind != kind {
		return fmt.Errorf("%w: frame of kind %d where %d was due", ErrProtocol, f.Kind, kind)
	}
	return Decode(f.Body, v)
}

// Decode reads the JSON of a frame.
func Decode(body []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%w: %v", ErrProtocol, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("%w: data after the message", ErrProtocol)
	}
	return nil
}

// WriteCredit tells the other side that n bytes of stream were consumed.
func (c *Conn) WriteCredit(stream Kind, n int) error {
	var b [5]byte
	b[0] = byte(stream)
	binary.BigEndian.PutUint32(b[1:], uint32(n))
	return c.Write(KindCredit, b[:])
}

// ParseCredit reads the body of a credit frame.
func ParseCredit(body []byte) (stream Kind, n int, err error) {
	if len(body) != 5 {
		return 0, 0, fmt.Errorf("%w: credit of %d bytes", ErrProtocol, len(body))
	}
	v := binary.BigEndian.Uint32(body[1:])
	if v > Window {
		return 0, 0, fmt.Errorf("%w: credit for %d bytes", ErrProtocol, v)
	}
	return Kind(body[0]), int(v), nil
}

// A Size is the size of a terminal in character cells.
type Size struct{ Rows, Cols uint16 }

// WriteResize sends a new terminal size.
func (c *Conn) WriteResize(s Size) error {
	var b [4]byte
	binary.BigEndian.PutUint16(b[:], s.Rows)
	binary.BigEndian.PutUint16(b[2:], s.Cols)
	return c.Write(KindResize, b[:])
}

// ParseResize reads the body of a resize frame.
func ParseResize(body []byte) (Size, error) {
	if len(body) != 4 {
		return Size{}, fmt.Errorf("%w: resize of %d bytes", ErrProtocol, len(body))
	}
	return Size{binary.BigEndian.Uint16(body), binary.BigEndian.Uint16(body[2:])}, nil
}

// ParseSignal reads the body of a signal frame.
func ParseSignal(body []byte) (syscall.Signal, error) {
	if len(body) != 1 || body[0] == 0 || body[0] > 64 {
		return 0, fmt.Errorf("%w: signal %v", ErrProtocol, body)
	}
	return syscall.Signal(body[0]), nil
}
