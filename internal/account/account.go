// Package account makes identities of users as they are spelled: by an image
// config, a hook or an operator, in the accounts of an image or of a running
// machine.
//
// What a spelling means is decided by assemble/passwd; this package adds the
// groups that a user is a member of, and the numbers that have no record.
package account

import (
	"strconv"
	"strings"

	"github.com/kitbox-dev/kitbox/assemble/passwd"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// Resolve finds the identity that user spells in the text of /etc/passwd and
// /etc/group; see [passwd.Resolve] for its errors. Without a group in the
// spelling the identity has all groups that its user is a member of.
func Resolve(accounts, groups, user string) (plan.Identity, error) {
	u, err := passwd.Resolve(accounts, groups, user)
	if err != nil {
		return plan.Identity{}, err
	}
	id := plan.Identity{Name: u.Name, UID: u.UID, GID: u.GID, Home: u.Home}
	if _, group, _ := strings.Cut(user, ":"); group == "" {
		id.Gids = memberships(groups, id)
	}
	return id, nil
}

// Lenient is Resolve, except that a number without a record is a user too: one
// without a name, with group 0 and the home "/". It is what any container
// runtime takes a number for.
func Lenient(accounts, groups, user string) (plan.Identity, error) {
	id, err := Resolve(accounts, groups, user)
	name, _, _ := strings.Cut(user, ":")
	if err == nil || name == "" || strings.Trim(name, "0123456789") != "" {
		return id, err
	}
	if _, rerr := passwd.Resolve(accounts, groups, name); rerr == nil {
		return id, err // it is the group that is at fault
	}
	id, lerr := Resolve("none:x:"+name+":0::/:/\n", groups, user)
	if lerr != nil {
		return id, err
	}
	id.Name = ""
	return id, nil
}

// memberships returns the groups that list id, besides its own.
func memberships(groups string, id plan.Identity) []uint32 {
	var gids []uint32
	for line := range strings.Lines(groups) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), ":")
		if len(f) != 4 || strings.HasPrefix(f[0], "#") {
			continue
		}
		gid, err := strconv.ParseUint(f[2], 10, 32)
		if err != nil || uint32(gid) == id.GID {
			continue
		}
		for m := range strings.SplitSeq(f[3], ",") {
			if m == id.Name {
				gids = append(gids, uint32(gid))
			}
		}
	}
	return gids
}
