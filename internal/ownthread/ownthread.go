// Package ownthread runs functions on threads of their own, for what the kernel
// keeps for a thread: its namespaces, its control groups.
package ownthread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Run calls f on a thread that ends with it, so that f may leave it in any state,
// and returns f's error. No other goroutine runs on that thread, and no thread
// begins as a copy of it.
func Run(f func() error) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the runtime ends the thread with the goroutine and
		// starts new ones from a thread that was never locked.
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The main thread cannot end, and /proc/self is its view. While
			// this goroutine holds it, another gets another.
			done <- Run(f)
			runtime.UnlockOSThread()
			return
		}
		done <- f()
	}()
	return <-done
}
