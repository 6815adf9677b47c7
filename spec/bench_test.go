package spec_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/surface"
)

// fortyEntries returns an authored descriptor in the proportions of real ones,
// with forty capability entries.
func fortyEntries() string {
	var b strings.Builder
	b.WriteString(`schemaVersion: "3"
kind: workload
displayName: Bench
author: Some Body <somebody@example.com>
description: What a large workload looks like
sourceUrl: https://example.com/src
licenses: [MIT]
provides: ["bench@1.2.3", "com.example/tool@4.5"]
requires: ["lamp >= 1.2, < 3"]
capabilities:
  - type: com.docker.sandbox/network-policy@2
    config:
      install: {allow: [packages.example.org, "*.example.net"]}
      runtime:
        allow:
          - github.com
          - {hosts: [api.github.com], methods: [GET, HEAD], paths: ["/repos/**"]}
        deny: [telemetry.example.com]
  - type: com.docker.sandbox/lifecycle@1
    config:
      install: [{command: "apt-get install -y jq"}]
      startup: [{command: [echo, ready], user: "1000"}]
      files: [{path: /home/agent/.config/bench.toml, content: "a = 1\n"}]
  - {type: com.docker.sandbox/sbx@1}
  - {type: com.docker.sandbox/long-running@1}
  - {type: com.docker.sandbox/git-identity@1, optional: true}
  - {type: com.docker.sandbox/resources@1, config: {cpu: 2, memory: 4g}}
  - type: com.docker.sandbox/agent-context@1
    config: {filename: AGENTS.md, directory: /home/agent/.bench, content: "Use bench."}
  - {type: com.docker.sandbox/ssh-agent@1, config: {phase: runtime, unrestricted: false, sign: [git]}}
`)
	for i := range 8 {
		fmt.Fprintf(&b, "  - {type: com.docker.sandbox/volume@1, config: {path: /data/v%d, size: 1g}}\n", i)
		fmt.Fprintf(&b, "  - {type: com.docker.sandbox/port@1, name: Port %d, config: {container: %d}}\n", i, 8000+i)
		fmt.Fprintf(&b, "  - {type: com.docker.sandbox/agent-skill@1, config: {path: /opt/skills/s%d}}\n", i)
		fmt.Fprintf(&b, "  - {type: com.docker.sandbox/credential@1, optional: true, config: {service: svc%d, phase: runtime, apiKey: {name: KEY%d, proxyManaged: true, inject: [{domain: github.com, header: Authorization, format: \"Bearer %%s\"}]}}}\n", i, i)
	}
	b.WriteString("args:\n  level: {default: info, enum: [debug, info], env: LEVEL}\n")
	return b.String()
}

func published(tb testing.TB, src string) []byte {
	tb.Helper()
	d, diags := spec.Decode([]byte(src), spec.Options{})
	if !diags.HasErrors() {
		diags = append(diags, d.Validate()...)
	}
	if err := diags.Err(); err != nil {
		tb.Fatalf("%v\n%v", err, diags)
	}
	b, err := d.AppendJSON(nil)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// BenchmarkDescriptor decodes, validates and projects a descriptor of forty
// entries, as an author writes it and as an image carries it.
func BenchmarkDescriptor(b *testing.B) {
	src := []byte(fortyEntries())
	for _, bc := range []struct {
		name string
		src  []byte
		form capability.Form
	}{{"published", published(b, string(src)), capability.Published}, {"authored", src, capability.Authored}} {
		b.Run(bc.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(bc.src)))
			for b.Loop() {
				d, diags := spec.Decode(bc.src, spec.Options{Form: bc.form})
				findings, lines := d.Judge()
				if len(diags)+len(findings) > 0 {
					b.Fatal("invalid")
				}
				if s := surface.FromLines(lines); len(s.Ports) != 8 {
					b.Fatal("incomplete surface")
				}
			}
		})
	}
}
