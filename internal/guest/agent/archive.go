package agent

import (
	"io"
	"path"
	"syscall"

	"github.com/kitbox-dev/kitbox/internal/guest/protocol"
	"github.com/kitbox-dev/kitbox/internal/guest/tarball"
)

// pack sends a tree: an answer, the tar, and an answer that says whether it is
// all of it.
func (a *Agent) pack(c *protocol.Conn, r *protocol.Pack) {
	st, err := statPath(&protocol.Stat{Path: r.Path, Follow: r.Follow})
	if err != nil {
		a.fail(c, faultOf(r.Path, err))
		return
	}
	if a.answer(c, protocol.Answer{Stat: st}) != nil {
		return
	}
	b := protocol.NewBudget()
	pr, pw := io.Pipe()
	go func() {
		defer pr.Close() // nobody takes more
		credit(c, b)
	}()
	done := make(chan error, 1)
	go func() {
		err := tarball.Pack(pw, r.Path, tarball.PackOptions{Name: r.Name, Follow: r.Follow})
		pw.Close() // the answer tells an end from a break
		done <- err
	}()
	sent := protocol.Send(c, protocol.KindOut, pr, b)
	pr.Close()
	if err := <-done; err != nil {
		a.fail(c, faultOf(r.Path, err))
		return
	}
	if sent == nil {
		_ = a.answer(c, protocol.Answer{})
	}
}

// unpack writes a tree with the rights of one user.
func (a *Agent) unpack(c *protocol.Conn, r *protocol.Unpack) {
	if !path.IsAbs(r.Dir) || r.Preserve && r.UID != 0 {
		a.fail(c, faultOf(r.Dir, syscall.EINVAL))
		return
	}
	st, err := statPath(&protocol.Stat{Path: r.Dir, Follow: true})
	if err == nil && st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		err = syscall.ENOTDIR
	}
	if err != nil {
		a.fail(c, faultOf(r.Dir, err))
		return
	}
	if a.answer(c, protocol.Answer{}) != nil {
		return
	}
	in := &input{c: c}
	err = as(r.UID, r.GID, func() error {
		return tarball.Unpack(in, r.Dir, tarball.UnpackOptions{Preserve: r.Preserve, Links: true})
	})
	if err != nil {
		a.fail(c, faultOf(r.Dir, err))
		return
	}
	_ = a.answer(c, protocol.Answer{})
}

// input reads KindIn to its end and gives credit as it is read.
type input struct {
	c    *protocol.Conn
	rest []byte
	owed int
	end  bool
}

// Read implements [io.Reader].
func (i *input) Read(p []byte) (int, error) {
	for len(i.rest) == 0 {
		if i.end {
			return 0, io.EOF
		}
		if i.owed >= protocol.Window/4 {
			if err := i.c.WriteCredit(protocol.KindIn, i.owed); err != nil {
				return 0, err
			}
			i.owed = 0
		}
		f, err := i.c.Read()
		if err != nil {
			return 0, err
		}
		if f.Kind != protocol.KindIn {
			return 0, protocol.ErrProtocol
		}
		i.end = len(f.Body) == 0
		i.rest = append(i.rest[:0], f.Body...)
		i.owed += len(f.Body)
	}
	n := copy(p, i.rest)
	i.rest = i.rest[n:]
	return n, nil
}
