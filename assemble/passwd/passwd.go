// Package passwd resolves the user an image config states in the account files
// of that image (sbx@1).
//
// It is handed the text of the files; the host's own accounts are never asked.
package passwd

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/kitbox-dev/kitbox/kiterr"
)

// A User is what an account resolves to.
type User struct {
	Name string
	UID  uint32
	GID  uint32 // of the stated group, else the primary one
	Home string // absolute
}

// ErrUnresolved means that the account files do not hold the user or the group.
// It comes wrapped in [kiterr.ErrRefused].
var ErrUnresolved = errors.New("does not resolve")

// noID is the "leave this one alone" sentinel; ids are below it.
const noID = 1<<32 - 1

// Resolve looks up user, spelled `user` or `user:group` as in an image config,
// in the text of /etc/passwd and /etc/group. A spelling of digits is an id,
// compared by value, and never a login name, even if it is too large to be an
// id. An empty group is no group. Comments and malformed records are passed
// over. Nothing is trimmed.
func Resolve(passwd, group, user string) (User, error) {
	name, groupName, _ := strings.Cut(user, ":")
	u, ok := lookUpUser(passwd, name)
	if !ok {
		return User{}, fmt.Errorf("user %q %w in the image's /etc/passwd: %w", name, ErrUnresolved, kiterr.ErrRefused)
	}
	if groupName != "" {
		gid, ok := lookUpGroup(group, groupName)
		if !ok {
			return User{}, fmt.Errorf("group %q %w in the image's /etc/group: %w", groupName, ErrUnresolved, kiterr.ErrRefused)
		}
		u.GID = gid
	}
	return u, nil
}

func lookUpUser(passwd, name string) (User, bool) {
	if name == "" {
		return User{}, false
	}
	number := digits(name)
	uid, fits := id(name)
	if number && !fits {
		return User{}, false
	}
	for line := range strings.SplitSeq(passwd, "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(line, ":")
		if len(f) != 7 || f[0] == "" || !strings.HasPrefix(f[5], "/") {
			continue
		}
		rowUID, ok := id(f[2])
		rowGID, ok2 := id(f[3])
		if !ok || !ok2 {
			continue
		}
		if number && rowUID == uid || !number && f[0] == name {
			return User{f[0], rowUID, rowGID, f[5]}, true
		}
	}
	return User{}, false
}

func lookUpGroup(group, name string) (uint32, bool) {
	if digits(name) {
		return id(name)
	}
	for line := range strings.SplitSeq(group, "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(line, ":")
		if len(f) < 3 || f[0] != name {
			continue
		}
		if gid, ok := id(f[2]); ok {
			return gid, true
		}
	}
	return 0, false
}

func digits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// id parses an id that a kernel can hold. ParseUint alone would take a sign or
// an underscore in some bases.
func id(s string) (uint32, bool) {
	if !digits(s) {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n >= noID {
		return 0, false
	}
	return uint32(n), true
}
