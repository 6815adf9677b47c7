package passwd_test

import (
	"errors"
	"testing"

	"github.com/kitbox-dev/kitbox/assemble/passwd"
	"github.com/kitbox-dev/kitbox/kiterr"
)

const (
	accounts = "#x:x:1:1::/c:/s\nroot:x:0:0::/root:/bin/sh\nbroken:x:-1:0::/b:/s\nbroken:x:9:9::/b:/s\n:x:6:6::/e:/s\nagent:x:1000:1000::/home/agent:/bin/bash\n" +
		"short:x:5\nlong:x:5:5::/l:/s:more\n1000:x:77:77::/n:/s\nrel:x:8:8::home:/s\nbig:x:4294967295:1::/b:/s\ncr:x:11:11::/cr:/s\r\n"
	groups = "#g:x:1:\nops:x:44:\nbad:x:4294967295:\nbad:x:45:\n"
)

func TestResolve(t *testing.T) {
	agent := passwd.User{Name: "agent", UID: 1000, GID: 1000, Home: "/home/agent"}
	ops := agent
	ops.GID = 44
	for user, want := range map[string]passwd.User{
		"agent": agent, "1000": agent, "01000": agent, "agent:": agent, "agent:ops": ops, "1000:44": ops, "agent:0044": ops,
		"broken": {Name: "broken", UID: 9, GID: 9, Home: "/b"}, "77": {Name: "1000", UID: 77, GID: 77, Home: "/n"}, "0": {Name: "root", Home: "/root"},
		"agent:bad": {Name: "agent", UID: 1000, GID: 45, Home: "/home/agent"},
	} {
		if got, err := passwd.Resolve(accounts, groups, user); err != nil || got != want {
			t.Errorf("Resolve(%q) = %+v, %v; want %+v", user, got, err, want)
		}
	}
	for _, user := range []string{
		"", ":ops", "#x", "short", "long", "rel", "big", "6", " agent", "agent ", "+1000", "99999999999999999999", "4294967295", "agent:none", "agent:4294967295", "agent:ops:x", "5",
	} {
		if got, err := passwd.Resolve(accounts, groups, user); !errors.Is(err, passwd.ErrUnresolved) || !errors.Is(err, kiterr.ErrRefused) {
			t.Errorf("Resolve(%q) = %+v, %v", user, got, err)
		}
	}
}
