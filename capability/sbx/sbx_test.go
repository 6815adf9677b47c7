package sbx_test

import (
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	ct "github.com/kitbox-dev/kitbox/capability/capabilitytest"
	"github.com/kitbox-dev/kitbox/capability/sbx"
)

func TestCheck(t *testing.T) {
	ct.Check(t, sbx.Definition(), sbx.Type, []ct.Case{
		{Config: ``},
		{Config: `{}`, Want: []string{"config"}},
		{Config: `null`, Want: []string{"config"}},
		{Config: `{"user":"agent"}`, Form: capability.Effective, Want: []string{"config"}},
	})
	ct.Lines(t, sbx.Definition(), ct.Request(sbx.Type, ``))
}

func FuzzDecode(f *testing.F) {
	ct.RoundTrip(f, sbx.Definition(), sbx.Decode, ct.Hostile...)
}
