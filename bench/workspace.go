package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/kitbox-dev/kitbox/internal/app"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// workspaceBar is what files of the host may cost through a workspace, in the time
// that they take on the host.
const workspaceBar = 1.1

// What is done to files, by the same program on both sides: many small ones, and
// one large one over and over. Each takes long enough that starting it is nothing.
var fileWork = []struct{ what, full, quick string }{
	{"2,000 small files written, listed, read and removed", "n=2000", "n=50"},
	{"a file of 64 MiB written in blocks of 16 KiB and read, 3 times", "n=3", "n=1"},
}

const (
	smallFiles = `i=0; while [ $i -lt $n ]; do echo text of $i >f$i; i=$((i+1)); done; ls -l >/dev/null; i=0; while [ $i -lt $n ]; do read x <f$i; i=$((i+1)); done; rm -f f*`
	largeFile  = `i=0; while [ $i -lt $n ]; do dd if=/dev/zero of=large bs=16k count=4096 2>/dev/null; dd if=large of=/dev/null bs=16k 2>/dev/null; rm large; i=$((i+1)); done`
)

// workspaces compares files in a workspace of a sandbox, with a mask that matches
// nothing and a Git repository that is protected, with files beside it on the host.
func workspaces(ctx context.Context, o options, f *fixture, r *report) (err error) {
	const name = "files"
	inside, outside := filepath.Join(f.home, "..", "inside"), filepath.Join(f.home, "..", "outside")
	for _, d := range []string{inside, outside, filepath.Join(inside, ".git", "hooks")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(inside, ".git", "config"), nil, 0o644); err != nil {
		return err
	}
	if err := f.kitbox("create", "-q", "--name", name, "--mask", "*.key", workloadRef, inside); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.kitbox("rm", "-q", name)) }()
	rt, err := app.Runtime()
	if err != nil {
		return err
	}
	box, err := rt.Open(ctx, name)
	if err != nil {
		return err
	}
	w, err := newStopwatch()
	if err != nil {
		return err
	}
	for i, script := range []string{smallFiles, largeFile} {
		size := fileWork[i].full
		if o.quick {
			size = fileWork[i].quick
		}
		script = size + "; " + script
		var ours, theirs series
		for range o.rounds {
			s, err := w.time(func() error {
				res, err := box.Run(ctx, &sandbox.Cmd{Args: []string{"/bin/sh", "-c", script}})
				if err == nil && res.ExitCode != 0 {
					err = fmt.Errorf("files in the workspace: status %d", res.ExitCode)
				}
				return err
			})
			if err != nil {
				return err
			}
			ours = append(ours, sample{wall: s.wall}) // its processor time is another process tree's
			s, err = w.time(func() error {
				cmd := exec.CommandContext(ctx, "busybox", "sh", "-c", script)
				cmd.Dir = outside
				return cmd.Run()
			})
			if err != nil {
				return fmt.Errorf("files on the host: %w", err)
			}
			theirs = append(theirs, sample{wall: s.wall})
		}
		r.add(compared("in a workspace: "+fileWork[i].what, "on the host", ours, theirs, workspaceBar, 0))
	}
	return nil
}
