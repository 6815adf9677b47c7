package job

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/kiterr"
)

func newJob(t *testing.T, d Dir) (id string, end func()) {
	t.Helper()
	id, err := d.newID()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(d.file(id, lockExt), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if err := d.write(Record{ID: id, Args: []string{"x"}, PID: os.Getpid(), Started: time.Now()}); err != nil {
		t.Fatal(err)
	}
	return id, func() { f.Close() }
}

func TestOutputIsBoundedAndItsEndKept(t *testing.T) {
	d := Dir(filepath.Join(t.TempDir(), "jobs"))
	id, end := newJob(t, d)
	defer end()
	k := &keep{dir: d, id: id}
	var all bytes.Buffer
	for i := range 300 {
		b := bytes.Repeat([]byte{byte('a' + i%26)}, 10_007)
		all.Write(b)
		if n, err := k.Write(b); n != len(b) || err != nil {
			t.Fatal(n, err)
		}
	}
	var out bytes.Buffer
	if err := d.Output(id, &out, func() bool { return false }); err != nil {
		t.Fatal(err)
	}
	if out.Len() > MaxOutput || out.Len() < MaxOutput/2 || !bytes.HasSuffix(all.Bytes(), out.Bytes()) {
		t.Errorf("%d of %d bytes are kept", out.Len(), all.Len())
	}
}

// TestFollowedOutputIsWhole reads while it is written and put away.
func TestFollowedOutputIsWhole(t *testing.T) {
	d := Dir(filepath.Join(t.TempDir(), "jobs"))
	id, end := newJob(t, d)
	defer end()
	k := &keep{dir: d, id: id}
	var all, out bytes.Buffer
	rounds := 0
	err := d.Output(id, &out, func() bool {
		if rounds++; rounds > 60 {
			return false
		}
		b := bytes.Repeat([]byte{byte('a' + rounds%26)}, 100_003)
		all.Write(b)
		_, _ = k.Write(b)
		return true
	})
	if err != nil || !bytes.Equal(out.Bytes(), all.Bytes()) {
		t.Errorf("%d of %d bytes, %v", out.Len(), all.Len(), err)
	}
}

func TestAJobWhoseProcessDiedDoesNotRun(t *testing.T) {
	d := Dir(filepath.Join(t.TempDir(), "jobs"))
	id, end := newJob(t, d)
	if r, err := d.Get(id); err != nil || !r.Running {
		t.Errorf("%+v %v", r, err)
	}
	end()
	if r, err := d.Get(id); err != nil || r.Running || r.Error == "" {
		t.Errorf("%+v %v", r, err)
	}
	if err := d.Stop(id); err != nil {
		t.Errorf("stopping it: %v", err)
	}
	for _, bad := range []string{"", "../../x", "zzzzzz", strings.Repeat("a", 7), "AAAAAA"} {
		if _, err := d.Get(bad); !errors.Is(err, kiterr.ErrNotFound) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestOldJobsAreForgotten(t *testing.T) {
	d := Dir(filepath.Join(t.TempDir(), "jobs"))
	first, end := newJob(t, d)
	defer end()
	for range maxKept + 5 {
		_, e := newJob(t, d)
		e()
	}
	d.forget()
	rs, err := d.List()
	if err != nil || len(rs) != maxKept+1 || rs[0].ID != first {
		t.Errorf("%d are kept, the one that runs among them: %v", len(rs), err)
	}
}
