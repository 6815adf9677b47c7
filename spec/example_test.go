package spec_test

import (
	"fmt"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/spec"
)

// Decode reads a descriptor strictly and points at what it cannot read.
func ExampleDecode() {
	_, diags := spec.Decode([]byte(`schemaVersion: "3"
kind: mixin
provide: [lamp@1.0]
`), spec.Options{File: "lamp.yaml"})
	for _, d := range diags {
		fmt.Println(d)
		fmt.Println(d.Excerpt)
	}
	// Output:
	// lamp.yaml:3:1: provide: unknown key "provide"; did you mean provides?
	// provide: [lamp@1.0]
	// ^
}

// Validate reports every broken rule in one run.
func ExampleDocument_Validate() {
	doc, _ := spec.Decode([]byte(`schemaVersion: "3"
kind: mixin
requires: ["lamp > 2, < 1"]
capabilities:
  - type: com.docker.sandbox/port@1
    config: {container: 70000}
`), spec.Options{Form: capability.Authored})
	for _, d := range doc.Validate() {
		fmt.Println(d.Path)
	}
	// Output:
	// requires[0]
	// capabilities[0].config.container
}

// DecodePublished reads the descriptor annotation of an image.
func ExampleDecodePublished() {
	doc, err := spec.DecodePublished([]byte(`{"schemaVersion":"3","kind":"workload","provides":["lamp@1.0"]}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(doc.Kind, doc.Provides)
	// Output: workload [lamp@1.0]
}
