package builder

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Whoever deletes the state directory deletes the lock that an idle builder
// takes before it ends; it must end all the same.
func TestAnIdleBuilderEndsWithoutItsState(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "builder")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	file := filepath.Join(dir, "lock")

	held, err := tryLock(file)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		time.Sleep(150 * time.Millisecond) // a client that connects keeps it up so long
		held.Close()
	}()
	begun := time.Now()
	f, why := newPresence().waitIdle(ctx, time.Millisecond, file)
	if f == nil || why != "idle" || time.Since(begun) < 100*time.Millisecond {
		t.Errorf("with a lock: %v, %q after %v", f, why, time.Since(begun))
	}
	f.Close()

	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if f, why := newPresence().waitIdle(ctx, time.Millisecond, file); f != nil || !strings.HasPrefix(why, "idle") {
		t.Errorf("without: %v, %q", f, why)
	}
}
