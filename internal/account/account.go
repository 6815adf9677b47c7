// Package account finds users and groups in the text of /etc/passwd and
// /etc/group, the way a container runtime reads an image's user.
//
// It is pure: whoever calls it brings the text, from a layer before there is a
// machine or from the guest afterwards.
package account

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// maxID is the first number that is no identity: the kernel reads it as "leave
// this one alone".
const maxID = 1<<32 - 1

// Resolve finds the identity that user spells: a name or a number, optionally
// followed by ":" and a group. A number is a uid and stays one: it is never
// looked up as a login name. A record that is malformed, a comment, or one
// without an absolute home is passed over. The error is [kiterr.ErrNotFound].
func Resolve(passwd, group, user string) (plan.Identity, error) {
	id, err := lookup(passwd, user)
	if err != nil {
		return plan.Identity{}, err
	}
	return withGroups(id, group, user)
}

// Lenient is Resolve, except that a number without a record is a user too: one
// with group 0, no name and the home "/". It is what an operator may ask for
// when running a command.
func Lenient(passwd, group, user string) (plan.Identity, error) {
	name, _, _ := strings.Cut(user, ":")
	id, err := lookup(passwd, user)
	if err != nil {
		uid, ok := number(name)
		if !ok {
			return plan.Identity{}, err
		}
		id = plan.Identity{UID: uid, Home: "/"}
	}
	return withGroups(id, group, user)
}

func lookup(passwd, user string) (plan.Identity, error) {
	name, _, _ := strings.Cut(user, ":")
	if name == "" {
		return plan.Identity{}, fmt.Errorf("user %q is empty: %w", user, kiterr.ErrNotFound)
	}
	wanted, numeric := number(name)
	if !numeric && digits(name) {
		// A number that no id can hold is not a name either.
		return plan.Identity{}, fmt.Errorf("user %s is no id that a host can hold: %w", name, kiterr.ErrNotFound)
	}
	for line := range strings.Lines(passwd) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), ":")
		if len(f) != 7 || f[0] == "" || strings.HasPrefix(f[0], "#") {
			continue
		}
		uid, ok1 := number(f[2])
		gid, ok2 := number(f[3])
		if !ok1 || !ok2 || !strings.HasPrefix(f[5], "/") {
			continue
		}
		if numeric && uid == wanted || !numeric && f[0] == name {
			return plan.Identity{Name: f[0], UID: uid, GID: gid, Home: f[5]}, nil
		}
	}
	return plan.Identity{}, fmt.Errorf("user %s is not in /etc/passwd: %w", name, kiterr.ErrNotFound)
}

// withGroups applies the group that user names, and otherwise the groups that
// the user is a member of.
func withGroups(id plan.Identity, group, user string) (plan.Identity, error) {
	_, suffix, _ := strings.Cut(user, ":")
	wanted, numeric := number(suffix)
	if suffix != "" && numeric {
		id.GID = wanted
		return id, nil
	}
	for line := range strings.Lines(group) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), ":")
		if len(f) != 4 || f[0] == "" || strings.HasPrefix(f[0], "#") {
			continue
		}
		gid, ok := number(f[2])
		if !ok {
			continue
		}
		if suffix != "" {
			if f[0] == suffix {
				id.GID = gid
				return id, nil
			}
			continue
		}
		for m := range strings.SplitSeq(f[3], ",") {
			if id.Name != "" && m == id.Name && gid != id.GID {
				id.Gids = append(id.Gids, gid)
			}
		}
	}
	if suffix != "" {
		return plan.Identity{}, fmt.Errorf("group %s is not in /etc/group: %w", suffix, kiterr.ErrNotFound)
	}
	return id, nil
}

// number reads an id: decimal digits, below maxID.
func number(s string) (uint32, bool) {
	if !digits(s) {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n < maxID
}

func digits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
