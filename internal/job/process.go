package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/child"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// ProcessName is the first argument of a job's command line; the program that
// finds it there calls [Main].
const ProcessName = "kitbox-job"

// The descriptor that a job's process tells on whether the command has started.
const wordFD = 3

// A Spec is what a job is to do, as it travels to its process: on a pipe, since
// arguments are for all to read.
type Spec struct {
	Sandbox string   `json:"sandbox"`
	Args    []string `json:"args"`
	Dir     string   `json:"dir"`
	User    string   `json:"user"`
	Env     []string `json:"env"`
}

// A word is what is told of the start.
type word struct {
	OK         bool   `json:"ok"`
	Error      string `json:"error,omitzero"`
	CannotExec bool   `json:"cannotExec,omitzero"`
	Lost       bool   `json:"lost,omitzero"` // it may have begun
}

// Spawn starts a job and returns its id once its command runs. The command has
// not run when there is an error, unless that is [kiterr.ErrLost]. env is the whole environment of its process.
func Spawn(ctx context.Context, d Dir, s Spec, env []string) (id string, err error) {
	d.forget()
	if id, err = d.newID(); err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			d.remove(id)
		}
	}()
	b, err := json.Marshal(s)
	if err != nil {
		return "", err
	}
	inR, inW, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer inR.Close()
	defer inW.Close()
	wordR, wordW, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer wordR.Close()
	defer wordW.Close()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return "", err
	}
	defer null.Close()
	p, err := os.StartProcess("/proc/self/exe", []string{ProcessName, string(d), id}, &os.ProcAttr{
		Dir: "/", Env: env, Files: []*os.File{inR, null, null, wordW}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return "", fmt.Errorf("starting a job: %w", err)
	}
	inR.Close()
	wordW.Close()
	stop := context.AfterFunc(ctx, func() { _ = p.Signal(syscall.SIGTERM) })
	defer stop()
	if _, err := inW.Write(b); err != nil {
		return "", fmt.Errorf("starting a job: %w", err)
	}
	inW.Close()
	var w word
	if err := json.NewDecoder(wordR).Decode(&w); err != nil {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		return "", fmt.Errorf("the job's process ended before its command began: %w", err)
	}
	if !w.OK {
		_, _ = p.Wait()
		if w.CannotExec {
			return "", fmt.Errorf("%s: %w", w.Error, kiterr.ErrCannotExec)
		}
		if w.Lost {
			return "", fmt.Errorf("%s: %w", w.Error, kiterr.ErrLost)
		}
		return "", errors.New(w.Error)
	}
	return id, p.Release()
}

// Main is the whole life of a job's process. run runs the command, calls started
// once it runs, and writes its output to out. args are the process's arguments
// with the name; kept are the descriptors that it needs besides those of [Spawn].
func Main(args []string, kept []int, run func(ctx context.Context, s Spec, out io.Writer, started func()) (*sandbox.Result, error)) (exitCode int) {
	if len(args) != 3 || !filepath.IsAbs(args[1]) || !validID(args[2]) {
		return 1
	}
	d, id := Dir(args[1]), args[2]
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGPIPE)
	if err := child.CloseInherited(wordFD+1, kept...); err != nil {
		return 1
	}
	_ = unix.CloseRange(wordFD, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
	tell := os.NewFile(wordFD, "word")
	told := func(w word) {
		_ = json.NewEncoder(tell).Encode(w)
		tell.Close()
	}
	var s Spec
	if err := json.NewDecoder(os.Stdin).Decode(&s); err != nil {
		told(word{Error: err.Error()})
		return 1
	}
	os.Stdin.Close()
	lock, err := os.OpenFile(d.file(id, lockExt), os.O_RDWR, 0)
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		told(word{Error: err.Error()})
		return 1
	}
	defer lock.Close()
	r := Record{ID: id, Args: s.Args, PID: os.Getpid(), Started: time.Now()}
	out := &keep{dir: d, id: id}
	begun := false
	res, err := run(ctx, s, out, func() {
		begun = true
		if werr := d.write(r); werr != nil {
			told(word{Error: werr.Error()})
			stop()
			return
		}
		told(word{OK: true})
	})
	if !begun {
		if err == nil {
			err = errors.New("the command was not begun")
		}
		told(word{Error: err.Error(), CannotExec: errors.Is(err, kiterr.ErrCannotExec), Lost: errors.Is(err, kiterr.ErrLost)})
		return 1
	}
	r.Ended = time.Now()
	switch {
	case err != nil && ctx.Err() != nil:
		r.ExitCode, r.Error = 128+int(syscall.SIGTERM), "it was stopped"
	case err != nil:
		r.ExitCode, r.Error = 1, err.Error()
	default:
		r.ExitCode, r.Signal = res.ExitCode, res.Signal
	}
	_ = d.write(r) // with its sandbox, the record goes too
	return 0
}
