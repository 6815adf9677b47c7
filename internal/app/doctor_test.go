package app

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/store"
)

func TestDoctorJudgesTheClock(t *testing.T) {
	if f := clock(time.Date(1970, 1, 1, 0, 0, 9, 0, time.UTC)); f.OK || !strings.Contains(f.Detail, "before") || f.Remedy == "" {
		t.Errorf("in 1970: %+v", f)
	}
	if f := clock(time.Now()); !f.OK {
		t.Errorf("now: %+v", f)
	}
}

// TestDoctorFindsAHomeThatOthersCanChange holds it against what the commands say.
func TestDoctorFindsAHomeThatOthersCanChange(t *testing.T) {
	dir := t.TempDir() + "/home"
	t.Setenv("KITBOX_HOME", dir)
	if f := guarded(); !f.OK {
		t.Errorf("not made yet: %+v", f)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if f := guarded(); !f.OK {
		t.Errorf("mode 0700: %+v", f)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	f := guarded()
	if f.OK || !f.Required || !strings.Contains(f.Remedy, "chmod go-w "+dir) {
		t.Errorf("mode 0777: %+v", f)
	}
	if _, err := store.Open(dir); err == nil || !strings.Contains(err.Error(), f.Detail) {
		t.Errorf("the store says %v", err)
	}
}

func TestDoctorNamesTheCommandThatGivesIDs(t *testing.T) {
	for _, c := range []struct {
		uids, gids string
		want       string // in the remedy; empty: all is well
	}{
		{"ann:100000:65536\n", "ann:100000:65536\n", ""},
		{"1000:100000:65536\n", "1000:100000:65536\n", ""},
		{"", "", "sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 ann"},
		{"bob:100000:65536\n", "bob:100000:65536\nanna:165536:65536\n", "sudo usermod --add-subuids 231072-296607 --add-subgids 231072-296607 ann"},
		{"ann:100000:65536\n", "", "sudo usermod --add-subgids 165536-231071 ann"},
		{"# ann:1:1\nann\n", "ann:100000:65536", "sudo usermod --add-subuids 165536-231071 ann"},
	} {
		f := judgeSubids("ann", "1000", [2]string{c.uids, c.gids})
		if f.OK != (c.want == "") || !strings.HasSuffix(f.Remedy, c.want) || f.Detail == "" {
			t.Errorf("%q, %q: %+v", c.uids, c.gids, f)
		}
	}
	if f := judgeSubids("", "1000", [2]string{}); !strings.HasSuffix(f.Remedy, " 1000") {
		t.Errorf("a user without a name: %+v", f)
	}
}

// TestEveryFindingSaysWhatWasFound has no machine that everything is right on.
func TestEveryFindingSaysWhatWasFound(t *testing.T) {
	t.Setenv("KITBOX_HOME", t.TempDir()+"/not/yet")
	for _, f := range (doctor{}).Examine(t.Context()) {
		if f.Name == "" || f.Detail == "" {
			t.Errorf("%+v", f)
		}
		if !f.OK && f.Remedy == "" {
			t.Errorf("%s says not what to do", f.Name)
		}
	}
	if f := disk(); !strings.Contains(f.Detail, "free in") {
		t.Errorf("%+v", f)
	}
}
