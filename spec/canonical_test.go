package spec_test

import (
	"testing"

	"github.com/kitbox-dev/kitbox/spec"
)

func TestCanonicalConfigIsExact(t *testing.T) {
	for _, c := range []struct{ config, want string }{
		{`{"b":1,"a":[2,1]}`, `{"a":[2,1],"b":1}`},
		{`{"a":1.0,"b":1e0,"c":10e-1,"d":0.10}`, `{"a":1,"b":1,"c":1,"d":0.1}`},
		{`{"a":-0,"b":-0.0,"c":0e9}`, `{"a":0,"b":0,"c":0}`},
		{`[9007199254740992]`, `[9007199254740992]`},
		{`[9007199254740993]`, `[9007199254740993e0]`},
		{`[90071992547409930e-1]`, `[9007199254740993e0]`},
		{`[-9007199254740993]`, `[-9007199254740993e0]`},
		{`[1e400]`, `[1e400]`},
		{`[10e399]`, `[1e400]`},
		{`[1e-400]`, `[1e-400]`},
		{`[1e99999999999]`, `[1e99999999999]`},
		{`["1.0",true,null,{}]`, `["1.0",true,null,{}]`},
		{`not json`, `not json`},
	} {
		if got := string(spec.CanonicalConfig([]byte(c.config))); got != c.want {
			t.Errorf("%s is %s, want %s", c.config, got, c.want)
		}
	}
}
