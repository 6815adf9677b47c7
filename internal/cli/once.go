package cli

import (
	"iter"
	"time"

	"github.com/kitbox-dev/kitbox/sandbox"
)

// sameQuestion is how far apart two questions for one name may be that a program
// asked as one: its resolver asks for both families of addresses.
const sameQuestion = time.Second

// onceEach yields what log does, and of a question for a name that was asked
// twice at once, for IPv4 and for IPv6, only the first: a person asked once. An
// event that stands for several is always yielded, so that no count is lost.
func onceEach(log iter.Seq2[sandbox.PolicyEvent, error]) iter.Seq2[sandbox.PolicyEvent, error] {
	return func(yield func(sandbox.PolicyEvent, error) bool) {
		var last sandbox.PolicyEvent
		for ev, err := range log {
			if err == nil && ev.Kind == "dns" && ev.Count <= 1 {
				same := last
				same.Time = ev.Time
				if gap := ev.Time.Sub(last.Time); same == ev && gap >= 0 && gap < sameQuestion {
					last = sandbox.PolicyEvent{} // a third one is another question
					continue
				}
			}
			last = ev
			if !yield(ev, err) {
				return
			}
		}
	}
}
