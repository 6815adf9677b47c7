package agent

import (
	"errors"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/guest/protocol"
)

// oomScore makes the kernel choose a command before the guest when memory runs
// out: without its guest a machine is of no use. It is relative to nothing
// else in the machine, and raising one's own score needs no capability.
const oomScore = "100"

// exec runs a command for as long as the connection lasts.
func (a *Agent) exec(c *protocol.Conn, r *protocol.Exec, passed []*os.File) {
	a.mu.Lock()
	stopping := a.stopping
	a.mu.Unlock()
	if stopping {
		a.fail(c, protocol.Faultf(protocol.FaultFailed, "the machine is stopping"))
		return
	}
	file, fault := prepare(r, len(passed))
	if fault != nil {
		a.fail(c, fault)
		return
	}
	st, err := openStdio(r, passed)
	if err != nil {
		a.fail(c, protocol.Faultf(protocol.FaultFailed, "opening the streams of %s: %v", r.Argv[0], err))
		return
	}
	defer st.close()

	attr := &syscall.ProcAttr{
		Dir:   r.Dir,
		Env:   r.Env,
		Files: []uintptr{st.child[0].Fd(), st.child[1].Fd(), st.child[2].Fd()},
		Sys: &syscall.SysProcAttr{
			Setsid:     true,
			Setctty:    st.term != nil,
			Credential: &syscall.Credential{Uid: r.UID, Gid: r.GID, Groups: r.GIDs},
		},
	}
	if singleID() {
		attr.Sys.Credential.NoSetGroups = true
	}
	pid, done, err := a.reaper.spawn(file, r.Argv, attr)
	if err != nil {
		a.fail(c, protocol.Faultf(protocol.FaultCannotStart, "%s: %v", r.Argv[0], err))
		return
	}
	if r.Key != "" {
		done = a.keep(r.Key, done)
	}
	_ = os.WriteFile("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", []byte(oomScore), 0)
	st.closeChild()
	for _, f := range passed {
		f.Close() // a stream that only we held open would never end
	}
	if st.term != nil {
		a.mu.Lock()
		a.terms[pid] = struct{}{}
		a.mu.Unlock()
		defer func() {
			a.mu.Lock()
			delete(a.terms, pid)
			a.mu.Unlock()
		}()
	}
	if a.answer(c, protocol.Answer{PID: pid}) != nil {
		if !r.Detach {
			a.endFamily(pid, done)
		}
		return
	}
	if r.Detach {
		return
	}
	a.attend(c, r, st, pid, done)
}

// attend moves bytes, sizes and signals until the command has ended and its
// output is on its way, or the connection is lost.
func (a *Agent) attend(c *protocol.Conn, r *protocol.Exec, st *stdio, pid int, done <-chan protocol.Exit) {
	var (
		in      = protocol.NewInbox()
		budgets = map[protocol.Kind]*protocol.Budget{}
		outputs sync.WaitGroup
		lost    = make(chan struct{})
	)
	for kind, p := range st.out {
		b := protocol.NewBudget()
		budgets[kind] = b
		outputs.Go(func() { _ = protocol.Send(c, kind, p, b) })
	}
	// These two end with the connection, which serve closes.
	go func() {
		if st.in == nil {
			return
		}
		// When the command closes its stdin, credit stops and the host waits.
		if in.Drain(c, protocol.KindIn, st.in) == nil && !r.TTY {
			st.in.Close()
		}
	}()
	go func() {
		defer close(lost)
		err := receive(c, in, budgets, st, pid)
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF // the end of the connection, not of stdin
		}
		in.Fail(err)
		for _, b := range budgets {
			b.Close()
		}
	}()

	var exit protocol.Exit
	select {
	case exit = <-done:
	case <-lost:
		if !r.Stay {
			a.endFamily(pid, done)
			return
		}
		outputs.Wait()
		return
	}
	// All that the command wrote is in its pipes now. Others may hold them
	// open for ever, so only what is there is waited for.
	for _, p := range st.out {
		p.finish()
	}
	outputs.Wait()
	_ = c.WriteMessage(protocol.KindExit, exit)
}

