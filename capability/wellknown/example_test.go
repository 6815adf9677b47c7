package wellknown_test

import (
	"fmt"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/wellknown"
)

func ExampleFind() {
	r := capability.Request{
		Type:   "com.docker.sandbox/network-policy@2",
		Config: []byte(`{"runtime":{"allow":["github.com",{"hosts":["api.github.com"],"methods":[]}]}}`),
	}
	d, ok := wellknown.Find(r.Type)
	if !ok {
		fmt.Println("an opaque type")
		return
	}
	var in capability.Inspection
	d.Inspect(r, capability.Authored, &in)
	for _, p := range in.Problems {
		fmt.Println(p.Path)
	}
	for _, l := range in.Lines {
		fmt.Println(l.List, l.Value)
	}
	// Output:
	// config.runtime.allow[1].methods
	// networkRuntimeAllow github.com
	// networkRuntimeHTTPAllow ANY github.com/**
}
