// Package helper runs the commands that an operator has chosen to print a
// secret: tokens that live for an hour cannot be stored once.
//
// A helper runs on the host, as whoever runs kitbox, and outside every sandbox.
// That it may was asked when it was set; this package only bounds it.
package helper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/kitbox-dev/kitbox/internal/secret"
)

// Bounds of one run.
const (
	Timeout   = 30 * time.Second
	maxOutput = 128 << 10
)

// Lasts is how long a token counts as good that comes without an end.
const Lasts = 5 * time.Minute

// variables are those of the operator's environment that a helper gets: where
// tools find their configuration, and the agents that they ask.
var variables = []string{"HOME", "PATH", "USER", "LOGNAME", "LANG", "LC_ALL", "TMPDIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME",
	"XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "SSH_AUTH_SOCK", "GNUPGHOME"}

// Environment returns the variables for a helper, out of getenv.
func Environment(getenv func(string) string) []string {
	var env []string
	for _, name := range variables {
		if v := getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// A Token is what a helper printed.
type Token struct {
	Value   secret.Value
	Expires time.Time // never zero
}

// Run runs command with env, which is all it has, and reads a token from what it
// prints: the token alone, or a JSON object with the token and, if it is known,
// its end: {"token":"…","expiresAt":"2030-01-02T15:04:05Z"}, or "expiresIn" in
// seconds. What it prints to stderr goes to errs, if that is not nil, and is
// never part of an error.
func Run(ctx context.Context, command string, env []string, errs io.Writer) (Token, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	c := exec.CommandContext(ctx, "/bin/sh", "-c", command)
	c.Env, c.Dir, c.Stderr = env, "/", errs
	if c.Env == nil {
		c.Env = []string{}
	}
	out := &bounded{}
	c.Stdout = out
	defer func() { clear(out.b) }()
	// Its children too: a pipe that one of them holds would be waited for.
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = time.Second
	err := c.Run()
	var exit *exec.ExitError
	switch {
	case out.full:
		return Token{}, fmt.Errorf("the command printed more than %d bytes", maxOutput)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return Token{}, fmt.Errorf("the command took longer than %v", Timeout)
	case ctx.Err() != nil:
		return Token{}, ctx.Err()
	case errors.As(err, &exit):
		return Token{}, fmt.Errorf("the command ended with %s", exit.ProcessState)
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		return Token{}, fmt.Errorf("the command could not be run: %w", err)
	}
	return parse(out.b, time.Now())
}

func parse(b []byte, now time.Time) (Token, error) {
	t := Token{Expires: now.Add(Lasts)}
	text := bytes.TrimSpace(b)
	if bytes.HasPrefix(text, []byte("{")) {
		var doc struct {
			Token     string    `json:"token"`
			ExpiresAt time.Time `json:"expiresAt"`
			ExpiresIn float64   `json:"expiresIn"`
		}
		if err := json.Unmarshal(text, &doc); err != nil || doc.Token == "" {
			// The cause would quote what was printed.
			return Token{}, errors.New(`the command printed JSON that is not {"token": …, "expiresAt": …}`)
		}
		switch {
		case !doc.ExpiresAt.IsZero():
			t.Expires = doc.ExpiresAt
		case doc.ExpiresIn > 0:
			t.Expires = now.Add(time.Duration(min(doc.ExpiresIn, 10*365*24*3600) * float64(time.Second)))
		}
		if !t.Expires.After(now) {
			return Token{}, errors.New("the command printed a token that has expired")
		}
		text = []byte(doc.Token)
	}
	var err error
	if t.Value, err = secret.Read(bytes.NewReader(text)); err != nil {
		return Token{}, fmt.Errorf("the command printed no token: %w", err)
	}
	return t, nil
}

// bounded keeps what fits and fails after that, which ends the command.
type bounded struct {
	b    []byte
	full bool
}

// Write implements [io.Writer].
func (w *bounded) Write(p []byte) (int, error) {
	if len(w.b)+len(p) > maxOutput {
		w.full = true
		return 0, os.ErrInvalid
	}
	w.b = append(w.b, p...)
	return len(p), nil
}
