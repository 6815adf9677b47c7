package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/internal/engine/kittest"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// command is what every side runs: the same program of the same layers.
const command = "/bin/true"

// The Kits: a workload with a boundary, a hook of the install phase and one of
// every boot, and a mixin with another.
const (
	workloadRef = "bench:1"
	mixinRef    = "bench-tool:1"
	workload    = `{"schemaVersion":"3","kind":"workload","provides":["bench@1.0.0"],"capabilities":[` +
		`{"type":"com.docker.sandbox/network-policy@1","config":{"install":{"allow":["install.example"]},"runtime":{"allow":["one.example:443","*.two.example"],"deny":["not.two.example"]}}},` +
		`{"type":"com.docker.sandbox/lifecycle@1","config":{"install":[{"command":["true"]}],"startup":[{"command":["true"]}]}}]}`
	mixin = `{"schemaVersion":"3","kind":"mixin","provides":["tool@1.0.0"],"requires":["bench >= 1"],"capabilities":[` +
		`{"type":"com.docker.sandbox/lifecycle@1","config":{"startup":[{"command":["true"]}]}}]}`
)

// idle is the name of the sandbox that stays for the whole run.
const idle = "idle"

// twice is the name of the one that is stopped and started.
const twice = "twice"

// A fixture is a home with built Kits and one sandbox that runs.
type fixture struct {
	home     string
	programs string
	layers   []string // of the sandbox, lowest first
}

func newFixture(ctx context.Context, home, programs string) (*fixture, error) {
	f := &fixture{home: home, programs: programs}
	for _, p := range []string{"kitbox", "kit-guest"} {
		if _, err := os.Stat(filepath.Join(programs, p)); err != nil {
			return nil, fmt.Errorf("%w: build the programs first, with 'make build'", err)
		}
	}
	// The engine in this process reads them, too.
	os.Setenv("KITBOX_HOME", home)
	os.Setenv("KITBOX_LIBEXEC", programs)
	config := ocispec.ImageConfig{User: "agent", WorkingDir: "/home/agent/workspace", Entrypoint: []string{"/bin/sh"}}
	for _, k := range []kittest.Kit{
		{Ref: workloadRef, Descriptor: workload, Base: true, Config: config},
		{Ref: mixinRef, Descriptor: mixin, Files: map[string]kittest.File{"/usr/bin/tool": {Content: "#!/bin/sh\n", Mode: 0o755}}},
	} {
		if err := kittest.Push(ctx, home, k); err != nil {
			return nil, err
		}
	}
	if err := f.kitbox("create", "-q", "--name", idle, workloadRef, "--kit", mixinRef); err != nil {
		return nil, err
	}
	b, err := os.ReadFile(filepath.Join(home, "sandboxes", idle, "plan.json"))
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	var p plan.Plan
	if err := json.Unmarshal(b, &p); err != nil || len(p.Machine.Layers) == 0 {
		return nil, errors.Join(fmt.Errorf("the plan names no layers: %v", err), f.close())
	}
	f.layers = p.Machine.Layers
	return f, nil
}

// kitbox runs the program. What it prints goes to a file, as to a log: a pipe
// would cost a copier here.
func (f *fixture) kitbox(args ...string) error {
	out, err := os.CreateTemp("", "kitbox-bench-out-")
	if err != nil {
		return err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	cmd := exec.Command(filepath.Join(f.programs, "kitbox"), args...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		b, _ := os.ReadFile(out.Name())
		return fmt.Errorf("kitbox %s: %w: %s", args[0], err, b)
	}
	return nil
}

// status asks about the idle sandbox.
func (f *fixture) status() (keeper, guest int, err error) {
	out, err := exec.Command(filepath.Join(f.programs, "kitbox"), "status", idle, "--json").Output()
	if err != nil {
		return 0, 0, fmt.Errorf("kitbox status: %w", err)
	}
	var s struct {
		PID       int `json:"pid"`
		KeeperPID int `json:"keeperPid"`
	}
	if err := json.Unmarshal(out, &s); err != nil {
		return 0, 0, err
	}
	if s.PID == 0 || s.KeeperPID == 0 {
		return 0, 0, fmt.Errorf("the idle sandbox does not run: %s", out)
	}
	return s.KeeperPID, s.PID, nil
}

func (f *fixture) close() error { return f.kitbox("rm", idle) }
