package app

import (
	"strings"
	"testing"
	"time"
)

func TestDoctorJudgesTheClock(t *testing.T) {
	if f := clock(time.Date(1970, 1, 1, 0, 0, 9, 0, time.UTC)); f.OK || !strings.Contains(f.Detail, "before") || f.Remedy == "" {
		t.Errorf("in 1970: %+v", f)
	}
	if f := clock(time.Now()); !f.OK {
		t.Errorf("now: %+v", f)
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
