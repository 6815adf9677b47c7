// Package pin reads containerd's default seccomp profile and says what it
// holds in the terms of package seccomp. The generator of that package's table
// and the test that the table is still containerd's both use it; no program
// links it.
package pin

import (
	"fmt"
	"reflect"
	"slices"

	cseccomp "github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/kitbox-dev/kitbox/internal/guest/seccomp"
)

// capabilities are those that containerd's profile may ask about.
var capabilities = []string{
	"CAP_AUDIT_CONTROL", "CAP_AUDIT_READ", "CAP_AUDIT_WRITE", "CAP_BLOCK_SUSPEND", "CAP_BPF",
	"CAP_CHECKPOINT_RESTORE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER",
	"CAP_FSETID", "CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_KILL", "CAP_LEASE", "CAP_LINUX_IMMUTABLE",
	"CAP_MAC_ADMIN", "CAP_MAC_OVERRIDE", "CAP_MKNOD", "CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE",
	"CAP_NET_BROADCAST", "CAP_NET_RAW", "CAP_PERFMON", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP",
	"CAP_SETUID", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_CHROOT", "CAP_SYS_MODULE", "CAP_SYS_NICE",
	"CAP_SYS_PACCT", "CAP_SYS_PTRACE", "CAP_SYS_RAWIO", "CAP_SYS_RESOURCE", "CAP_SYS_TIME",
	"CAP_SYS_TTY_CONFIG", "CAP_SYSLOG", "CAP_WAKE_ALARM",
}

// Containerd returns containerd's profile for a bounding set.
func Containerd(caps ...string) []seccomp.Rule {
	p := cseccomp.DefaultProfile(&specs.Spec{
		Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: caps}},
	})
	if p.DefaultAction != specs.ActErrno || p.DefaultErrnoRet != nil {
		panic("containerd's default action is not EPERM any more")
	}
	var rules []seccomp.Rule
	for _, s := range p.Syscalls {
		r := seccomp.Rule{Names: s.Names}
		switch {
		case s.Action == specs.ActAllow:
		case s.Action == specs.ActErrno && s.ErrnoRet != nil:
			r.Errno = uint16(*s.ErrnoRet)
		default:
			panic(fmt.Sprintf("containerd's profile has the unknown action %s for %v", s.Action, s.Names))
		}
		for _, a := range s.Args {
			arg := seccomp.Arg{Index: a.Index, Value: a.Value, Want: a.ValueTwo}
			switch a.Op {
			case specs.OpEqualTo:
				arg.Op = seccomp.Equal
			case specs.OpLessThan:
				arg.Op = seccomp.Less
			case specs.OpMaskedEqual:
				arg.Op = seccomp.Masked
			default:
				panic(fmt.Sprintf("containerd's profile has the unknown comparison %s for %v", a.Op, s.Names))
			}
			r.Args = append(r.Args, arg)
		}
		rules = append(rules, r)
	}
	return rules
}

// Rules returns the profile for every bounding set at once, with the capability
// each rule depends on.
func Rules() []seccomp.Rule {
	base := Containerd()
	var rules []seccomp.Rule
	extra := map[string][]seccomp.Rule{}
	without := map[int]string{}
	for _, c := range capabilities {
		with := Containerd(c)
		for _, r := range with {
			if !has(base, r) {
				r.With = c
				extra[c] = append(extra[c], r)
			}
		}
		for i, r := range base {
			if !has(with, r) {
				if without[i] != "" {
					panic("a rule depends on the absence of two capabilities")
				}
				without[i] = c
			}
		}
	}
	for i, r := range base {
		r.Without = without[i]
		rules = append(rules, r)
	}
	for _, c := range capabilities {
		rules = append(rules, extra[c]...)
	}
	return rules
}

func has(rules []seccomp.Rule, r seccomp.Rule) bool {
	return slices.ContainsFunc(rules, func(o seccomp.Rule) bool { return reflect.DeepEqual(o, r) })
}

// Capabilities returns the names of all capabilities that were asked about.
func Capabilities() []string { return slices.Clone(capabilities) }
