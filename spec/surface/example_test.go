package surface_test

import (
	"fmt"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/spec/surface"
)

// The surface of a candidate is compared with the one that was granted.
func ExampleDiff() {
	policy := func(config string) surface.Surface {
		return surface.ProjectKits([]capability.Contribution{{Kit: "lamp", Request: capability.Request{
			Type: "com.docker.sandbox/network-policy@2", Config: []byte(config),
		}}})
	}
	granted := policy(`{"runtime":{"allow":["api.example"],"deny":["log.example"]}}`)
	candidate := policy(`{"runtime":{"allow":[{"hosts":["api.example"],"methods":["GET"]},"cdn.example"]}}`)
	for _, c := range surface.Diff(granted, candidate).Widenings {
		fmt.Println(c.Category, c.Detail, c.Kits)
	}
	// Output:
	// network.runtime.allow cdn.example [lamp]
	// network.runtime.deny-removed log.example [lamp]
}

// Project lists what a descriptor asks of its host.
func ExampleProject() {
	s := surface.Project([]capability.Request{
		{Type: "com.docker.sandbox/volume@1", Config: []byte(`{"path":"/data/./x"}`)},
		{Type: "com.docker.sandbox/git-identity@1", Optional: true},
	})
	fmt.Printf("%s\n", s.Canonical())
	// Output: {"services":["com.docker.sandbox/git-identity@1"],"storagePaths":["/data/x"]}
}
