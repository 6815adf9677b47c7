package machinedir

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/guest/client"
)

// WriteRun records what runs. It is not synced: it means nothing after a crash
// of the whole system.
func (m *Machine) WriteRun(r *Run) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	tmp := filepath.Join(m.Path, runFile+".tmp")
	if err := os.WriteFile(tmp, append(b, '\n'), 0o600); err != nil {
		return Explain(err)
	}
	if err := os.Rename(tmp, filepath.Join(m.Path, runFile)); err != nil {
		return Explain(err)
	}
	m.Run = r
	return nil
}

// Listen makes the socket on which the guest will answer, long after this
// process.
func (m *Machine) Listen() (*os.File, error) {
	if err := os.Remove(filepath.Join(m.Path, socketFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, Explain(err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), socketFile)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: m.socketPath()}); err != nil {
		f.Close()
		return nil, Explain(os.NewSyscallError("bind", err))
	}
	if err := unix.Listen(fd, 128); err != nil {
		f.Close()
		return nil, os.NewSyscallError("listen", err)
	}
	return f, nil
}

// begun returns when the last boot of m began, unless all that was left of it has been
// cleared.
func (m *Machine) begun() (time.Time, bool) {
	st, err := os.Lstat(filepath.Join(m.Path, socketFile))
	if err != nil {
		return time.Time{}, false
	}
	return st.ModTime(), true
}

// Blame adds to err what the guest said when it broke.
func (m *Machine) Blame(err error) error {
	b, rerr := os.ReadFile(filepath.Join(m.Path, LogFile))
	if rerr != nil || len(b) == 0 {
		return err
	}
	if len(b) > 300 {
		b = b[:300]
	}
	return fmt.Errorf("%w (the guest said %q)", err, b)
}

// OpenLog empties the file for what the guest says when it breaks.
func (m *Machine) OpenLog() (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(m.Path, LogFile), os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, Explain(err)
	}
	return f, nil
}

// ClearRun forgets what ran. Nothing does any more.
func (m *Machine) ClearRun() error {
	for _, name := range []string{runFile, runFile + ".tmp", socketFile} {
		if err := os.Remove(filepath.Join(m.Path, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return Explain(err)
		}
	}
	m.Run = nil
	return nil
}

// Kill ends the process of a running machine and returns when it has ended:
// the first process of a PID namespace, and with it all others there.
func (m *Machine) Kill() error {
	p, err := m.Process()
	if err != nil {
		return nil // it does not run
	}
	defer p.Close()
	if err := p.Kill(); err != nil {
		return fmt.Errorf("killing machine %s: %w", m.ID, err)
	}
	// Not the caller's context: half a kill is worse than a late one.
	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	if p.Wait(ctx) != nil {
		return fmt.Errorf("killing machine %s: its guest does not end even when killed; it waits in the kernel", m.ID)
	}
	return nil
}

// killTimeout bounds the wait for a killed process.
const killTimeout = 20 * time.Second

// CgroupName names the machine's control groups. It is unique on this system;
// the id is so in its directory only.
func (m *Machine) CgroupName() string {
	sum := sha256.Sum256([]byte(filepath.Dir(m.Path)))
	return fmt.Sprintf("%s-%x", m.ID, sum[:4])
}

// Stop asks the guest to end its processes within grace. What it answers is
// for a log: the caller kills the machine afterwards in any case.
func (m *Machine) Stop(ctx context.Context, grace time.Duration) error {
	if grace <= 0 || !m.Running() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, grace+2*time.Second)
	defer cancel()
	return (&client.Client{Dial: m.Dial}).Shutdown(ctx, grace)
}

// Answers reports whether the machine runs and its guest answers. A machine
// whose starter was killed may be running towards its end: that is waited for,
// and then it does not run. A guest that neither answers nor ends is an error.
func (m *Machine) Answers(ctx context.Context) (bool, error) {
	p, err := m.Process()
	if err != nil {
		return false, nil
	}
	defer p.Close()
	_, err = (&client.Client{Dial: m.Dial}).Info(ctx)
	if err == nil {
		return true, nil
	}
	wait, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if p.Wait(wait) == nil {
		return false, nil
	}
	return false, fmt.Errorf("machine %s runs and its guest does not answer; stop it first: %w", m.ID, err)
}
