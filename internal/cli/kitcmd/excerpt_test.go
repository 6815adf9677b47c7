package kitcmd

import "testing"

func TestAnExcerptKeepsItsTabsAndDrivesNoTerminal(t *testing.T) {
	if got := excerpt("\ta\x1b[2J\t\u202eb\u009b \t\n"); got != "\ta[2J\tb" {
		t.Errorf("%q", got)
	}
}
