package resolve_test

import (
	"fmt"

	"github.com/kitbox-dev/kitbox/resolve"
	"github.com/kitbox-dev/kitbox/spec"
)

// Declarations follow the dependencies; layers put the workload first.
func ExampleResolve() {
	set, err := resolve.Resolve([]resolve.Kit{
		{Ref: "hub.example/agent:1.0", Descriptor: spec.Descriptor{Kind: spec.KindWorkload, Requires: []string{"tool >= 2"}}},
		{Ref: "hub.example/tool:2.1", Descriptor: spec.Descriptor{Kind: spec.KindMixin, Provides: []string{"tool"}}},
	}, resolve.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for i := range set.Layers {
		fmt.Println(set.Declarations[i].Ref, "|", set.Layers[i].Ref)
	}
	// Output:
	// hub.example/tool:2.1 | hub.example/agent:1.0
	// hub.example/agent:1.0 | hub.example/tool:2.1
}
