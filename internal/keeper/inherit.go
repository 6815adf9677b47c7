package keeper

import (
	"context"
	"time"
)

// inherit counts as commands what is under way in the machine for callers of a keeper
// that was killed, which only the guest knows of, until it has ended. A guest that lies
// keeps nobody but itself; one that does not answer has none.
func (k *Keeper) inherit() {
	ctx, cancel := context.WithCancel(context.Background())
	number := make(chan int, 1)
	over := make(chan struct{})
	go func() {
		defer close(over)
		if err := k.Guest.Sessions(ctx, func(n int) { number <- n }); err != nil && ctx.Err() == nil {
			k.log().Warn("what an earlier keeper's callers do is not known", "err", err)
		}
	}()
	late := time.NewTimer(pingTime)
	defer late.Stop()
	n := 0
	select {
	case n = <-number:
	case <-over:
		select {
		case n = <-number:
		default:
		}
	case <-late.C:
		k.log().Warn("the guest does not say what an earlier keeper's callers do")
	case <-k.ended:
	}
	if n == 0 {
		cancel()
		return
	}
	k.log().Info("commands go on", "number", n)
	k.count(n)
	go func() {
		defer cancel()
		select {
		case <-over:
			k.count(-n)
		case <-k.ended:
		}
	}()
}

// count adds n to the commands that run.
func (k *Keeper) count(n int) {
	k.mu.Lock()
	k.commands += n
	k.silent()
	k.mu.Unlock()
	if n > 0 {
		return
	}
	select {
	case k.quiet <- struct{}{}:
	default:
	}
}
