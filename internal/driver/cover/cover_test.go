package cover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// tree makes files, and directories where a name ends in a slash.
func tree(t *testing.T, names ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, n := range names {
		put(t, root, n)
	}
	return root
}

func put(t *testing.T, root, name string) {
	t.Helper()
	p := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	var err error
	if strings.HasSuffix(name, "/") {
		err = os.MkdirAll(p, 0o755)
	} else {
		err = os.WriteFile(p, []byte("secret"), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func hide(ps ...string) (cs []plan.Cover) {
	for _, p := range ps {
		cs = append(cs, plan.Cover{Pattern: p, Kind: plan.CoverHide})
	}
	return cs
}

// text is what was found, one word each.
func text(fs []Found) string {
	var out []string
	for _, f := range fs {
		out = append(out, string(f.Kind)+":"+f.Path)
	}
	return strings.Join(out, " ")
}

func found(t *testing.T, root string, cs []plan.Cover) string {
	t.Helper()
	fs, err := Find(root, cs)
	if err != nil {
		t.Fatal(err)
	}
	return text(fs)
}

func TestHidingFollowsTheContent(t *testing.T) {
	root := tree(t, ".env", "a/.env.local", "a/b/c/.env", "env", "secrets/key", "other/secrets", ".git/objects/aa/.env")
	for _, c := range []struct{ patterns, want string }{
		{".env*", "hide:.env hide:a/.env.local hide:a/b/c/.env"},
		{"/.env", "hide:.env"},
		{"a/**/.env", "hide:a/b/c/.env"},
		{"secrets/", "hide:secrets"},
		{"secrets", "hide:secrets hide:other/secrets"},
		{"**/key", "hide:secrets/key"},
		{"nothing*", ""},
	} {
		if got := found(t, root, hide(c.patterns)); got != c.want {
			t.Errorf("%s finds %q, want %q", c.patterns, got, c.want)
		}
	}
}

func TestNoOtherNameShowsAHiddenFile(t *testing.T) {
	root := tree(t, "a/.env", "conf/real", "plain")
	if err := os.Link(filepath.Join(root, "a/.env"), filepath.Join(root, "copy")); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"b.env": "conf/real", "out.env": "/etc/passwd", "nowhere.env": "missing"} {
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := found(t, root, hide("*.env")), "hide:copy hide:a/.env hide:conf/real"; got != want {
		t.Errorf("found %q, want %q", got, want)
	}
	if err := os.Symlink(".", filepath.Join(root, "all.env")); err != nil {
		t.Fatal(err)
	}
	if _, err := Find(root, hide("*.env")); !errors.Is(err, kiterr.ErrRefused) {
		t.Errorf("a link to everything: %v", err)
	}
}

func TestWhatIsKeptStaysWhereItIs(t *testing.T) {
	keep := []plan.Cover{{Pattern: "/.git", Kind: plan.CoverPin}, {Pattern: ".git/hooks", Kind: plan.CoverKeep}, {Pattern: ".git/modules/**/config", Kind: plan.CoverKeep}}
	root := tree(t, ".git/hooks/", ".git/modules/sub/config", ".git/HEAD", "sub/.git/hooks/")
	if got, want := found(t, root, keep), "pin:.git keep:.git/hooks pin:.git/modules pin:.git/modules/sub keep:.git/modules/sub/config"; got != want {
		t.Errorf("found %q, want %q", got, want)
	}
	if got := found(t, tree(t, ".git"), keep); got != "keep:.git" {
		t.Errorf("a file that leads to a repository: %q", got)
	}
	root = tree(t, "x/")
	if err := os.Symlink("x", filepath.Join(root, ".git")); err != nil {
		t.Fatal(err)
	}
	if _, err := Find(root, keep); !errors.Is(err, kiterr.ErrRefused) {
		t.Errorf("a repository behind a link: %v", err)
	}
}

func TestPatternsThatAreNone(t *testing.T) {
	for _, p := range []string{"", "/", "a//b", "../x", "./a", "[a", "a/[", strings.Repeat("x", 2000)} {
		if Check(plan.Cover{Pattern: p, Kind: plan.CoverHide}) == nil {
			t.Errorf("%q is taken", p)
		}
	}
	if Check(plan.Cover{Pattern: "x", Kind: "eat"}) == nil {
		t.Error("a kind that is none is taken")
	}
}

func TestTooManyAreRefused(t *testing.T) {
	root := t.TempDir()
	for i := range maxFound + 1 {
		if err := os.WriteFile(filepath.Join(root, fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Find(root, hide("*")); !errors.Is(err, kiterr.ErrRefused) {
		t.Errorf("got %v", err)
	}
}

func TestWhatAppearsIsTold(t *testing.T) {
	root := tree(t, "a/", ".git/config")
	cs := append(hide(".env"), plan.Cover{Pattern: ".git/config", Kind: plan.CoverKeep}, plan.Cover{Pattern: ".git/commondir", Kind: plan.CoverForbid})
	w, err := NewWatch(root, cs)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	told := make(chan Found, 100)
	ended := make(chan error, 1)
	go func() {
		ended <- w.Run(ctx, func(fs []Found) {
			for _, f := range fs {
				told <- f
			}
		})
	}()
	expect := func(want string) {
		t.Helper()
		for end := time.After(10 * time.Second); ; {
			select {
			case f := <-told:
				if f.Path == want {
					return
				}
			case <-end:
				t.Fatalf("nobody told of %s", want)
			}
		}
	}
	put(t, root, "a/.env")
	expect("a/.env")
	put(t, root, "new/deep/.env") // made before anybody can watch it
	expect("new/deep/.env")
	if err := os.Rename(filepath.Join(root, "new"), filepath.Join(root, "moved")); err != nil {
		t.Fatal(err)
	}
	expect("moved/deep/.env")
	put(t, root, "moved/.env")
	expect("moved/.env")
	// As programs save: a new file over the old one.
	put(t, root, ".git/config.lock")
	if err := os.Rename(filepath.Join(root, ".git/config.lock"), filepath.Join(root, ".git/config")); err != nil {
		t.Fatal(err)
	}
	expect(".git/config")
	put(t, root, ".git/commondir")
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, err := os.Lstat(filepath.Join(root, ".git/commondir")); os.IsNotExist(err) {
			break
		}
		if time.Now().After(end) {
			t.Fatal("what is forbidden is still there")
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if w.Blind != nil {
		t.Errorf("blind: %v", w.Blind)
	}
}

func TestARepositoryThatIsMadeLaterIsLeftAlone(t *testing.T) {
	cs := []plan.Cover{{Pattern: "/.git", Kind: plan.CoverPin, If: ".git"}, {Pattern: "/.git/hooks", Kind: plan.CoverKeep, If: ".git", Make: plan.MakeDir},
		{Pattern: "/.git/worktrees/*/config.worktree", Kind: plan.CoverKeep, If: ".git", Once: true, Make: plan.MakeFile}}
	root := tree(t, "f")
	if err := Make(root, cs); err != nil {
		t.Fatal(err)
	}
	if got := found(t, root, cs); got != "" {
		t.Errorf("found %q", got)
	}
	root = tree(t, ".git/HEAD", ".git/worktrees/a/gitdir")
	for range 2 { // making is done once
		if err := Make(root, cs); err != nil {
			t.Fatal(err)
		}
	}
	want := "pin:.git keep:.git/hooks pin:.git/worktrees pin:.git/worktrees/a keep:.git/worktrees/a/config.worktree"
	if got := found(t, root, cs); got != want {
		t.Errorf("found %q, want %q", got, want)
	}
	// A file that leads to a repository holds nothing that could be made.
	root = tree(t, ".git")
	if err := Make(root, cs); err != nil {
		t.Fatal(err)
	}
}

func TestWhatHoldsOnceIsWatchedByItsPath(t *testing.T) {
	root := tree(t, "m/a*/config", "m/HEAD")
	w, err := NewWatch(root, []plan.Cover{{Pattern: "/m/**/config", Kind: plan.CoverKeep, Once: true}})
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan Found, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- w.Run(ctx, func(fs []Found) {
			for _, f := range fs {
				told <- f
			}
		})
	}()
	put(t, root, "m/ab/config") // a new one
	put(t, root, "m/a*/new")
	if err := os.Rename(filepath.Join(root, "m/a*/new"), filepath.Join(root, "m/a*/config")); err != nil {
		t.Fatal(err)
	}
	for end := time.After(10 * time.Second); ; {
		select {
		case f := <-told:
			if f.Path == "m/ab/config" {
				t.Error("a new one is covered")
			}
			if f.Path != "m/a*/config" {
				continue
			}
		case <-end:
			t.Error("nobody told of the one that was replaced")
		}
		break
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
