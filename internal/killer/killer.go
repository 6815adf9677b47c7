// Package killer kills for tests whoever replaces a file, again and again, so that what
// a kill leaves can be looked at, and not by luck alone: in each other round it waits for
// the file that is to take the other's place.
package killer

import (
	"bufio"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/store/durable"
)

// A Victim is a process of the test's own program that replaces a file for ever.
type Victim struct {
	// Env is the variable, NAME=VALUE, that has the program do so. Required.
	Env string

	// Dir and Name are of the file. Required.
	Dir, Name string

	// Lines is how many lines the process prints until it replaces the file, or
	// has done so. Required.
	Lines int

	// Within is when a kill comes at the latest in the rounds without a wait.
	// Required.
	Within time.Duration
}

// Kill starts and kills v at least rounds times, and up to ten times as often until a
// kill has come while the file was being replaced; if none has, the test fails. After each
// kill it calls left with the last line that was printed, while what was not finished, if
// anything, is still there.
func (v Victim) Kill(t *testing.T, rounds int, left func(said string)) {
	t.Helper()
	temp := v.Dir + "/" + durable.TempPrefix + v.Name
	caught := 0
	for round := 0; round < rounds || caught == 0 && round < 10*rounds; round++ {
		left(v.once(t, temp, round%2 == 1))
		switch err := os.Remove(temp); {
		case err == nil:
			caught++
		case !errors.Is(err, fs.ErrNotExist):
			t.Fatal(err)
		}
	}
	if caught == 0 {
		t.Errorf("no kill came while %s was replaced", v.Name)
	}
	t.Logf("killed while %s was replaced: %d times", v.Name, caught)
}

// once is one round: with wait, the kill comes when temp is there.
func (v Victim) once(t *testing.T, temp string, wait bool) (said string) {
	t.Helper()
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), v.Env)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	killed := make(chan struct{})
	defer func() {
		_ = c.Process.Kill() // where the test ended before
		<-killed
		_ = c.Wait()
	}()
	lines := bufio.NewScanner(out)
	for range v.Lines {
		if !lines.Scan() {
			close(killed)
			t.Fatal("the process that was to be killed ended by itself")
		}
	}
	go func() {
		defer close(killed)
		if wait {
			await(temp)
		} else {
			time.Sleep(rand.N(v.Within)) // the instant under test
		}
		_ = c.Process.Kill()
	}()
	for {
		said = lines.Text()
		if !lines.Scan() {
			return said
		}
	}
}

// await returns when name is there. It looks without a rest: the file is there for less
// than a sleep takes. One that never comes is no fault of the victim's alone, so that is
// judged by who counts.
func await(name string) {
	for late := time.Now().Add(10 * time.Second); time.Now().Before(late); runtime.Gosched() {
		if _, err := os.Lstat(name); err == nil {
			return
		}
	}
}
