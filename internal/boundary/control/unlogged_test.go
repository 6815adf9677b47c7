package control_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/control"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// A disk has room, or none.
type disk struct {
	file, none *os.File
	full       atomic.Bool
}

func newDisk(t *testing.T) *disk {
	t.Helper()
	none, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { none.Close(); file.Close() })
	return &disk{file: file, none: none}
}

func (d *disk) Write(p []byte) (int, error) {
	if d.full.Load() {
		return d.none.Write(p)
	}
	return d.file.Write(p)
}

// What cannot be recorded must not be done in the user's name.
func TestNothingIsPresentedWhileTheLogCannotBeWritten(t *testing.T) {
	sent := make(chan string, 10)
	i := inspect(t, "key.example", func(_ http.ResponseWriter, r *http.Request) { sent <- r.URL.Path + " " + r.Header.Get("X-Key") })
	d := newDisk(t)
	log := &audit.Log{W: d}
	start(t, i.g, control.Config{Phase: plan.Install, Log: log.Write, Failing: log.Failing, Policy: policy(t, "install allow key.example"),
		Leaf: i.authority.Leaf, Roots: i.roots, Presenter: new(setter), Routes: []plan.Route{route("key.example", i.at)}})
	c := i.client(false)
	if status, body := get(t, c, "https://key.example/before"); status != http.StatusOK {
		t.Fatalf("with room: %d %s", status, body)
	}
	d.full.Store(true)
	// The first is the one whose line is the first that is lost.
	for _, path := range []string{"/lost", "/again"} {
		if status, body := get(t, c, "https://key.example"+path); status != http.StatusForbidden || !strings.Contains(body, "no space left") {
			t.Errorf("%s without room: %d %s", path, status, body)
		}
	}
	d.full.Store(false)
	for log.Failing() != nil { // the refusal of a request is an attempt to write
		get(t, c, "https://key.example/tried")
	}
	if status, body := get(t, c, "https://key.example/after"); status != http.StatusOK {
		t.Errorf("with room again: %d %s", status, body)
	}
	close(sent)
	var got []string
	for s := range sent {
		if !strings.HasPrefix(s, "/tried ") {
			got = append(got, s)
		}
	}
	if want := "/before real,/after real"; strings.Join(got, ",") != want {
		t.Errorf("the host got %q, want %q", got, want)
	}
	b, err := os.ReadFile(d.file.Name())
	if err != nil || !strings.Contains(string(b), "decisions that could not be written") {
		t.Errorf("the log says nothing of what it lacks: %s, %v", b, err)
	}
}
