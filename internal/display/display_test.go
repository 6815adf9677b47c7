package display

import (
	"testing"

	"github.com/kitbox-dev/kitbox/internal/driver"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

func TestWhatIsNotGrantedIsPartOfTheStatus(t *testing.T) {
	p := &plan.Plan{Skipped: []plan.Skipped{{Kit: "w", Type: "x/usb@1", Reason: "no"}}, Volumes: []plan.Volume{{Path: "/a", Note: "size is not enforced"}, {Path: "/b"}}}
	skipped, unenforced := Left(p, driver.Machine{Unenforced: []string{"pids: no"}})
	if len(skipped) != 1 || skipped[0].Type != "x/usb@1" || len(unenforced) != 2 || unenforced[0] != "pids: no" || unenforced[1] != "volume /a: size is not enforced" {
		t.Errorf("skipped %v, unenforced %v", skipped, unenforced)
	}
}
