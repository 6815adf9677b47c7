package expand_test

import (
	"fmt"

	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/expand"
)

// An argument that is the whole value of a field adopts the type that it
// spells; inside a longer text it stays text.
func Example() {
	doc, _ := spec.Decode([]byte(`schemaVersion: "3"
kind: mixin
args:
  port: {default: "8080", pattern: "[0-9]+"}
capabilities:
  - type: com.docker.sandbox/port@1
    name: Port ${{ kit.args.port }}
    config: {container: "${{ kit.args.port }}"}
`), spec.Options{})
	values, err := expand.ResolveArgs(doc.Args, map[string]string{"port": "9090"}, expand.PhaseCreate)
	if err != nil {
		fmt.Println(err)
		return
	}
	effective, err := expand.Create(doc.Descriptor, values)
	if err != nil {
		fmt.Println(err)
		return
	}
	r := effective.Capabilities[0]
	fmt.Println(r.Name, string(r.Config))
	// Output: Port 9090 {"container":9090}
}
