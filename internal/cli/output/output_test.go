package output

import (
	"bytes"
	"errors"
	"testing"
)

func TestForeignTextCannotTurnAround(t *testing.T) {
	if got := Printable("a\x1b[2J\u202eb\u2066c\u2028d\u0085\x7f\te"); got != "a[2Jbcd e" {
		t.Errorf("%q", got)
	}
}

func TestAnArrayIsWrittenAsOneDocument(t *testing.T) {
	type event struct {
		Host string   `json:"host"`
		Of   []string `json:"of"`
	}
	for _, all := range [][]event{{}, {{Host: "<a>"}}, {{Host: "a", Of: []string{"x"}}, {Host: "b\n"}, {}}} {
		var want, got bytes.Buffer
		if err := JSON(&want, all); err != nil {
			t.Fatal(err)
		}
		a := Array{W: &got}
		for _, v := range all {
			before := got.Len()
			if err := a.Add(v); err != nil || got.Len() == before {
				t.Errorf("a value is held, %v", err)
			}
		}
		if err := a.Close(); err != nil || got.String() != want.String() {
			t.Errorf("%v\n%s\nwant\n%s", err, got.String(), want.String())
		}
	}
}

func TestAMessageDoesNothingToATerminal(t *testing.T) {
	err := errors.New("file \x1b]0;owned\x07\x1b[31m\u202e.txt: no\nand \x9b31m this")
	if got := Message(err); got != "kitbox: file ]0;owned[31m.txt: no\n  and \ufffd31m this" {
		t.Errorf("%q", got)
	}
}
