package phase_test

import (
	"reflect"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/phase"
)

func TestSet(t *testing.T) {
	for _, tt := range []struct {
		text, again string
		valid, open bool
	}{
		{`"install"`, `"install"`, true, false},
		{`["runtime"]`, `"runtime"`, true, false},
		{`["runtime","install"]`, `["runtime","install"]`, true, false},
		{`[]`, `[]`, false, false},
		{`""`, `""`, false, false},
		{`"boot"`, `"boot"`, false, false},
		{`["install","install"]`, `["install","install"]`, false, false},
		{`"${{ kit.args.p }}"`, `"${{ kit.args.p }}"`, true, true},
		{`["install","${{ kit.args.p }}"]`, `["install","${{ kit.args.p }}"]`, true, true},
	} {
		var s, s2 phase.Set
		if err := json.Unmarshal([]byte(tt.text), &s); err != nil {
			t.Errorf("%s: %v", tt.text, err)
			continue
		}
		if fault := s.Fault(capability.Authored); (fault == "") != tt.valid || s.Open() != tt.open {
			t.Errorf("%s: fault %q, open %v", tt.text, fault, s.Open())
		}
		if tt.open && s.Fault(capability.Effective) == "" {
			t.Errorf("%s is accepted in the effective form", tt.text)
		}
		b, err := json.Marshal(s)
		if err != nil || string(b) != tt.again || json.Unmarshal(b, &s2) != nil || !reflect.DeepEqual(s, s2) {
			t.Errorf("%s went out as %s, %v", tt.text, b, err)
		}
	}
	for _, bad := range []string{`1`, `{}`, `[1]`, `[["install"]]`, `["install"`} {
		var s phase.Set
		if json.Unmarshal([]byte(bad), &s) == nil {
			t.Errorf("%s is accepted as %q", bad, s)
		}
	}
	if !(phase.Set{phase.Install}).Has(phase.Install) || (phase.Set{phase.Install}).Has(phase.Runtime) {
		t.Error("Has")
	}
}
