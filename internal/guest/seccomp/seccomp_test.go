package seccomp_test

import (
	"reflect"
	"testing"

	"golang.org/x/net/bpf"

	"github.com/kitbox-dev/kitbox/internal/guest/seccomp"
	"github.com/kitbox-dev/kitbox/internal/guest/seccomp/pin"
)

// The table was generated; what it was generated from may have moved on.
func TestTheTableIsContainerds(t *testing.T) {
	sets := [][]string{nil, pin.Capabilities()}
	for _, c := range pin.Capabilities() {
		sets = append(sets, []string{c}, []string{"CAP_SYS_ADMIN", c})
	}
	for _, caps := range sets {
		got, want := seccomp.Profile(caps), pin.Containerd(caps...)
		for i := range got {
			got[i].With, got[i].Without = "", ""
		}
		for _, r := range want {
			if !contains(got, r) {
				t.Errorf("with %v: containerd has %+v, the table has not: go generate ./internal/guest/seccomp", caps, r)
			}
		}
		for _, r := range got {
			if !contains(want, r) {
				t.Errorf("with %v: the table has %+v, containerd has not: go generate ./internal/guest/seccomp", caps, r)
			}
		}
	}
}

func contains(rules []seccomp.Rule, r seccomp.Rule) bool {
	for _, o := range rules {
		if reflect.DeepEqual(o, r) {
			return true
		}
	}
	return false
}

// The searched program must answer as a plain reading of the rules does, for
// every number and for arguments on both sides of every condition.
func TestTheProgramDoesWhatTheRulesSay(t *testing.T) {
	for _, caps := range [][]string{nil, {"CAP_SYS_ADMIN"}, pin.Capabilities()} {
		rules := seccomp.Profile(caps)
		prog, err := seccomp.Assemble(rules)
		if err != nil {
			t.Fatal(err)
		}
		raw := make([]bpf.RawInstruction, len(prog))
		for i, p := range prog {
			raw[i] = bpf.RawInstruction{Op: p.Code, Jt: p.Jt, Jf: p.Jf, K: p.K}
		}
		insns, ok := bpf.Disassemble(raw)
		if !ok {
			t.Fatal("a part of the program is no instruction")
		}
		for _, arch := range seccomp.Tables() {
			names := map[uint32]string{}
			for name, nr := range arch.Numbers {
				names[nr] = name
			}
			for nr := range uint32(600) {
				for _, args := range arguments(rules, names[nr]) {
					got := run(t, insns, arch.Audit, nr, args)
					if want := judge(rules, names[nr], args); got != want {
						t.Fatalf("arch %#x, %s (%d)%x: %#x, want %#x", arch.Audit, names[nr], nr, args, got, want)
					}
				}
			}
			for _, nr := range []uint32{1 << 30, 1<<30 + 1, 1<<31 - 1, 1<<32 - 1} {
				if got := run(t, insns, arch.Audit, nr, [6]uint64{}); got != 0x50001 {
					t.Errorf("number %#x: %#x", nr, got)
				}
			}
		}
		if got := run(t, insns, 0x12345, 1, [6]uint64{}); got != 0x80000000 {
			t.Errorf("another architecture: %#x, want the end of the process", got)
		}
	}
}

// arguments returns argument lists around each condition on name.
func arguments(rules []seccomp.Rule, name string) [][6]uint64 {
	list := [][6]uint64{{}, {^uint64(0), ^uint64(0)}}
	for _, r := range rules {
		for _, n := range r.Names {
			if n != name {
				continue
			}
			for _, a := range r.Args {
				for _, v := range []uint64{a.Value - 1, a.Value, a.Value + 1, a.Value | 1<<32, a.Value &^ 1, ^a.Value, a.Value >> 1} {
					var args [6]uint64
					args[a.Index] = v
					list = append(list, args)
				}
			}
		}
	}
	return list
}

func judge(rules []seccomp.Rule, name string, args [6]uint64) uint32 {
	for _, r := range rules {
		for _, n := range r.Names {
			if n != name || name == "" {
				continue
			}
			all := true
			for _, a := range r.Args {
				v := args[a.Index]
				switch a.Op {
				case seccomp.Equal:
					all = all && v == a.Value
				case seccomp.Less:
					all = all && v < a.Value
				case seccomp.Masked:
					all = all && v&a.Value == a.Want
				}
			}
			if !all {
				continue
			}
			if r.Errno != 0 {
				return 0x50000 | uint32(r.Errno)
			}
			return 0x7fff0000
		}
	}
	return 0x50001 // EPERM
}

// run interprets the few instructions that the program consists of. The
// kernel's loads are in the machine's byte order, unlike those of packets.
func run(t *testing.T, prog []bpf.Instruction, arch, nr uint32, args [6]uint64) uint32 {
	t.Helper()
	word := func(off uint32) uint32 {
		switch {
		case off == 0:
			return nr
		case off == 4:
			return arch
		case off >= 16 && off < 64 && off%4 == 0:
			return uint32(args[(off-16)/8] >> (8 * (off % 8)))
		}
		t.Fatalf("load at %d", off)
		return 0
	}
	var a uint32
	for pc := 0; pc < len(prog); pc++ {
		switch i := prog[pc].(type) {
		case bpf.LoadAbsolute:
			a = word(i.Off)
		case bpf.ALUOpConstant:
			if i.Op != bpf.ALUOpAnd {
				t.Fatalf("operation %v", i)
			}
			a &= i.Val
		case bpf.Jump:
			pc += int(i.Skip)
		case bpf.JumpIf:
			yes := false
			switch i.Cond {
			case bpf.JumpEqual:
				yes = a == i.Val
			case bpf.JumpNotEqual:
				yes = a != i.Val
			case bpf.JumpGreaterThan:
				yes = a > i.Val
			case bpf.JumpGreaterOrEqual:
				yes = a >= i.Val
			case bpf.JumpLessThan:
				yes = a < i.Val
			case bpf.JumpLessOrEqual:
				yes = a <= i.Val
			default:
				t.Fatalf("condition %v", i)
			}
			if yes {
				pc += int(i.SkipTrue)
			} else {
				pc += int(i.SkipFalse)
			}
		case bpf.RetConstant:
			return i.Val
		default:
			t.Fatalf("instruction %v", i)
		}
	}
	t.Fatal("ran off the end")
	return 0
}
