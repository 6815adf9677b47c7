package drivertest

import (
	"errors"
	"fmt"
	"os"

	"github.com/kitbox-dev/kitbox/internal/plan"
)

// covered makes a directory of secrets and a repository, and a machine with a mount of
// it whose secrets are hidden and whose hooks are kept.
func (x *trial) covered() (dir string, m plan.Machine, err error) {
	dir, err = x.layer("work", map[string]string{".env": "secret", "sub/.env": "secret", "keys/a": "secret", ".git/hooks/h": "hook", ".git/config": "config", "f": "text"})
	desk := bind(dir, "/desk")
	desk.Covers = []plan.Cover{{Pattern: ".env", Kind: plan.CoverHide}, {Pattern: "/keys/", Kind: plan.CoverHide},
		{Pattern: "/.git/hooks", Kind: plan.CoverKeep}, {Pattern: "/.git/config", Kind: plan.CoverKeep}}
	m = x.machine()
	m.Mounts = append(m.Mounts, desk)
	return dir, m, err
}

// uncovering are ways to get at what is covered in /desk. Each fails.
var uncovering = []string{
	"rm -f /desk/.env", "mv /desk/.env /desk/x", "echo x >/desk/.env", "ln /desk/.env /desk/x", "rmdir /desk/keys", "mv /desk/keys /desk/k",
	"rm /desk/.git/hooks/h", "echo x >/desk/.git/hooks/new", "echo x >>/desk/.git/config", "mv /desk/.git /desk/g", "mv /desk/.git/hooks /desk/h",
	"mv /desk/sub /desk/s && grep secret /desk/s/.env; got=$?; mv /desk/s /desk/sub; exit $got",
}

// coverChecks judge what lies over parts of a bind.
var coverChecks = []check{
	{"what is covered of a bind is hidden or kept, from root too", func(x *trial) error {
		dir, m, err := x.covered()
		if err != nil {
			return err
		}
		cl, err := x.up(m)
		if err != nil {
			return err
		}
		// Over a stop and a start as well.
		for range 2 {
			if err := x.want(cl, "cat /desk/.env /desk/sub/.env; ls /desk/keys; cat /desk/f /desk/.git/hooks/h /desk/.git/config", "texthookconfig"); err != nil {
				return err
			}
			for _, script := range uncovering {
				if err := x.fails(cl, script); err != nil {
					return err
				}
			}
			if err := errors.Join(x.d.Stop(x.ctx, m.ID, 0), x.d.Start(x.ctx, m.ID)); err != nil {
				return err
			}
		}
		return holds(dir+"/.env", "secret", dir+"/keys/a", "secret", dir+"/.git/hooks/h", "hook", dir+"/.git/config", "config")
	}},
	{"what lies over a bind stays there for a root with every capability", func(x *trial) error {
		dir, m, err := x.covered()
		if err != nil {
			return err
		}
		other, err := x.layer("other", map[string]string{"f": "text"})
		if err != nil {
			return err
		}
		ro := bind(other, "/other")
		ro.ReadOnly = true
		m.Mounts = append(m.Mounts, ro)
		m.Capabilities = []string{"CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_CHOWN"}
		cl, err := x.up(m)
		if err != nil {
			return err
		}
		if err := x.want(cl, "mkdir /m && mount -t tmpfs t /m && umount /m && echo can", "can"); err != nil {
			return err
		}
		for _, script := range append([]string{
			"umount /desk/.env", "umount -l /desk/keys", "umount /desk/.git/hooks", "umount -l /desk/.git/config",
			"mount -o remount,rw,bind /desk/.git/hooks && touch /desk/.git/hooks/x", "mount -o remount,rw,bind /other && touch /other/x",
			"mkdir -p /a && mount --bind /desk /a && grep secret /a/.env", "mkdir -p /b && mount --rbind /desk /b && umount /b/.env",
			"mkdir -p /c && mount --move /desk/.env /c",
		}, uncovering...) {
			if err := x.fails(cl, script); err != nil {
				return err
			}
		}
		return holds(dir+"/.env", "secret", dir+"/.git/hooks/h", "hook", dir+"/.git/config", "config", other+"/f", "text")
	}},
	{"what comes into being in a bind is covered while its machine runs", func(x *trial) error {
		dir, m, err := x.covered()
		if err != nil {
			return err
		}
		cl, err := x.up(m)
		if err != nil {
			return err
		}
		if err := errors.Join(os.MkdirAll(dir+"/later/deep", 0o755), os.WriteFile(dir+"/later/deep/.env", []byte("secret"), 0o644),
			os.WriteFile(dir+"/tmp", []byte("secret"), 0o644), os.Rename(dir+"/tmp", dir+"/.env")); err != nil {
			return err
		}
		return x.eventually(func() error { return x.want(cl, "cat /desk/later/deep/.env /desk/.env", "") })
	}},
}

// holds compares files of the host with what they are to hold.
func holds(pairs ...string) error {
	for i := 0; i < len(pairs); i += 2 {
		if b, err := os.ReadFile(pairs[i]); err != nil || string(b) != pairs[i+1] {
			return fmt.Errorf("%s holds %q, %v", pairs[i], b, err)
		}
	}
	return nil
}
