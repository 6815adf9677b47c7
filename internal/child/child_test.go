package child

import (
	"bufio"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
)

func start(t *testing.T, script string, files ...*os.File) *Process {
	t.Helper()
	p, err := Start("/bin/sh", []string{"sh", "-c", script}, []string{"A=b"}, "/", files, &syscall.SysProcAttr{Setsid: true})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestAChildHasWhatItIsGivenAndNoMore(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	p := start(t, `pwd; tr '\0' ' ' </proc/$$/environ; echo; test -t 0 || echo "$(readlink /proc/$$/fd/0)"`, null, w, null)
	w.Close()
	out, err := io.ReadAll(r)
	if err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	if want := "/\nA=b \n/dev/null\n"; err != nil || string(out) != want {
		t.Errorf("it says %q, %v; want %q", out, err, want)
	}
}

func TestEverybodyWhoWaitsLearnsTheSameEnd(t *testing.T) {
	for script, want := range map[string]string{"exit 0": "", "exit 7": "exit status 7", "kill -9 $$": "signal: killed"} {
		p := start(t, script)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				got := ""
				if err := p.Wait(); err != nil {
					got = err.Error()
				}
				if got != want {
					t.Errorf("%s: Wait = %q, want %q", script, got, want)
				}
			})
		}
		all.Wait()
		if err := p.Signal(syscall.SIGKILL); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("%s: a signal after the end: %v", script, err)
		}
	}
}

func TestASignalReachesWhoIsWaitedFor(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p := start(t, "echo up; exec sleep 600", r, w)
	w.Close()
	if line, err := bufio.NewReader(r).ReadString('\n'); err != nil || line != "up\n" {
		t.Fatalf("%q, %v", line, err)
	}
	ended := make(chan error)
	go func() { ended <- p.Wait() }()
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "terminated") {
		t.Errorf("Wait = %v", err)
	}
}

func TestAProgramThatIsNotThere(t *testing.T) {
	_, err := Start("/nonexistent", []string{"x"}, nil, "/", nil, nil)
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "/nonexistent") {
		t.Errorf("Start = %v", err)
	}
}
