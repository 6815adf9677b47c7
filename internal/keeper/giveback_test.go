package keeper

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/plan"
)

// A boot does not go through a directory for as long as whoever is inside likes.
func TestGivingBackIsBoundedWhileTheMachineRuns(t *testing.T) {
	defer func(was time.Duration) { giveBackTime = was }(giveBackTime)
	giveBackTime = time.Nanosecond
	p := &plan.Plan{Machine: plan.Machine{IDMap: plan.IDMap{Base: 1 << 30, Size: 65536},
		Mounts: []plan.Mount{{Kind: plan.MountBind, Source: t.TempDir(), Owner: &plan.OwnerMap{}}}}}
	if err := New(p).giveBack(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("said %v", err)
	}
}