// drain takes what is printed and drops it until nobody can print any more.
func (o *output) drain() {
	defer o.f.Close()
	if o.f.SetReadDeadline(time.Time{}) == nil {
		_, _ = io.Copy(io.Discard, o.f)
	}
}

// receive handles the frames of the host. It waits for nothing but frames.
func receive(c *protocol.Conn, in *protocol.Inbox, budgets map[protocol.Kind]*protocol.Budget, st *stdio, pid int) error {
	for {
		f, err := c.Read()
		if err != nil {
			return err
		}
		switch f.Kind {
		case protocol.KindIn:
			err = in.Put(f.Body)
		case protocol.KindCredit:
			var kind protocol.Kind
			var n int
			if kind, n, err = protocol.ParseCredit(f.Body); err != nil {
				break
			}
			b, ok := budgets[kind]
			if !ok {
				return protocol.ErrProtocol
			}
			err = b.Add(n)
		case protocol.KindResize:
			var s protocol.Size
			if s, err = protocol.ParseResize(f.Body); err == nil && st.term != nil {
				resize(st.term, s)
			}
		case protocol.KindSignal:
			var s syscall.Signal
			if s, err = protocol.ParseSignal(f.Body); err == nil {
				// The group, as a terminal would: a shell waits for its
				// child and would act on the signal too late.
				syscall.Kill(-pid, s)
			}
		default:
			return protocol.ErrProtocol
		}
		if err != nil {
			return err
		}
	}
}

// prepare judges r and finds its file.
func prepare(r *protocol.Exec, passed int) (string, *protocol.Fault) {
	bad := func(format string, args ...any) (string, *protocol.Fault) {
		return "", protocol.Faultf(protocol.FaultInvalid, format, args...)
	}
	cannot := func(format string, args ...any) (string, *protocol.Fault) {
		return "", protocol.Faultf(protocol.FaultCannotStart, format, args...)
	}
	if len(r.Argv) == 0 || r.Argv[0] == "" {
		return cannot("no command given")
	}
	if len(r.Passed) != passed || (passed > 0 && (r.TTY || r.Detach || r.Stay)) {
		return bad("%d descriptors came, %d were announced", passed, len(r.Passed))
	}
	for i, fd := range r.Passed {
		if fd < 0 || fd > 2 || i > 0 && fd <= r.Passed[i-1] {
			return bad("passed descriptors %v are not some of 0, 1, 2 in order", r.Passed)
		}
	}
	if r.Stay && (r.TTY || r.Detach) {
		return bad("a command that stays has no terminal and is not detached")
	}
	if r.Key != "" && !r.Stay || len(r.Key) > protocol.MaxKey {
		return bad("a key is for a command that stays, and has at most %d bytes", protocol.MaxKey)
	}
	if r.Dir == "" {
		r.Dir = "/"
	}
	if !path.IsAbs(r.Dir) {
		return cannot("working directory %q is not absolute", r.Dir)
	}
	if st, err := os.Stat(r.Dir); err != nil || !st.IsDir() {
		return cannot("working directory %s is not there", r.Dir)
	}
	file, err := lookPath(r)
	if err != nil {
		return cannot("%s: %v", r.Argv[0], err)
	}
	return file, nil
}

var errNotFound = errors.New("command not found")

// lookPath finds the command as execvp would, in the PATH it will run with.
func lookPath(r *protocol.Exec) (string, error) {
	name := r.Argv[0]
	if strings.ContainsRune(name, '/') {
		if path.IsAbs(name) {
			return name, nil
		}
		return path.Join(r.Dir, name), nil
	}
	dirs := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	for _, e := range r.Env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			dirs = v
		}
	}
	var denied error
	for _, dir := range strings.Split(dirs, ":") {
		if !path.IsAbs(dir) {
			dir = path.Join(r.Dir, dir)
		}
		file := path.Join(dir, name)
		st, err := os.Stat(file)
		if err != nil || st.IsDir() {
			continue
		}
		if st.Mode()&0o111 == 0 {
			denied = syscall.EACCES
			continue
		}
		return file, nil
	}
	if denied != nil {
		return "", denied
	}
	return "", errNotFound
}

