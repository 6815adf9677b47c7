package account_test

import (
	"errors"
	"reflect"
	"testing"

	"github.com/kitbox-dev/kitbox/assemble/passwd"
	"github.com/kitbox-dev/kitbox/internal/account"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

const accounts = `#root:x:5:5::/nowhere:/bin/sh
root:x:0:0:root:/root:/bin/bash
short:x:7:7
relative:x:8:8::home:/bin/sh
1000:x:77:77::/trap:/bin/sh
toolarge:x:4294967295:0::/x:/bin/sh
agent:x:1000:1000::/home/agent:/bin/bash
`

const groups = `root:x:0:
docker:x:99:other,agent
#docker:x:98:agent
agent:x:1000:agent
sudo:x:27:agent
`

func TestResolve(t *testing.T) {
	agent := plan.Identity{Name: "agent", UID: 1000, GID: 1000, Home: "/home/agent", Gids: []uint32{99, 27}}
	for _, c := range []struct {
		user string
		want plan.Identity
		err  bool
	}{
		{"agent", agent, false},
		{"1000", agent, false},
		{"01000", agent, false}, // by value
		{"agent:", agent, false},
		{"agent:sudo", plan.Identity{Name: "agent", UID: 1000, GID: 27, Home: "/home/agent"}, false},
		{"agent:5", plan.Identity{Name: "agent", UID: 1000, GID: 5, Home: "/home/agent"}, false},
		{"root", plan.Identity{Name: "root", Home: "/root"}, false},
		{"agent:nogroup", plan.Identity{}, true},
		{"", plan.Identity{}, true},
		{":0", plan.Identity{}, true},
		{"#root", plan.Identity{}, true},
		{"short", plan.Identity{}, true},
		{"relative", plan.Identity{}, true},
		{"toolarge", plan.Identity{}, true},
		{"4294967295", plan.Identity{}, true},
		{"99999999999999999999", plan.Identity{}, true},
		{"1234", plan.Identity{}, true},
		{" agent", plan.Identity{}, true},
	} {
		got, err := account.Resolve(accounts, groups, c.user)
		if (err != nil) != c.err || !reflect.DeepEqual(got, c.want) {
			t.Errorf("Resolve(%q) = %+v, %v; want %+v", c.user, got, err, c.want)
		}
		if err != nil && !errors.Is(err, passwd.ErrUnresolved) {
			t.Errorf("Resolve(%q): %v is not unresolved", c.user, err)
		}
	}
}

func TestLenientTakesANumberWithoutARecord(t *testing.T) {
	got, err := account.Lenient(accounts, groups, "1234:sudo")
	if err != nil || !reflect.DeepEqual(got, plan.Identity{UID: 1234, GID: 27, Home: "/"}) {
		t.Errorf("Lenient = %+v, %v", got, err)
	}
	for _, bad := range []string{"nobody-here", "4294967295", "", "1234:nogroup", "agent:nogroup", "1000:nogroup"} {
		if got, err := account.Lenient(accounts, groups, bad); err == nil {
			t.Errorf("Lenient(%q) = %+v", bad, got)
		}
	}
}
