package sandbox_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

const text = `{
	"version": 1,
	"kits": [
		{
			"ref": "git+https://h/k#ref=v1&dir=<x>",
			"digest": "sha256:0000000000000000000000000000000000000000000000000000000000000000",
			"kind": "workload",
			"commit": "1111111111111111111111111111111111111111"
		}
	],
	"args": {
		"a": "1",
		"b": "<&>"
	},
	"surface": {
		"ports": [
			"8080/tcp"
		]
	}
}
`

// TestALockHasOneText is the promise of STABILITY.md.
func TestALockHasOneText(t *testing.T) {
	l, err := sandbox.DecodeLock(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Encode()
	if err != nil || string(b) != text {
		t.Errorf("%v\n%s", err, b)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, []byte(text)); err != nil {
		t.Fatal(err)
	}
	if l, err = sandbox.DecodeLock(&compact); err != nil {
		t.Fatal(err)
	}
	if b, err := l.Encode(); err != nil || string(b) != text {
		t.Errorf("laid out otherwise: %v\n%s", err, b)
	}
}

func TestWhatIsNoLock(t *testing.T) {
	for change, want := range map[string]string{
		`"version": 1|"version": 2`:   "version is 2",
		`"version": 1|"versions": 1`:  "version is 0",
		`"args"|"arguments"`:          "unknown field",
		`sha256:0|sha512:0`:           "which is none",
		`"kits": [|"kits": [],"x": [`: "unknown field",
		`"surface"|"surfaces"`:        "unknown field",
		`{|[`:                         "no lock",
	} {
		from, to, _ := strings.Cut(change, "|")
		_, err := sandbox.DecodeLock(strings.NewReader(strings.Replace(text, from, to, 1)))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", change, err)
		}
	}
	if _, err := sandbox.DecodeLock(strings.NewReader(`{"version":9}`)); !errors.Is(err, kiterr.ErrUnsupported) {
		t.Error(err)
	}
	for _, s := range []string{text + "{}", `{"version":1}`, "", `{"version":1,"kits":[],"surface":{}}`} {
		if _, err := sandbox.DecodeLock(strings.NewReader(s)); err == nil {
			t.Errorf("%q is a lock", s)
		}
	}
}

func FuzzDecodeLock(f *testing.F) {
	f.Add([]byte(text))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := sandbox.DecodeLock(bytes.NewReader(b))
		if err != nil {
			return
		}
		first, err := l.Encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := sandbox.DecodeLock(bytes.NewReader(first))
		if err != nil {
			t.Fatalf("%v\n%s", err, first)
		}
		if second, err := again.Encode(); err != nil || !bytes.Equal(first, second) {
			t.Errorf("%v\n%s\n%s", err, first, second)
		}
	})
}