// singleID reports whether this user namespace forbids setgroups, which is the
// case when an ordinary user without subordinate ids made it.
var singleID = sync.OnceValue(func() bool {
	b, err := os.ReadFile("/proc/self/setgroups")
	return err == nil && strings.TrimSpace(string(b)) == "deny"
})

// A stdio is both sides of a command's streams.
type stdio struct {
	child [3]*os.File
	term  *os.File // master of the terminal, if there is one
	in    io.WriteCloser
	out   map[protocol.Kind]*output

	shared bool // child's three are one file
	stay   bool // out goes on being read after the end
	closed bool
}

// openStdio makes the streams that r asks for.
func openStdio(r *protocol.Exec, passed []*os.File) (*stdio, error) {
	st := &stdio{out: map[protocol.Kind]*output{}, stay: r.Stay}
	if r.TTY && !r.Detach {
		master, slave, err := openTerminal(r.UID, protocol.Size{Rows: r.Rows, Cols: r.Cols})
		if err != nil {
			return nil, err
		}
		st.term, st.shared = master, true
		st.child = [3]*os.File{slave, slave, slave}
		st.out[protocol.KindOut] = newOutput(master)
		if r.Stdin {
			st.in = keepOpen{master}
		}
		return st, nil
	}
	for i, fd := range r.Passed {
		// A copy, so that both owners may close theirs.
		n, err := unix.FcntlInt(passed[i].Fd(), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			st.close()
			return nil, err
		}
		st.child[fd] = os.NewFile(uintptr(n), "passed")
	}
	for fd := range st.child {
		if st.child[fd] != nil {
			continue
		}
		if r.Detach || fd == 0 && !r.Stdin {
			null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
			if err != nil {
				st.close()
				return nil, err
			}
			st.child[fd] = null
			continue
		}
		if r.Stay && fd == 2 {
			st.child[2] = st.child[1] // closed twice, which does no harm
			continue
		}
		pr, pw, err := pipe(fd)
		if err != nil {
			st.close()
			return nil, err
		}
		switch fd {
		case 0:
			st.child[0], st.in = pr, pw
		case 1:
			st.child[1], st.out[protocol.KindOut] = pw, newOutput(pr)
		case 2:
			st.child[2], st.out[protocol.KindErr] = pw, newOutput(pr)
		}
	}
	return st, nil
}

// pipe makes a pipe whose end for the child blocks and whose end for us does
// not: a command that meets EAGAIN on its stdin breaks.
func pipe(fd int) (r, w *os.File, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, err
	}
	ours := 0
	if fd == 0 {
		ours = 1
	}
	if err := unix.SetNonblock(p[ours], true); err != nil {
		unix.Close(p[0])
		unix.Close(p[1])
		return nil, nil, err
	}
	return os.NewFile(uintptr(p[0]), "pipe"), os.NewFile(uintptr(p[1]), "pipe"), nil
}

func (s *stdio) closeChild() {
	if s.closed {
		return
	}
	s.closed = true
	for i, f := range s.child {
		if f != nil && (i == 0 || !s.shared) {
			f.Close()
		}
	}
}

func (s *stdio) close() {
	s.closeChild()
	if s.in != nil {
		s.in.Close()
	}
	for _, o := range s.out {
		if s.stay {
			go o.drain()
			continue
		}
		o.f.Close()
	}
	if s.term != nil {
		s.term.Close()
	}
}

// keepOpen is a terminal as stdin: its end of input is a character, not a close.
type keepOpen struct{ *os.File }

func (keepOpen) Close() error { return nil }
