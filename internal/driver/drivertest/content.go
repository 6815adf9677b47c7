package drivertest

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/kitbox-dev/kitbox/internal/driver"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// bind is a mount whose ids shift as the machine's do.
func bind(source, path string) plan.Mount {
	return plan.Mount{Kind: plan.MountBind, Source: source, Path: path}
}

// layer makes a directory with files, by path.
func (x *trial) layer(name string, files map[string]string) (string, error) {
	dir := x.scratch + "/" + name
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for p, content := range files {
		full := dir + "/" + p
		if err := os.MkdirAll(full[:strings.LastIndexByte(full, '/')], 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(full, []byte(content), 0o644); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// contentChecks judge what a machine is made of: package plan.
var contentChecks = []check{
	{"layers lie over each other, lowest first, and are never written", func(x *trial) error {
		one, err := x.layer("one", map[string]string{"a": "one", "b": "one", "d/one": ""})
		if err != nil {
			return err
		}
		two, err := x.layer("two", map[string]string{"b": "two", "c": "two", "d/two": ""})
		if err != nil {
			return err
		}
		m := x.machine()
		m.Layers = append(append([]string{}, m.Layers...), one, two)
		cl, err := x.up(m)
		if err != nil {
			return err
		}
		if err := x.want(cl, "cat /a /b /c; ls /d", "onetwotwoone\ntwo"); err != nil {
			return err
		}
		if err := x.want(cl, "echo new >/a && rm /b && rm -r /d && mkdir /d && ls /d && touch /new", ""); err != nil {
			return err
		}
		for p, want := range map[string]string{one + "/a": "one", one + "/b": "one", two + "/b": "two"} {
			if b, err := os.ReadFile(p); err != nil || string(b) != want {
				return fmt.Errorf("%s holds %q, %v", p, b, err)
			}
		}
		return exist(one+"/d/one", two+"/d/two")
	}},
	{"a layer can take away what lies below it", func(x *trial) error {
		one, err := x.layer("one", map[string]string{"gone": "", "stays": "", "dir/below": ""})
		if err != nil {
			return err
		}
		two, err := x.layer("two", map[string]string{"dir/above": ""})
		if err != nil {
			return err
		}
		// As layers are stored: a device 0:0 for a file that is gone, an
		// attribute on a directory that begins anew.
		if err := syscall.Mknod(two+"/gone", syscall.S_IFCHR, 0); err != nil {
			return err
		}
		if err := syscall.Setxattr(two+"/dir", "user.overlay.opaque", []byte("y"), 0); err != nil {
			return err
		}
		m := x.machine()
		m.Layers = append(append([]string{}, m.Layers...), one, two)
		return x.shows(m, "ls /dir; ls /stays; test -e /gone || echo gone", "above\n/stays\ngone")
	}},
	{"a hundred layers are no problem", func(x *trial) error {
		m := x.machine()
		layers := append([]string{}, m.Layers...)
		for i := range 100 {
			l, err := x.layer(fmt.Sprint("l", i), map[string]string{fmt.Sprint("f", i): "", "last": fmt.Sprint(i)})
			if err != nil {
				return err
			}
			layers = append(layers, l)
		}
		m.Layers = layers
		return x.shows(m, "ls -d /f* | wc -l; cat /last", "100\n99")
	}},
	{"the root belongs to root as the lowest layer's does", func(x *trial) error {
		return x.shows(x.machine(), "stat -c '%u %g %a' / /root /tmp /home/agent", "0 0 755\n0 0 700\n0 0 1777\n1000 1000 755")
	}},
	{"ids of a shifted bind are stored as they are inside", func(x *trial) error {
		source := x.scratch + "/v"
		if err := os.Mkdir(source, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(source+"/old", nil, 0o600); err != nil {
			return err
		}
		if err := os.Chown(source+"/old", 1000, 1000); err != nil {
			return err
		}
		m := x.machine()
		m.Mounts = append(m.Mounts, bind(source, "/v"))
		cl, err := x.up(m)
		if err != nil {
			return err
		}
		if err := x.want(cl, "stat -c '%u %g' /v /v/old; touch /v/root /v/user; chown 1000:50 /v/user", "0 0\n1000 1000"); err != nil {
			return err
		}
		return errors.Join(owner(source+"/root", 0, 0), owner(source+"/user", 1000, 50))
	}},
	{"an owner map ties one user of the host to one of the machine", func(x *trial) error {
		const host = 4321
		source := x.scratch + "/w"
		if err := os.Mkdir(source, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(source+"/old", nil, 0o600); err != nil {
			return err
		}
		if err := errors.Join(os.Chown(source, host, host+1), os.Chown(source+"/old", host, host+1)); err != nil {
			return err
		}
		m := x.machine()
		mt := bind(source, "/w")
		mt.Owner = &plan.OwnerMap{HostUID: host, HostGID: host + 1, MachineUID: 1000, MachineGID: 1000}
		m.Mounts = append(m.Mounts, mt)
		cl, err := x.up(m)
		if err != nil {
			return err
		}
		out, code, err := x.as(cl, 1000, "stat -c '%u %g' /w /w/old; cat /w/old; echo mine >/w/new; stat -c '%u %g' /w/new")
		if err != nil || code != 0 || out != "1000 1000\n1000 1000\n1000 1000" {
			return fmt.Errorf("as the user: status %d, %q, %v", code, out, err)
		}
		return owner(source+"/new", host, host+1)
	}},
	{"what others make in a bind with an owner map is its owner's once the machine has stopped", func(x *trial) error {
		// Where ids are not shifted, the owner is the user who runs this, as the machine's root.
		o, stranger := plan.OwnerMap{HostUID: 4321, HostGID: 4322, MachineUID: 1000, MachineGID: 1000}, 1_299_999_999
		if x.s.Machine.IDMap.IsIdentity() {
			o, stranger = plan.OwnerMap{}, 0
		}
		source := x.scratch + "/w"
		if err := os.Mkdir(source, 0o777); err != nil {
			return err
		}
		for _, f := range []string{"own", "theirs", "beside"} {
			if err := os.WriteFile(source+"/"+f, nil, 0o666); err != nil {
				return err
			}
		}
		if err := errors.Join(os.Chmod(source, 0o777), os.Chown(source, int(o.HostUID), int(o.HostGID)), os.Chown(source+"/own", int(o.HostUID), int(o.HostGID)),
			os.Chown(source+"/theirs", 0, 0), os.Chown(source+"/beside", stranger, stranger)); err != nil {
			return err
		}
		m := x.machine()
		mt := bind(source, "/w")
		mt.Owner = &o
		m.Mounts = append(m.Mounts, mt)
		cl, err := x.up(m)
		if err != nil {
			return err
		}
		if err := x.want(cl, "cd /w && mkdir -p d/e && echo x >d/e/f && chmod 4755 d/e/f && ln -s /etc/passwd d/l && mkfifo d/p && stat -c '%u %g' d/e/f && chown 9:50 own && stat -c '%u %g' own", "0 0\n9 50"); err != nil {
			return err
		}
		// What is somebody else's outside is nobody's inside, for root too.
		if stranger > 0 {
			if err := errors.Join(x.fails(cl, "chown 0 /w/theirs"), x.fails(cl, "chown 1000 /w/beside")); err != nil {
				return err
			}
		}
		if out, code, err := x.as(cl, 7, "touch /w/seven && stat -c %u /w/seven"); err != nil || code != 0 || out != "7" {
			return fmt.Errorf("as another user: status %d, %q, %v", code, out, err)
		}
		if err := x.d.Stop(x.ctx, m.ID, 0); err != nil {
			return err
		}
		for _, f := range []string{"", "/d", "/d/e", "/d/e/f", "/d/l", "/d/p", "/own", "/seven"} {
			if err := owner(source+f, o.HostUID, o.HostGID); err != nil {
				return err
			}
		}
		if st, err := os.Lstat(source + "/d/e/f"); err != nil || st.Mode() != 0o755 && stranger > 0 {
			return fmt.Errorf("a program that was to run as root is one with mode %v, %v", st.Mode(), err)
		}
		if err := errors.Join(owner(source+"/theirs", 0, 0), owner(source+"/beside", uint32(stranger), uint32(stranger))); err != nil {
			return err
		}
		// So is what a machine made that was killed, when it starts again.
		if err := x.d.Start(x.ctx, m.ID); err != nil {
			return err
		}
		if err := x.want(cl, "touch /w/late && stat -c %u /w/late", "0"); err != nil {
			return err
		}
		got, _, err := x.find(m.ID)
		if err != nil || got.PID == 0 {
			return err // the guest is no process of this system
		}
		if err := syscall.Kill(got.PID, syscall.SIGKILL); err != nil {
			return err
		}
		if err := driver.Wait(x.ctx, x.d, m.ID); err != nil && !errors.Is(err, kiterr.ErrUnsupported) {
			return err
		}
		if err := x.d.Start(x.ctx, m.ID); err != nil {
			return err
		}
		return owner(source+"/late", o.HostUID, o.HostGID)
	}},
	{"a read-only mount cannot be written, by root neither", func(x *trial) error {
		source := x.scratch + "/ro"
		if err := os.Mkdir(source, 0o777); err != nil {
			return err
		}
		if err := os.WriteFile(source+"/f", []byte("x"), 0o666); err != nil {
			return err
		}
		m := x.machine()
		mt := bind(source, "/ro")
		mt.ReadOnly = true
		m.Mounts = append(m.Mounts, mt, plan.Mount{Kind: plan.MountTmpfs, Path: "/rt", ReadOnly: true})
		cl, err := x.up(m)
		if err != nil {
			return err
		}
		return errors.Join(
			x.want(cl, "cat /ro/f", "x"),
			x.fails(cl, "echo y 2>/dev/null >/ro/f"),
			x.fails(cl, "touch /ro/g"),
			x.fails(cl, "mount -o remount,rw,bind /ro"),
			x.fails(cl, "touch /rt/g"),
		)
	}},
	{"a file can be bound, and what is missing on the way is made", func(x *trial) error {
		if err := os.WriteFile(x.scratch+"/f", []byte("content"), 0o644); err != nil {
			return err
		}
		m := x.machine()
		m.Mounts = append(m.Mounts, bind(x.scratch+"/f", "/not/there/yet"))
		return x.shows(m, "cat /not/there/yet; stat -c '%u %a' /not/there", "content0 755")
	}},
	{"mounts are laid down in order", func(x *trial) error {
		source := x.scratch + "/inner"
		if err := os.Mkdir(source, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(source+"/f", []byte("x"), 0o644); err != nil {
			return err
		}
		m := x.machine()
		m.Mounts = append(m.Mounts, plan.Mount{Kind: plan.MountTmpfs, Path: "/outer"}, bind(source, "/outer/inner"))
		return x.shows(m, "cat /outer/inner/f; stat -f -c %T /outer", "xtmpfs")
	}},
	{"a tmpfs has its size, mode and owner", func(x *trial) error {
		m := x.machine()
		m.Mounts = append(m.Mounts, plan.Mount{Kind: plan.MountTmpfs, Path: "/t", SizeBytes: 1 << 20, Mode: 0o1770, UID: 1000, GID: 50})
		cl, err := x.up(m)
		if err != nil {
			return err
		}
		if err := x.want(cl, "stat -c '%u %g %a' /t", "1000 50 1770"); err != nil {
			return err
		}
		if err := x.want(cl, "dd if=/dev/zero of=/t/f bs=1k count=900 2>/dev/null", ""); err != nil {
			return err
		}
		return x.fails(cl, "dd if=/dev/zero of=/t/g bs=1k count=900 2>/dev/null")
	}},
	{"a bind keeps its data over stop and start, a tmpfs does not", func(x *trial) error {
		source := x.scratch + "/v"
		if err := os.Mkdir(source, 0o755); err != nil {
			return err
		}
		m := x.machine()
		m.Mounts = append(m.Mounts, bind(source, "/v"), plan.Mount{Kind: plan.MountTmpfs, Path: "/t"})
		cl, err := x.up(m)
		if err != nil {
			return err
		}
		if err := x.want(cl, "echo kept >/v/f; echo lost >/t/f", ""); err != nil {
			return err
		}
		if err := errors.Join(x.d.Stop(x.ctx, m.ID, 0), x.d.Start(x.ctx, m.ID)); err != nil {
			return err
		}
		return x.want(cl, "cat /v/f; ls /t", "kept")
	}},
	{"files are written before the guest serves, over links too", func(x *trial) error {
		etc, err := x.layer("etc", nil)
		if err != nil {
			return err
		}
		if err := os.Mkdir(etc+"/etc", 0o755); err != nil {
			return err
		}
		if err := os.Symlink("/run/no/such/resolv.conf", etc+"/etc/resolv.conf"); err != nil {
			return err
		}
		m := x.machine()
		m.Layers = append(append([]string{}, m.Layers...), etc)
		m.Files = []plan.BootFile{
			{Path: "/etc/resolv.conf", Content: "nameserver 192.0.2.1\n"},
			{Path: "/etc/new/deep", Content: "secret", Mode: 0o600},
		}
		cl, err := x.up(m)
		if err != nil {
			return err
		}
		if err := x.want(cl, "cat /etc/resolv.conf /etc/new/deep; stat -c '%u %a' /etc/resolv.conf /etc/new/deep",
			"nameserver 192.0.2.1\nsecret0 644\n0 600"); err != nil {
			return err
		}
		link, err := os.Readlink(etc + "/etc/resolv.conf")
		if err != nil || link != "/run/no/such/resolv.conf" {
			return fmt.Errorf("the layer's link became %q, %v", link, err)
		}
		return nil
	}},
	{"a file is added to once and keeps what it had, and never in a mount", func(x *trial) error {
		etc, err := x.layer("etc", map[string]string{"etc/trust/real": "one"})
		if err != nil {
			return err
		}
		if err := errors.Join(os.Chmod(etc+"/etc/trust/real", 0o640), os.Symlink("trust/real", etc+"/etc/link")); err != nil {
			return err
		}
		given, err := x.layer("given", map[string]string{"f": "given"})
		if err != nil {
			return err
		}
		m := x.machine()
		m.Layers = append(append([]string{}, m.Layers...), etc)
		m.Mounts = append(m.Mounts, bind(given, "/given"), bind(given+"/f", "/etc/bound"))
		m.Files = []plan.BootFile{
			{Path: "/etc/link", Content: "two\n", Append: true},
			{Path: "/etc/made", Content: "two\n", Append: true},
			{Path: "/etc/none", Content: "two\n", Append: true, Optional: true},
			{Path: "/given/f", Content: "two\n", Append: true}, {Path: "/given/new", Content: "two\n"}, {Path: "/given/sub/new", Content: "two\n"},
			{Path: "/etc/bound", Content: "two\n"},
		}
		cl, err := x.up(m)
		if err != nil {
			return err
		}
		for range 2 {
			if err := x.want(cl, "readlink /etc/link; cat /etc/trust/real; stat -c %a /etc/trust/real; cat /etc/made; ls /etc/none 2>/dev/null; cat /given/f /etc/bound; ls /given", "trust/real\none\ntwo\n640\ntwo\ngivengivenf"); err != nil {
				return err
			}
			if err := errors.Join(x.d.Stop(x.ctx, m.ID, 0), x.d.Start(x.ctx, m.ID)); err != nil {
				return err
			}
		}
		return holds(given+"/f", "given", etc+"/etc/trust/real", "one")
	}},
	{"a file can be the guest's program, or a link that gives way", func(x *trial) error {
		l, err := x.layer("there", map[string]string{"opt/there": "theirs"})
		if err != nil {
			return err
		}
		m := x.machine()
		m.Layers = append(append([]string{}, m.Layers...), l)
		m.Files = []plan.BootFile{
			{Path: "/opt/p/oci-runtime", Program: true},
			{Path: "/opt/link", Content: "/opt/p/oci-runtime", Link: true},
			{Path: "/opt/there", Content: "/opt/p/oci-runtime", Link: true},
		}
		cl, err := x.up(m)
		if err != nil {
			return err
		}
		const look = "/opt/p/oci-runtime 2>&1; echo $?; readlink /opt/link; cat /opt/there; stat -c ' %u %a' /opt/p/oci-runtime"
		const want = "kitbox: runc, crun: not found\n127\n/opt/p/oci-runtime\ntheirs 0 755"
		if err := x.want(cl, look, want); err != nil {
			return err
		}
		if err := errors.Join(x.d.Stop(x.ctx, m.ID, 0), x.d.Start(x.ctx, m.ID)); err != nil {
			return err
		}
		return x.want(cl, look, want)
	}},
	{"the machine has its host name", func(x *trial) error {
		m := x.machine()
		m.Hostname = "some-other-name"
		return x.shows(m, "hostname", "some-other-name")
	}},
	{"the usual devices are there and work", func(x *trial) error {
		return x.shows(x.machine(), `echo x >/dev/null && head -c 3 /dev/zero | wc -c && head -c 3 /dev/urandom | wc -c &&
			head -c 3 /dev/random | wc -c && { echo x >/dev/full; } 2>/dev/null || echo full
			ls /dev/ptmx /dev/pts/ptmx /dev/tty /dev/fd/0 /dev/stdin /dev/stdout /dev/stderr >/dev/null && echo x | cat /dev/stdin
			touch /dev/shm/f && rm /dev/shm/f && stat -c %a /dev/shm /tmp`,
			"3\n3\n3\nfull\nx\n1777\n1777")
	}},
}

func owner(p string, uid, gid uint32) error {
	var st syscall.Stat_t
	if err := syscall.Lstat(p, &st); err != nil {
		return err
	}
	if st.Uid != uid || st.Gid != gid {
		return fmt.Errorf("%s belongs to %d:%d, want %d:%d", p, st.Uid, st.Gid, uid, gid)
	}
	return nil
}
