package intercept

import (
	"testing"
	"time"
)

// SetTimes shortens how long clients may take, for the length of a test.
func SetTimes(t testing.TB, d time.Duration) {
	hello, header := helloTime, headerTime
	helloTime, headerTime = d, d
	t.Cleanup(func() { helloTime, headerTime = hello, header })
}
