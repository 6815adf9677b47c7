package workspace

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/juggler"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// host has a state directory and a directory of the user's.
func host(t *testing.T) (Host, string) {
	t.Helper()
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	h := Host{Home: filepath.Join(top, "home"), Clones: Clones{filepath.Join(top, "home", "clones")}}
	dir := filepath.Join(top, "mine")
	for _, d := range []string{h.Home, filepath.Join(dir, ".git")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return h, dir
}

func TestModesAreJudgedBeforeAnythingIsMade(t *testing.T) {
	h, dir := host(t)
	for _, c := range []struct {
		o    sandbox.CreateOptions
		mode string // empty: an error
	}{
		{sandbox.CreateOptions{}, plan.WorkspaceInternal},
		{sandbox.CreateOptions{Workspace: dir}, plan.WorkspaceHost},
		{sandbox.CreateOptions{WorkspaceMode: "none"}, plan.WorkspaceNone},
		{sandbox.CreateOptions{WorkspaceMode: "none", Workspace: dir}, ""},
		{sandbox.CreateOptions{WorkspaceMode: "internal", Workspace: dir}, ""},
		{sandbox.CreateOptions{WorkspaceMode: "host"}, ""},
		{sandbox.CreateOptions{WorkspaceMode: "cloned"}, ""},
		{sandbox.CreateOptions{WorkspaceMode: "cloned", Workspace: dir}, ""}, // no repository that is whole
		{sandbox.CreateOptions{WorkspaceMode: "other"}, ""},
		{sandbox.CreateOptions{WorkspaceReadOnly: true}, ""},
		{sandbox.CreateOptions{Masks: []string{"x"}}, ""},
		{sandbox.CreateOptions{Workspace: dir, Masks: []string{"../x"}}, ""},
		{sandbox.CreateOptions{Workspace: dir + "/nothing"}, ""},
	} {
		g, err := h.Judge(t.Context(), c.o, "id")
		if (err == nil) != (c.mode != "") || err == nil && g.Mode != c.mode {
			t.Errorf("%+v: %q, %v", c.o, g.Mode, err)
		}
	}
	if _, err := os.Lstat(h.Clones.Dir); err == nil {
		t.Error("something was made")
	}
}

func TestStateIsNeverGiven(t *testing.T) {
	h, dir := host(t)
	if err := os.Symlink(h.Home, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{h.Home, filepath.Dir(h.Home), filepath.Join(dir, "link"), "/"} {
		for _, o := range []sandbox.CreateOptions{{Workspace: p}, {Mounts: []sandbox.Mount{{Source: p, Path: "/x", ReadOnly: true}}}} {
			if _, err := h.Judge(t.Context(), o, "id"); !errors.Is(err, kiterr.ErrRefused) {
				t.Errorf("%s: %v", p, err)
			}
		}
	}
}

func TestRepositoriesAreGuardedWhereTheyCanBeWritten(t *testing.T) {
	h, dir := host(t)
	covers := func(o sandbox.CreateOptions, driver string) string {
		t.Helper()
		g, err := h.Judge(t.Context(), o, "id")
		if err != nil {
			t.Fatal(err)
		}
		p := &plan.Plan{Launch: plan.Launch{Dir: "/work", User: plan.Identity{UID: 1000, GID: 1000}}, Machine: plan.Machine{Driver: driver}}
		if err := h.Add(p, g); err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, c := range p.Machine.Mounts[0].Covers {
			out = append(out, string(c.Kind)+":"+c.Pattern)
		}
		return strings.Join(out, " ")
	}
	if got := covers(sandbox.CreateOptions{Workspace: dir}, ""); !strings.Contains(got, "pin:/.git keep:/.git/hooks keep:/.git/config ") {
		t.Error(got)
	}
	if got := covers(sandbox.CreateOptions{Workspace: dir, UnprotectedGit: true}, ""); got != "" {
		t.Error(got)
	}
	if got := covers(sandbox.CreateOptions{Workspace: dir, WorkspaceReadOnly: true, Masks: []string{"*.key"}}, ""); got != "hide:*.key" {
		t.Error(got)
	}
	if got := covers(sandbox.CreateOptions{Workspace: dir}, "oci"); !strings.Contains(got, "keep") {
		t.Error("a driver that cannot guard is not told to")
	}
	if err := os.Remove(filepath.Join(dir, ".git")); err != nil {
		t.Fatal(err)
	}
	if got := covers(sandbox.CreateOptions{Workspace: dir}, "oci"); got != "" {
		t.Error(got)
	}
}

func TestOrdinaryUsersAreTheImagesUser(t *testing.T) {
	h, dir := host(t)
	h.Rootless = true
	if os.Geteuid() == 0 {
		if err := os.Lchown(dir, 0, 0); err != nil {
			t.Fatal(err)
		}
	} else {
		t.Skip("the directory has to be root's, as in a user namespace")
	}
	add := func(ro bool, mounts []plan.HostMount) (plan.Swap, error) {
		g, err := h.Judge(t.Context(), sandbox.CreateOptions{Workspace: dir, WorkspaceReadOnly: ro}, "id")
		if err != nil {
			t.Fatal(err)
		}
		p := &plan.Plan{Launch: plan.Launch{Dir: "/work", User: plan.Identity{UID: 1000, GID: 1001}}, HostMounts: mounts}
		err = h.Add(p, g)
		return p.Machine.IDMap.Swap, err
	}
	if s, err := add(false, nil); err != nil || s != (plan.Swap{UID: 1000, GID: 1001}) {
		t.Errorf("%+v %v", s, err)
	}
	if s, err := add(true, nil); err != nil || s != (plan.Swap{}) {
		t.Errorf("to read: %+v %v", s, err)
	}
	if _, err := add(false, []plan.HostMount{{Path: "/shared"}}); !errors.Is(err, kiterr.ErrUnsupported) {
		t.Errorf("beside a host mount: %v", err)
	}
}

func TestSettingsThatLeadElsewhereAreWarnedOf(t *testing.T) {
	h, dir := host(t)
	config := "[core]\n\thooksPath = .husky\n[include]\n\tpath = ../.gitconfig\n"
	if err := os.WriteFile(filepath.Join(dir, ".git", "config"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	g, err := h.Judge(t.Context(), sandbox.CreateOptions{Workspace: dir}, "id")
	if err != nil {
		t.Fatal(err)
	}
	p := &plan.Plan{Launch: plan.Launch{Dir: "/work"}}
	if err := h.Add(p, g); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(Warnings(p), "\n"); !strings.Contains(got, ".husky") || !strings.Contains(got, "includes") {
		t.Error(got)
	}
}

// A sandbox of a directory without a repository can make one there, of pipes. Who starts
// the next does not wait for a writer.
func TestAConfigurationOfGitThatIsAPipeIsNotWaitedFor(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, ".git"), 0o700); err != nil {
		t.Fatal(err)
	}
	config, pipe := filepath.Join(dir, ".git/config"), filepath.Join(dir, "pipe")
	if err := errors.Join(os.WriteFile(config, []byte("[core]\n\thooksPath = h\n"), 0o600), unix.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	juggler.Exchange(t, config, pipe, func() bool {
		out := gitWarnings(dir)
		if len(out) > 0 && !strings.Contains(out[0], "core.hooksPath") {
			t.Errorf("%q", out)
		}
		return len(out) == 0
	})
}
