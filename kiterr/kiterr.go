// Package kiterr holds the error families of kitbox and the exit status of
// each. Every other package may import it and it imports none of them.
//
// A family answers "what can the caller do about it", not "what went wrong":
// test for one with [errors.Is] and never compare text. The type that carries
// the details of a failure lives with the code that fails.
package kiterr

import (
	"context"
	"errors"
	"fmt"
)

// The families. An error belongs to at most one of ErrRefused and ErrWidening;
// the others may be combined with either.
var (
	// ErrRefused means the request was understood and declined: by the rules
	// of the format, by policy, or because a required capability is one this
	// host does not grant. Trying again unchanged cannot help.
	ErrRefused = errors.New("refused")

	// ErrWidening means the candidate asks for authority that was not granted
	// before, and nobody has approved it yet.
	ErrWidening = errors.New("approval needed")

	// ErrUnsupported means this backend cannot do it, though another might.
	ErrUnsupported = errors.New("unsupported")

	// ErrNotFound means the named thing does not exist.
	ErrNotFound = errors.New("not found")

	// ErrExists means the name is taken.
	ErrExists = errors.New("already exists")

	// ErrNotRunning means the sandbox exists but has no running machine.
	ErrNotRunning = errors.New("not running")

	// ErrCannotExec means a command inside a sandbox could not be started at
	// all, as opposed to having been started and having failed.
	ErrCannotExec = errors.New("cannot execute")

	// ErrLost means a command inside a sandbox had been started, or may have been,
	// and nobody saw how it ended: the sandbox ended first, or its output could not
	// be written.
	ErrLost = errors.New("lost")

	// ErrUnavailable means this machine lacks something kitbox needs (user
	// namespaces, a program, disk space). The text says what and how to get it.
	ErrUnavailable = errors.New("unavailable on this machine")
)

// The exit statuses of every kitbox program. They are part of the interface:
// see STABILITY.md.
const (
	StatusOK         = 0
	StatusFailed     = 1
	StatusRefused    = 2
	StatusWidening   = 3
	StatusCannotExec = 125
)

// An ExitStatus is the status of a command that ran inside a sandbox, on its
// way to becoming the status of the kitbox process. It is a result rather than
// a failure, so nothing is printed for it. Zero is success; a command ended by
// signal n has status 128+n.
type ExitStatus int

func (s ExitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// ExitCode maps err to a process exit status: 0 for nil, the child's own status
// for an [ExitStatus], 2 for a refusal, 3 for a widening, 125 when a command in
// a sandbox could not be started, 130 for an interruption, and 1 for the rest.
// Refusal has its own status so that a conformance suite can tell "declined"
// from "fell over".
func ExitCode(err error) int {
	var status ExitStatus
	switch {
	case err == nil:
		return StatusOK
	case errors.As(err, &status):
		return int(status)
	case errors.Is(err, ErrRefused):
		return StatusRefused
	case errors.Is(err, ErrWidening):
		return StatusWidening
	case errors.Is(err, ErrCannotExec):
		return StatusCannotExec
	case errors.Is(err, context.Canceled):
		return 130
	default:
		return StatusFailed
	}
}
