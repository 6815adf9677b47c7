// Package juggler exchanges files for tests while somebody reads them, as whoever is in a
// sandbox can in a directory of the user's.
package juggler

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Exchange gives the files at a and b each other's names, again and again, until read
// has returned both what is at a and what is at b; read reads a, and says what it was.
// The test fails if that does not happen within some seconds, as when read waits, which
// is then left behind.
func Exchange(t *testing.T, a, b string, read func() (second bool)) {
	t.Helper()
	over, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-over:
				ended <- nil
				return
			default:
			}
			if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil {
				ended <- err
				return
			}
		}
	}()
	done := make(chan struct{})
	go func() {
		defer close(done)
		var seen [2]int
		for i := 0; i < 2000 || seen[0] == 0 || seen[1] == 0; i++ {
			select {
			case <-over:
				return
			default:
			}
			if read() {
				seen[1]++
			} else {
				seen[0]++
			}
		}
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Errorf("%s is waited for, or was never another", a)
	}
	close(over)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
