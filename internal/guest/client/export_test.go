package client

import "time"

// SetAnswerTime makes a guest's time to start a command shorter and returns what
// puts it back.
func SetAnswerTime(d time.Duration) func() {
	old := answerTime
	answerTime = d
	return func() { answerTime = old }
}
