package e2e

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/needs"
)

// gitRun is the user's own git.
func gitRun(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "safe.directory=*", "-c", "user.name=u", "-c", "user.email=u@example.com", "-c", "protocol.file.allow=always"}, args...)...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// repository makes a Git repository with a commit, owned by uid.
func repository(t *testing.T, uid int, files map[string]string) string {
	t.Helper()
	dir := write(t, files)
	gitRun(t, dir, "init", "-q", "-b", "main")
	gitRun(t, dir, "add", "--force", "tracked")
	gitRun(t, dir, "commit", "-q", "-m", "first")
	own(t, dir, uid)
	return dir
}

func own(t *testing.T, dir string, uid int) {
	t.Helper()
	err := filepath.Walk(dir, func(p string, _ os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(p, uid, uid)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func ownerOf(t *testing.T, p string) uint32 {
	t.Helper()
	st, err := os.Lstat(p)
	if err != nil {
		t.Fatal(err)
	}
	return st.Sys().(*syscall.Stat_t).Uid
}

func TestFilesOfAWorkspaceBelongToItsOwner(t *testing.T) {
	for name, uid := range map[string]int{"ofroot": 0, "ofanother": 4321} {
		dir := write(t, map[string]string{"f": "text\n"})
		own(t, dir, uid)
		create(t, name, "-q", probe, dir)
		if o := sh(t, name, "", "stat -c %u f; echo made >made; mkdir d; echo more >>f; ln -s f l"); o.Code != 0 || o.Stdout != "1000\n" {
			t.Errorf("owned by %d: %+v", uid, o)
		}
		for _, f := range []string{"made", "d", "l", "f"} {
			if got := ownerOf(t, filepath.Join(dir, f)); got != uint32(uid) {
				t.Errorf("%s belongs to %d, its workspace to %d", f, got, uid)
			}
		}
		ok(t, "rm", name)
	}
}

// attacks are what a program inside could try; each succeeds where nothing
// protects (see the control), and must fail.
var attacks = []string{
	"echo x >.git/config",
	"echo x >.git/hooks/post-checkout",
	"mv .git/hooks .git/h && mkdir .git/hooks",
	"mv .git .g && mkdir .git",
	"rm -f .git/config",
	"ln -sf /tmp/x .git/config",
	"cp .git/HEAD .git/new && mv -f .git/new .git/config",
	"ln .git/config .git/c2",
	"chmod 777 .git/hooks",
	"touch -d @0 .git/config",
	"truncate -s 0 .git/config",
}

func TestGitOfAWorkspaceCannotBeMadeToRunThings(t *testing.T) {
	dir := repository(t, 1000, map[string]string{"tracked": "x\n"})
	before, err := os.ReadFile(filepath.Join(dir, ".git/config"))
	if err != nil {
		t.Fatal(err)
	}
	create(t, "guarded", "-q", probe, dir)
	for _, a := range attacks {
		for _, user := range []string{"", "0"} {
			if o := sh(t, "guarded", user, a); o.Code == 0 {
				t.Errorf("as user %q: %s", user, a)
			}
		}
	}
	for _, a := range []string{"umount .git/hooks", "mount -o remount,rw,bind .git/hooks", "mount --bind /tmp .git/hooks", "unshare -Urm true", "unshare -m true"} {
		if o := sh(t, "guarded", "0", a); o.Code == 0 {
			t.Errorf("as root: %s", a)
		}
	}
	after, err := os.ReadFile(filepath.Join(dir, ".git/config"))
	if err != nil || string(before) != string(after) {
		t.Errorf("the configuration is now %q (%v)", after, err)
	}
	// Working goes on.
	if o := sh(t, "guarded", "", "echo y >tracked && echo new >.git/ORIG_HEAD && mkdir -p .git/refs/heads/x && mv .git/HEAD .git/HEAD2 && mv .git/HEAD2 .git/HEAD"); o.Code != 0 {
		t.Errorf("ordinary writes: %+v", o)
	}
	// The host's git replaces the file; the new one is protected as well.
	gitRun(t, dir, "config", "kitbox.test", "1")
	own(t, dir, 1000)
	waitFor(t, "the new configuration to be protected", func() bool {
		o := sh(t, "guarded", "", "touch .git/config")
		return o.Code != 0 && strings.Contains(o.Stderr, "Read-only")
	})
	// A configuration beside the real one is taken away again.
	sh(t, "guarded", "", "echo ../evil >.git/commondir")
	waitFor(t, "commondir to go", func() bool {
		_, err := os.Lstat(filepath.Join(dir, ".git/commondir"))
		return os.IsNotExist(err)
	})
	// A restart and a keeper that died keep it.
	ok(t, "stop", "guarded")
	ok(t, "start", "guarded")
	if o := sh(t, "guarded", "", attacks[0]); o.Code == 0 {
		t.Error("after a restart it is not protected")
	}
	if k := keeperPID(t, "guarded"); k.Kill() != nil {
		t.Fatal("the keeper cannot be killed")
	}
	gitRun(t, dir, "config", "kitbox.test", "2")
	own(t, dir, 1000)
	waitFor(t, "a new keeper to protect it", func() bool { return sh(t, "guarded", "", attacks[0]).Code != 0 })
	ok(t, "rm", "guarded")

	// A repository without hooks gets an empty directory for them, or the
	// sandbox could put a whole one in its place.
	bare := write(t, map[string]string{"tracked": "x\n"})
	gitRun(t, bare, "init", "-q", "--template=")
	gitRun(t, bare, "config", "core.hooksPath", ".husky")
	own(t, bare, 1000)
	if out := ok(t, "plan", probe, bare); !strings.Contains(out, ".husky") {
		t.Errorf("hooks in the working tree are no warning: %s", out)
	}
	create(t, "hookless", "-q", probe, bare)
	for _, a := range []string{"mkdir .git/h && touch .git/h/post-checkout && mv -T .git/h .git/hooks", "mkdir .git/hooks", "touch .git/hooks/x", "echo x >.git/config.worktree"} {
		if o := sh(t, "hookless", "", a); o.Code == 0 {
			t.Errorf("without hooks: %s", a)
		}
	}
	// One that is made inside is the sandbox's own.
	create(t, "maker", "-q", probe, write(t, map[string]string{"x": ""}))
	if o := sh(t, "maker", "0", "true"); o.Code != 0 {
		t.Fatal(o)
	}
	if o := sh(t, "maker", "", "mkdir -p .git/hooks && for i in 1 2 3; do echo $i >.git/c && mv .git/c .git/config && sleep 0.1; done && touch .git/hooks/x"); o.Code != 0 {
		t.Errorf("making a repository: %+v", o)
	}

	// The control: each of them works, as either user, where nothing protects.
	control := repository(t, 1000, map[string]string{"tracked": "x\n"})
	whole := filepath.Join(t.TempDir(), "git")
	if out, err := exec.Command("cp", "-a", filepath.Join(control, ".git"), whole).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	create(t, "unguarded", "-q", "--unprotected-git", probe, control)
	for _, a := range attacks {
		for _, user := range []string{"", "0"} {
			if out, err := exec.Command("sh", "-c", "rm -rf \"$1\"/.git \"$1\"/.g && cp -a \"$2\" \"$1\"/.git", "sh", control, whole).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if o := sh(t, "unguarded", user, a); o.Code != 0 {
				t.Errorf("the control cannot, as user %q: %s: %+v", user, a, o)
			}
		}
	}
}

// TestARootWithEveryCapabilityCannotUncover has the strongest sandbox there is.
func TestARootWithEveryCapabilityCannotUncover(t *testing.T) {
	for _, driver := range []string{"namespace", "oci"} {
		t.Run(driver, func(t *testing.T) {
			if driver == "oci" {
				needs.Root(t, "the oci driver runs as root only")
			}
			cannotUncover(t, driver)
		})
	}
}

func cannotUncover(t *testing.T, driver string) {
	asks := kit(t, "  - type: com.docker.sandbox/privileged@1\n")
	dir := repository(t, 0, map[string]string{"tracked": "x\n", ".env": "secret\n"})
	other := write(t, map[string]string{"f": "kept\n"})
	create(t, "strong", "-q", "--driver", driver, "--allow-privileged", "--mask", ".env", "-v", other+":/other:ro", asks, dir)
	if o := sh(t, "strong", "0", "mkdir /mnt/m && mount -t tmpfs t /mnt/m && umount /mnt/m"); o.Code != 0 {
		t.Fatalf("the control cannot mount at all: %+v", o)
	}
	w := strings.TrimSpace(ok(t, "exec", "strong", "--", "pwd"))
	for _, a := range []string{
		"umount " + w + "/.git/hooks", "umount -l " + w + "/.git/config", "umount " + w + "/.env", "umount " + w + "/.git",
		"mount -o remount,rw,bind /other && touch /other/x", "mount -o remount,rw /other && touch /other/x",
		"mkdir -p /mnt/a && mount --bind " + w + " /mnt/a && cat /mnt/a/.env | grep secret",
		"mkdir -p /mnt/b && mount --rbind " + w + " /mnt/b && umount /mnt/b/.env",
		"mkdir -p /mnt/c && mount --rbind /other /mnt/c && mount -o remount,rw,bind /mnt/c && touch /mnt/c/x",
		"unshare -m sh -c 'umount " + w + "/.env && grep secret " + w + "/.env'",
		"unshare -Urm sh -c 'umount " + w + "/.env; umount " + w + "/.git/hooks && touch " + w + "/.git/hooks/x'",
		"unshare -m sh -c 'umount -l " + w + "/.git; mv " + w + "/.git " + w + "/.g'",
		"mount --move " + w + "/.git/hooks /mnt && touch " + w + "/.git/hooks/x",
		"mount -t overlay o -o lowerdir=" + w + ",upperdir=/mnt,workdir=/tmp /mnt; grep secret /mnt/.env",
	} {
		if o := sh(t, "strong", "0", a); o.Code == 0 {
			t.Errorf("it could %s: %+v", a, o)
		}
	}
	defer ok(t, "rm", "strong")
	if b, err := os.ReadFile(filepath.Join(dir, ".env")); err != nil || string(b) != "secret\n" {
		t.Errorf(".env is %q, %v", b, err)
	}
	for _, p := range []string{filepath.Join(other, "x"), filepath.Join(dir, ".git/hooks/x"), filepath.Join(dir, ".g")} {
		if _, err := os.Lstat(p); err == nil {
			t.Errorf("%s was made", p)
		}
	}
}

func TestMasksHideWhatIsThereAndWhatComes(t *testing.T) {
	dir := write(t, map[string]string{".env": "secret\n", "sub/.env.local": "secret\n", "keys/a": "secret\n", "plain": "text\n"})
	if err := os.Symlink("keys/a", filepath.Join(dir, "b.env")); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(dir, ".env"), filepath.Join(dir, "innocent")); err != nil {
		t.Fatal(err)
	}
	own(t, dir, 1000)
	create(t, "masked", "-q", "--mask", ".env*", "--mask", "/keys/", "--mask", "*.env", probe, dir)
	for _, user := range []string{"", "0"} {
		if o := sh(t, "masked", user, "cat .env sub/.env.local innocent b.env; cat keys/*; grep -r secret ."); strings.Contains(o.Stdout, "secret") {
			t.Errorf("user %q reads %q", user, o.Stdout)
		}
	}
	for _, a := range []string{"mv .env x", "rm -f .env", "echo x >.env", "ln .env x", "rmdir keys", "mv keys k", "mv sub s && cat s/.env.local | grep secret", "mv s sub; rm -rf sub"} {
		if o := sh(t, "masked", "", a); o.Code == 0 {
			t.Errorf("it could %s", a)
		}
	}
	if out := ok(t, "exec", "masked", "--", "cat", "plain"); out != "text\n" {
		t.Errorf("what is not masked: %q", out)
	}
	// As an editor saves: a new file over the old one.
	save := func(p string) {
		t.Helper()
		tmp := filepath.Join(dir, "tmp")
		if err := os.WriteFile(tmp, []byte("secret\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(tmp, filepath.Join(dir, p)); err != nil {
			t.Fatal(err)
		}
	}
	save(".env")
	if err := os.MkdirAll(filepath.Join(dir, "later/deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	save("later/deep/.env")
	waitFor(t, "the new files to be hidden", func() bool {
		return sh(t, "masked", "", "cat .env && cat later/deep/.env").Stdout == ""
	})
	// Root inside moves away what the directory is in.
	nested := write(t, map[string]string{"f": ""})
	own(t, nested, 1000)
	create(t, "moved", "-q", "--mask", ".env", "-v", nested+":/a/b/c", probe)
	if o := sh(t, "moved", "0", "mv /a/b /a/x && mv /a /y && mkdir -p /a/b/c && ls /y/x/c/f"); o.Code != 0 {
		t.Fatalf("moving what a mount is in: %+v", o)
	}
	if err := os.WriteFile(filepath.Join(nested, ".env"), []byte("secret\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "a file in a place that was moved to be hidden", func() bool {
		o := sh(t, "moved", "0", "cat /y/x/c/.env")
		return o.Code == 0 && o.Stdout == ""
	})
	// The workspace outside is as it was.
	if b, err := os.ReadFile(filepath.Join(dir, "keys/a")); err != nil || string(b) != "secret\n" {
		t.Errorf("keys/a is %q, %v", b, err)
	}
	if out := ok(t, "inspect", "masked"); !strings.Contains(out, `"masks"`) || !strings.Contains(out, `".env*"`) {
		t.Error("inspect does not show the masks")
	}
}

func TestWhatIsGivenReadOnlyIsNotWritten(t *testing.T) {
	dir := write(t, map[string]string{"f": "text\n"})
	file := filepath.Join(write(t, map[string]string{"one.conf": "conf\n"}), "one.conf")
	own(t, dir, 1000)
	create(t, "reader", "-q", "--workspace-ro", "-v", file+":/etc/one.conf:ro", "-v", dir+":/again", probe, dir)
	for _, user := range []string{"", "0"} {
		for _, a := range []string{"echo x >f", "touch new", "rm f", "mkdir d", "chmod 777 f", "mount -o remount,rw,bind /work", "echo x >>/etc/one.conf"} {
			if o := sh(t, "reader", user, a); o.Code == 0 {
				t.Errorf("as user %q it could %s", user, a)
			}
		}
	}
	if out := ok(t, "exec", "reader", "--", "sh", "-c", "cat f /etc/one.conf; echo x >/again/made"); out != "text\nconf\n" {
		t.Errorf("it reads %q", out)
	}
	if _, err := os.Stat(filepath.Join(dir, "made")); err != nil {
		t.Error(err)
	}
}

func TestWhatMustNotBeGivenIsRefused(t *testing.T) {
	dir := write(t, map[string]string{"f": ""})
	sock := filepath.Join(t.TempDir(), "docker.sock")
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: sock}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ mount, why string }{
		{home + ":/x", "kitbox keeps its sandboxes"},
		{filepath.Dir(home) + ":/x:ro", "kitbox keeps its sandboxes"},
		{filepath.Join(home, "images") + ":/x", "kitbox keeps its sandboxes"},
		{sock + ":/x", "is a socket"}, {filepath.Dir(sock) + ":/x:ro", "holds " + sock},
		{"/proc:/x", "not files"}, {"/sys/fs:/x:ro", "not files"}, {"/dev:/x", "not files"}, {"/dev/null:/x", "neither"},
		{dir + ":/etc", "own system"}, {dir + ":/proc/x", "runtime"}, {dir + ":/dev/shm/x", "runtime"}, {dir + ":/", "own system"}, {dir + ":/usr/../bin", "own system"},
		{dir + ":/data", "taken"}, {dir + ":/work", "taken"},
	} {
		o := kitbox(t, "plan", "-v", c.mount, probe, write(t, map[string]string{"x": ""}))
		if o.Code != 2 || !strings.Contains(o.Stderr, c.why) {
			t.Errorf("%s: status %d, %s", c.mount, o.Code, o.Stderr)
		}
	}
	if err := os.Symlink(home, filepath.Join(dir, "sneaky")); err != nil {
		t.Fatal(err)
	}
	if o := kitbox(t, "plan", probe, filepath.Join(dir, "sneaky")); o.Code != 2 {
		t.Errorf("the state behind a link: %+v", o)
	}
}

func TestWorkspaceModes(t *testing.T) {
	create(t, "internal", "-q", probe)
	if out := ok(t, "exec", "internal", "--", "sh", "-c", "echo $WORKSPACE_DIR; pwd; echo x >x"); out != "/work\n/work\n" {
		t.Errorf("internal: %q", out)
	}
	create(t, "none", "-q", "--workspace-mode", "none", probe)
	if out := ok(t, "exec", "none", "--", "sh", "-c", "echo ${WORKSPACE_DIR-absent}"); out != "absent\n" {
		t.Errorf("none: %q", out)
	}
	for _, args := range [][]string{{"--clone", probe}, {"--workspace-mode", "none", probe, "."}, {"--workspace-mode", "sideways", probe}, {"--workspace-ro", probe}, {"--clone", "--workspace-mode", "host", probe, "."}, {"--mask", "x", probe}, {"--mask", "../x", probe, "."}} {
		if o := kitbox(t, append([]string{"plan"}, args...)...); o.Code == 0 {
			t.Errorf("%v is taken", args)
		}
	}
}

func TestAClonedWorkspaceIsLostOnlyOnPurpose(t *testing.T) {
	dir := repository(t, 0, map[string]string{"tracked": "x\n", ".env": "secret\n"})
	if o := kitbox(t, "create", "-q", "--clone", probe, t.TempDir()); o.Code != 2 || !strings.Contains(o.Stderr, "not a Git repository") {
		t.Errorf("what is no repository: %+v", o)
	}
	create(t, "cloned", "-q", "--clone", probe, dir)
	if out := ok(t, "exec", "cloned", "--", "sh", "-c", "ls -A; stat -c %u tracked .git .; echo $WORKSPACE_DIR"); out != ".git\ntracked\n1000\n1000\n1000\n/work\n" {
		t.Errorf("a clone has %q", out)
	}
	if o := sh(t, "cloned", "0", "grep -rl secret /work; cat "+dir+"/.env"); strings.Contains(o.Stdout, "secret") {
		t.Error("what is not committed can be read")
	}
	// A commit, made where the sandbox's files are kept since the image has no git.
	var in struct {
		Plan struct{ Workspace struct{ Host string } }
	}
	if err := json.Unmarshal([]byte(ok(t, "inspect", "cloned")), &in); err != nil {
		t.Fatal(err)
	}
	at := in.Plan.Workspace.Host
	gitRun(t, at, "commit", "-q", "--allow-empty", "-m", "made inside")
	own(t, at, 1000)
	o := kitbox(t, "rm", "cloned")
	if o.Code != 2 || !strings.Contains(o.Stderr, "made inside") || o.Stdout != "" {
		t.Errorf("rm: %+v", o)
	}
	ok(t, "recreate", "cloned")
	if o := kitbox(t, "rm", "--no-input", "cloned"); o.Code != 2 || !strings.Contains(o.Stderr, "made inside") {
		t.Errorf("rm after a recreation: %+v", o)
	}
	ok(t, "stop", "cloned")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	bundle := filepath.Join(t.TempDir(), "b")
	f, err := os.Create(bundle)
	if err != nil {
		t.Fatal(err)
	}
	cmd := command(ctx, "kitbox", "workspace", "bundle", "cloned")
	cmd.Stdout = f
	if err := cmd.Run(); err != nil || f.Close() != nil {
		t.Fatal(err)
	}
	gitRun(t, dir, "fetch", "-q", bundle, "refs/heads/*:refs/remotes/cloned/*")
	if out := gitRun(t, dir, "log", "-1", "--format=%s", "cloned/main"); out != "made inside" {
		t.Errorf("fetched %q", out)
	}
	ok(t, "rm", "cloned")
	if _, err := os.Stat(at); err == nil {
		t.Error("the clone is left")
	}
	o = kitbox(t, "run", "-q", "--rm", "--clone", "--exec", probe, dir, "--", "sh", "-c", "echo x > only-here")
	if o.Code != 0 || !strings.Contains(o.Stderr, "since --rm was given") || !strings.Contains(o.Stderr, "only-here") {
		t.Errorf("a clone that ends with its command: %+v", o)
	}
	// One that cannot be looked into is kept.
	o = kitbox(t, "run", "-q", "--name", "opaque", "--rm", "--clone", "--exec", probe, dir, "--", "sh", "-c", "echo 1234567890123456789012345678901234567890 >.git/refs/heads/broken")
	if o.Code != 1 || !strings.Contains(o.Stderr, "is kept in spite of --rm") {
		t.Errorf("a clone that is broken: %+v", o)
	}
	if o := kitbox(t, "rm", "--force", "opaque"); o.Code != 0 {
		t.Errorf("removing it: %+v", o)
	}
	// What cannot be cloned is refused when nothing is made yet, and when it is only planned.
	gitRun(t, dir, "config", "uploadpack.allowFilter", "true")
	partial := filepath.Join(t.TempDir(), "partial")
	gitRun(t, dir, "clone", "-q", "--no-checkout", "--filter=blob:none", "file://"+dir, partial)
	for _, args := range [][]string{{"plan", "-q"}, {"create", "-q", "--name", "lacking"}} {
		if o := kitbox(t, append(args, "--clone", probe, partial)...); o.Code != 2 || !strings.Contains(o.Stderr, "git fetch --refetch --no-filter") {
			t.Errorf("%s with a partial clone: %+v", args[0], o)
		}
	}
	create(t, "forced", "-q", "--clone", probe, dir)
	sh(t, "forced", "", "echo y >tracked")
	if o := kitbox(t, "rm", "forced"); o.Code != 2 || !strings.Contains(o.Stderr, "file tracked") {
		t.Errorf("a change: %+v", o)
	}
	ok(t, "rm", "--force", "forced")
}
