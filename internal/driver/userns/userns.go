// Package userns reads what a user namespace maps and explains why one could
// not be made.
package userns

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/kitbox-dev/kitbox/kiterr"
)

// A Range maps Size ids from Inside on to those from Outside on, the latter as
// the namespace around this one counts them.
type Range struct{ Inside, Outside, Size uint32 }

// UIDs and GIDs return the map of the namespace that this process is in.
func UIDs() ([]Range, error) { return read("/proc/self/uid_map") }

// GIDs is described with UIDs.
func GIDs() ([]Range, error) { return read("/proc/self/gid_map") }

func read(file string) ([]Range, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var rs []Range
	for s := bufio.NewScanner(f); s.Scan(); {
		var r Range
		if _, err := fmt.Sscan(s.Text(), &r.Inside, &r.Outside, &r.Size); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		rs = append(rs, r)
	}
	return rs, nil
}

// Initial reports whether this process is in the user namespace of the system
// itself, the only one that maps every id to itself.
func Initial() bool {
	rs, err := UIDs()
	return err == nil && len(rs) == 1 && rs[0] == Range{0, 0, 1<<32 - 1}
}

// switches are the settings that turn user namespaces off.
var switches = []struct{ file, bad, advice string }{
	{"/proc/sys/user/max_user_namespaces", "0",
		"user namespaces are turned off: set sysctl user.max_user_namespaces to 15000"},
	{"/proc/sys/kernel/unprivileged_userns_clone", "0",
		"user namespaces are turned off for ordinary users: set sysctl kernel.unprivileged_userns_clone to 1"},
	{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1",
		"AppArmor keeps ordinary users from user namespaces: set sysctl kernel.apparmor_restrict_unprivileged_userns to 0, or give this program a profile with the userns permission"},
}

// Explain turns the error of making a user namespace into one that names the
// setting that forbids it and is [kiterr.ErrUnavailable].
func Explain(err error) error { return explain(err, os.ReadFile) }

func explain(err error, readFile func(string) ([]byte, error)) error {
	if !errors.Is(err, syscall.EPERM) && !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.EACCES) {
		return err
	}
	for _, s := range switches {
		if b, rerr := readFile(s.file); rerr == nil && strings.TrimSpace(string(b)) == s.bad {
			return fmt.Errorf("%s (%w): %w", s.advice, err, kiterr.ErrUnavailable)
		}
	}
	if errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("no more namespaces are allowed: raise the sysctls user.max_*_namespaces (%w): %w", err, kiterr.ErrUnavailable)
	}
	return fmt.Errorf("the kernel or the container around this program does not allow user namespaces (%w): %w", err, kiterr.ErrUnavailable)
}
