package ownthread

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// What f leaves its thread in is met by nobody after it.
func TestAThreadEndsWithItsFunction(t *testing.T) {
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			err := Run(func() error {
				if unix.Gettid() == unix.Getpid() {
					return errors.New("it runs on the main thread")
				}
				return os.WriteFile(fmt.Sprintf("/proc/self/task/%d/comm", unix.Gettid()), []byte("marked"), 0)
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for range 200 {
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			b, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/comm", unix.Gettid()))
			if err != nil || string(b) == "marked\n" {
				t.Errorf("a later goroutine runs on a thread called %q, %v", b, err)
			}
		})
	}
	all.Wait()
}

func TestTheErrorComesBack(t *testing.T) {
	want := errors.New("why")
	if err := Run(func() error { return want }); err != want {
		t.Errorf("Run = %v", err)
	}
}
